"""What is done: kit's own tasks, a file or a folder each.

In a folder `task.py` is the task, `model.py` its MuJoCo model, `rules.py` its constants and options, `picture.py` what
people see of it. `kit.envs.registry` knows their names.
"""
