"""kit's own tasks, one file or folder each.

Files in a folder: `task.py`, the task; `model.py`, its MuJoCo model; `rules.py`, its options and constants;
`vision.py`, the variant with image observations; `cameras.py` or `render.py`, the rendering of videos.
`kit.envs.registry` lists the tasks by name.
"""
