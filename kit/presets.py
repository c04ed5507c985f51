"""Presets as data, in SB3's names: the sizes that people type, and what was found good for a task.

`kit.trainers.planning` reads them. What holds for an algorithm whatever the task stands in its record (`kit.trainers`).
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
"""Hyperparameters by SB3's names, and `n_envs`. What is said of the network (`POLICY_KEYS`) SB3 calls policy_kwargs."""

POLICY_KEYS = ("net_arch", "activation_fn", "log_std_init")


NAMED: dict[str, Row] = {
    "fast": {"n_envs": 16, "n_steps": 256, "batch_size": 2048, "n_epochs": 15, "net_arch": [512, 512]},
    "heavy": {"n_envs": 32, "n_steps": 256, "batch_size": 4096, "n_epochs": 20, "net_arch": [1024, 512, 256]},
    "beast": {"n_envs": 64, "n_steps": 512, "batch_size": 8192, "n_epochs": 30, "net_arch": [1024, 512, 512, 256]},
}
"""For big networks on a GPU. An algorithm takes the columns that it has."""

# What joystick tasks share: rewards come 50 times a second, so 0.97 looks 0.7 s ahead; noise of 0.37 of an action (exp
# of -1) moves a joint by 0.2 rad, more makes a robot fall before it has learnt anything.
WALK: Row = {
    "n_epochs": 5, "learning_rate": 3e-4, "gamma": 0.97, "ent_coef": 0.005, "max_grad_norm": 1.0,
    "normalize": {"norm_reward": False}, "log_std_init": -1.0,
}  # fmt: skip

# Found on two cores; tests/bench/README.md shows what each reaches over three seeds. A discount of 0.97 looks about as
# far ahead (33 steps) as reaching takes (20 steps).
TASKS: dict[tuple[str, str], Row] = {
    ("Reach", "PPO"): {"n_envs": 8, "n_steps": 256, "batch_size": 256, "learning_rate": 1e-3},
    ("Reach", "A2C"): {
        "n_envs": 8, "n_steps": 8, "learning_rate": "lin_0.001", "gamma": 0.97, "gae_lambda": 0.95,
        "use_rms_prop": False, "normalize_advantage": True,
    },
    # A gradient step for every fourth env step reaches the same in a quarter of the time: the task is easy.
    ("Reach", "SAC"): {
        "n_envs": 8, "train_freq": 1, "gradient_steps": 2, "batch_size": 256, "learning_rate": 5e-4, "gamma": 0.97,
        "learning_starts": 1000, "ent_coef": "auto_0.05", "tau": 0.01, "net_arch": [128, 128],
    },
    # From pictures: small rollouts, for what is learnt from them takes longer than they do. With a rate that does not
    # fall (and 4 epochs) updates grew ever larger, up to a KL divergence of 0.4, and success stayed below 70 %.
    ("ReachVision", "PPO"): {
        "n_envs": 16, "n_steps": 64, "batch_size": 128, "n_epochs": 3, "learning_rate": "lin_0.0007", "gamma": 0.97,
    },
    # The temperature is fixed and low: one that is learnt fell before plates had been touched often enough, and the
    # policy then left them alone; with 0.005 it was the noise that cleaned. Half a million steps, and it does without.
    ("Dishwashing", "SAC"): {
        "n_envs": 32, "train_freq": 1, "gradient_steps": 6, "batch_size": 256, "learning_rate": 7e-4, "gamma": 0.98,
        "learning_starts": 8000, "ent_coef": 0.001, "tau": 0.01, "net_arch": [128, 128],
    },
    # The same for clips and for numbers. With noise of 0.6 it was the noise that cleaned: policies earned what the
    # scripted wiper earns while they explored, and hovered without. With 0.2 and a rate that falls three seeds of three
    # earn more than it; with a steady rate one ended by breaking plates.
    **{(env, "PPO"): {
        "n_envs": 32, "n_steps": 64, "batch_size": 256, "n_epochs": 3, "learning_rate": "lin_0.0005", "gamma": 0.98,
        "log_std_init": -1.6, "normalize": {"norm_obs": False},
    } for env in ("Dishwashing", "DishwashingVideo")},
    # A game without physics: `auto` doubles the worlds into the thousands. 0.997 looks 80 s ahead.
    ("Mission", "PPO"): {
        "n_envs": 16, "n_steps": 16, "batch_size": 1024, "n_epochs": 3, "learning_rate": 1e-3, "gamma": 0.997,
        "net_arch": [64, 64],
    },
    # For two lessons of two million steps (notebook 04_walk); with the task's own commands from nothing it learns to
    # stand. tests/bench/README.md says what else was tried.
    ("Go1Joystick", "PPO"): WALK | {"n_envs": 32, "n_steps": 128, "batch_size": 1024, "net_arch": [128, 128]},
    ("G1Joystick", "PPO"): WALK | {"n_envs": 32, "n_steps": 128, "batch_size": 1024, "net_arch": [128, 128]},
}  # fmt: skip

# The same on a GPU, where a row differs. Thousands of worlds see enough in half a second each; MuJoCo Playground and
# mjlab train these robots with the same network and 20 to 24 steps. Not yet tried on a card.
TASKS_ON_CUDA: dict[tuple[str, str], Row] = {
    (env, "PPO"): WALK | {
        "n_envs": 2048, "n_steps": 24, "batch_size": 12_288, "net_arch": [512, 256, 128], "activation_fn": "elu",
    } for env in ("Go1Joystick", "G1Joystick")
}  # fmt: skip
