"""Hyperparameters of the presets fast, heavy and beast, and hyperparameters tuned for some tasks.

`kit.trainers.planning` reads them. For other tasks, the algorithm's defaults are in
`kit.trainers.algorithm.Algorithm.row`.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
"""Hyperparameters: SB3's name -> value, and "n_envs". Names in `POLICY_KEYS` go into SB3's policy_kwargs."""

POLICY_KEYS = ("net_arch", "activation_fn", "log_std_init")


NAMED: dict[str, Row] = {
    "fast": {"n_envs": 16, "n_steps": 256, "batch_size": 2048, "n_epochs": 15, "net_arch": [512, 512]},
    "heavy": {"n_envs": 32, "n_steps": 256, "batch_size": 4096, "n_epochs": 20, "net_arch": [1024, 512, 256]},
    "beast": {"n_envs": 64, "n_steps": 512, "batch_size": 8192, "n_epochs": 30, "net_arch": [1024, 512, 512, 256]},
}
"""Presets for big networks on a GPU. An algorithm ignores hyperparameters that it does not have."""

# Shared by the joystick tasks. At 50 steps per second, gamma = 0.97 has a horizon of 0.7 s. Action noise of 0.37
# (exp of log_std_init = -1) moves a joint by 0.2 rad; with more noise the robot falls before it learns anything.
WALK: Row = {
    "n_epochs": 5, "learning_rate": 3e-4, "gamma": 0.97, "ent_coef": 0.005, "max_grad_norm": 1.0,
    "normalize": {"norm_reward": False}, "log_std_init": -1.0,
}  # fmt: skip

# Shared by the goal tasks. gamma = 0.95 has a horizon of 20 steps, of an episode's 50.
GOALS: Row = {
    "n_envs": 32, "train_freq": 1, "learning_rate": 1e-3, "gamma": 0.95, "ent_coef": "auto_0.05",
    "net_arch": [128, 128], "normalize": {"norm_reward": False},
}  # fmt: skip

# PPO's defaults (`Algorithm.row`) and normalisation, for Gymnasium's MuJoCo robots; Ant is kit's version of Ant-v5.
GYMNASIUM: Row = {"n_envs": 16, "n_steps": 64, "batch_size": 64, "normalize": True}

# Tuned on two cores; tests/bench/README.md has the scores. Reach's hand arrives after about 20 steps, and gamma = 0.97
# has a horizon of 33.
TASKS: dict[tuple[str, str], Row] = {
    **{(env, "PPO"): {
        "n_envs": 8, "n_steps": 256, "batch_size": 256, "learning_rate": 1e-3,
    } for env in ("Reach", "reach")},
    ("Reach", "A2C"): {
        "n_envs": 8, "n_steps": 8, "learning_rate": "lin_0.001", "gamma": 0.97, "gae_lambda": 0.95,
        "use_rms_prop": False, "normalize_advantage": True,
    },
    # One gradient step per four env steps is enough: the same score in a quarter of the time, as the task is easy.
    ("Reach", "SAC"): {
        "n_envs": 8, "train_freq": 1, "gradient_steps": 2, "batch_size": 256, "learning_rate": 5e-4, "gamma": 0.97,
        "learning_starts": 1000, "ent_coef": "auto_0.05", "tau": 0.01, "net_arch": [128, 128],
    },
    # From images: small rollouts of 1,024 steps, so that the policy is updated often. The learning rate falls. With a
    # constant rate (and 4 epochs) the KL divergence of an update grew up to 0.4, and success stayed below 70 %.
    ("ReachVision", "PPO"): {
        "n_envs": 16, "n_steps": 64, "batch_size": 128, "n_epochs": 3, "learning_rate": "lin_0.0007", "gamma": 0.97,
    },
    # The entropy coefficient is fixed and low. A learnt coefficient fell before the policy had touched plates
    # often enough, and the policy then avoided plates. With 0.005 the policy cleaned only with action noise. With 0.001
    # it also cleans without noise, after half a million steps.
    ("Dishwashing", "SAC"): {
        "n_envs": 32, "train_freq": 1, "gradient_steps": 6, "batch_size": 256, "learning_rate": 7e-4, "gamma": 0.98,
        "learning_starts": 8000, "ent_coef": 0.001, "tau": 0.01, "net_arch": [128, 128],
    },
    # The same hyperparameters for clips and for state observations. With action noise of 0.6, policies earned as much
    # as the scripted wiper during training, but hovered above the plates when played without noise. With 0.2
    # (log_std_init = -1.6) and a falling learning rate, three of three seeds earn more than the wiper. With a constant
    # rate, one of them ended up breaking plates. A broken plate is rare and costs much: the few samples that show one
    # have large gradients. Clipping these (max_grad_norm = 0.5, batches of 256) hid the cost, and policies broke 2 to 7
    # percent of the plates. With large batches and hardly any clipping they break 1 to 2 % and earn more.
    **{(env, "PPO"): {
        "n_envs": 32, "n_steps": 64, "batch_size": 1024, "n_epochs": 4, "learning_rate": "lin_0.001", "gamma": 0.95,
        "max_grad_norm": 100.0, "log_std_init": -1.6, "normalize": {"norm_obs": False},
    } for env in ("Dishwashing", "DishwashingVideo")},
    # Gymnasium's robots. With less noise at first (0.37, exp of log_std_init = -1) and a falling rate, Ant and
    # HalfCheetah are more than three times as good after a million steps, and Hopper is worse.
    **{(env, "PPO"): GYMNASIUM for env in ("Hopper-v5", "Walker2d-v5")},
    **{(env, "PPO"): GYMNASIUM | {
        "learning_rate": "lin_0.0003", "log_std_init": -1.0,
    } for env in ("Ant", "Ant-v5", "HalfCheetah-v5")},
    # A fast game without MuJoCo: preset "auto" doubles n_envs up to 1,024 per core. gamma = 0.997: a horizon of 80 s.
    # With a constant learning rate the share of won games swung by 20 points until the end. Without a weight for the
    # entropy it fell from 8.8 to 2.5 in the first stages, and unlucky seeds then learnt slowly (58 % after 60 M steps).
    ("Mission", "PPO"): {
        "n_envs": 16, "n_steps": 16, "batch_size": 1024, "n_epochs": 3, "learning_rate": "lin_0.001", "gamma": 0.997,
        "ent_coef": 0.01, "net_arch": [64, 64],
    },
    # A random hand touches the block in 12 % of the episodes, so nothing is learnt in the first 300,000 steps. With
    # random_share, an env takes a random action in some steps, which keeps the hand from staying away from the block.
    # gamma and tau are rl-zoo3's. Slide has the row untuned: with the default 4 envs it would take half a day.
    **{(env, "SAC"): GOALS | {
        "gradient_steps": 2, "batch_size": 1024, "learning_starts": 10_000, "tau": 0.05, "random_share": 0.3,
    } for env in ("Push", "Slide")},
    # Tuned with 300 recorded episodes of the scripted policy (`dataset`), which are half of each batch.
    ("PickAndPlace", "SAC"): GOALS | {
        "gradient_steps": 4, "batch_size": 256, "learning_starts": 3200, "tau": 0.01,
    },
    # For the tasks' curriculum and four million steps (notebook 04_walk). Without its first stage, the robot learns
    # only to stand. tests/bench/README.md lists other settings that were tried. "joystick" is for any robot.
    **{(env, "PPO"): WALK | {
        "n_envs": 32, "n_steps": 128, "batch_size": 1024, "net_arch": [128, 128],
    } for env in ("Go1Joystick", "G1Joystick", "joystick")},
    # It learns to stand and to walk backwards, not to walk ahead; tests/bench/README.md lists what was tried.
    ("G1Legs", "PPO"): WALK | {
        "n_envs": 32, "n_steps": 128, "batch_size": 2048, "net_arch": [128, 128], "mirror": True,
        "learning_rate": "lin_0.0002", "gamma": 0.98, "ent_coef": 0.0, "normalize": {"norm_reward": True},
    },
}  # fmt: skip

# On a GPU, added to the row of any task with physics that observes numbers. A step of 2,048 envs takes hardly longer
# than one of 16, and with thousands of envs a rollout of half a second is enough for an update.
PPO_ON_CUDA: Row = {"n_envs": 2048, "n_steps": 24, "batch_size": 12_288, "n_epochs": 5}

# The same for tasks that observe images. ReachVision, on an H200: 16 envs train at 287 steps/s, slower than on two CPU
# cores, and 256 envs at 2,770. With these, 91 % of the test episodes succeed after 121,000 steps.
PPO_FROM_IMAGES_ON_CUDA: Row = {"n_envs": 256, "n_steps": 8, "batch_size": 256}

LEGGED = ("Go1Joystick", "G1Joystick", "joystick")
"""Tasks without images for which device="auto" chooses a GPU with PPO. It also does so for policies that see images and
for the presets in `NAMED`."""

# Used instead of `TASKS` on a GPU. MuJoCo Playground and mjlab train the legged robots with the same network and
# n_steps of 20 to 24. Ant returns 2,302 after 2 million steps (one seed). With batches of 12,288 it returns 1,820, and
# 1,189 if the learning rate is lin_0.0003 too.
TASKS_ON_CUDA: dict[tuple[str, str], Row] = {
    **{(env, "PPO"): WALK | PPO_ON_CUDA | {"net_arch": [512, 256, 128], "activation_fn": "elu"} for env in LEGGED},
    ("Ant", "PPO"): TASKS["Ant", "PPO"] | PPO_ON_CUDA | {"batch_size": 6144, "learning_rate": "lin_0.001"},
}
