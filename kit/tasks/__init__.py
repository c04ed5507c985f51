"""kit's own tasks, one file or folder each.

In a folder, `task.py` is the task, `model.py` its MuJoCo model, `rules.py` its options and constants, `vision.py` the
variant with image observations, and `cameras.py` or `render.py` the rendering for people. `kit.envs.registry` lists the
tasks by name.
"""
