"""Presets: from a RunConfig with "auto" in it to the numbers that will be used."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from kit.config import RunConfig
from kit.errors import UserError

Hyperparameters = dict[str, Any]

# SB3's names. n_envs belongs to RunConfig and is a default here.
GPU: dict[str, Hyperparameters] = {
    "fast": {"n_envs": 16, "n_steps": 256, "batch_size": 2048, "n_epochs": 15, "net_arch": [512, 512]},
    "heavy": {"n_envs": 32, "n_steps": 256, "batch_size": 4096, "n_epochs": 20, "net_arch": [1024, 512, 256]},
    "beast": {"n_envs": 64, "n_steps": 512, "batch_size": 8192, "n_epochs": 30, "net_arch": [1024, 512, 512, 256]},
}

# What joystick tasks share: rewards come 50 times a second, so 0.97 looks 0.7 s ahead; noise of 0.37 of an action (exp
# of -1) moves a joint by 0.2 rad, more makes a robot fall before it has learnt anything.
WALK: Hyperparameters = {
    "n_epochs": 5, "learning_rate": 3e-4, "gamma": 0.97, "ent_coef": 0.005, "max_grad_norm": 1.0,
    "normalize": {"norm_reward": False}, "log_std_init": -1.0,
}  # fmt: skip

# Found on two cores; the README's table shows what each reaches over three seeds. A discount of 0.97 looks about as far
# ahead (33 steps) as reaching takes (20 steps).
TUNED: dict[tuple[str, str], Hyperparameters] = {
    ("Reach", "PPO"): {"n_envs": 8, "n_steps": 256, "batch_size": 256, "learning_rate": 1e-3},
    ("Reach", "A2C"): {
        "n_envs": 8, "n_steps": 8, "learning_rate": "lin_0.001", "gamma": 0.97, "gae_lambda": 0.95,
        "use_rms_prop": False, "normalize_advantage": True,
    },
    ("Reach", "SAC"): {
        "n_envs": 8, "train_freq": 1, "gradient_steps": 2, "batch_size": 256, "learning_rate": 5e-4, "gamma": 0.97,
        "learning_starts": 1000, "ent_coef": "auto_0.05", "tau": 0.01, "net_arch": [128, 128],
    },
    # Learnt as seen on two cores: a Go1's return rises from 0 within a million steps. Sixteen worlds on each core.
    ("Go1Joystick", "PPO"): WALK | {"n_envs": 32, "n_steps": 128, "batch_size": 1024, "net_arch": [128, 128]},
    ("G1Joystick", "PPO"): WALK | {"n_envs": 32, "n_steps": 128, "batch_size": 1024, "net_arch": [128, 128]},
}  # fmt: skip
# The same on a GPU, where a row differs. Thousands of worlds see enough in half a second each; MuJoCo Playground and
# mjlab train these robots with the same network and 20 to 24 steps. Not yet tried on a card.
TUNED_CUDA: dict[tuple[str, str], Hyperparameters] = {
    (env, "PPO"): WALK | {
        "n_envs": 2048, "n_steps": 24, "batch_size": 12_288, "net_arch": [512, 256, 128], "activation_fn": "elu",
    } for env in ("Go1Joystick", "G1Joystick")
}  # fmt: skip

# What is used where nothing better is known: SB3's defaults with worlds enough to keep the cores busy.
GENERAL: dict[str, Hyperparameters] = {
    "PPO": {"n_envs": 16, "n_steps": 256, "batch_size": 512},
    "A2C": {"n_envs": 16},
    "SAC": {"n_envs": 4},
}
# What Stable-Baselines3 itself would do, for comparisons.
STOCK: dict[str, Hyperparameters] = {
    "PPO": {"n_envs": 1, "n_steps": 2048, "batch_size": 64},
    "A2C": {"n_envs": 1},
    "SAC": {"n_envs": 1},
}

OF_POLICY = ("net_arch", "activation_fn", "log_std_init")
"""What a row says of the network; SB3 calls it policy_kwargs."""
KNOWN_TO = {
    "PPO": ("n_steps", "batch_size", "n_epochs", "net_arch"),
    "A2C": ("n_steps", "net_arch"),
    "SAC": ("batch_size", "net_arch"),
}
"""Which columns of the GPU presets each algorithm has."""


def resolve(config: RunConfig) -> RunConfig:
    """Every "auto" replaced, `overrides` completed, env and batch rule checked. Raises `UserError`."""
    from kit import envs
    from kit.machine import settings

    envs.check(config.env)
    check_overrides(config.algo, config.overrides)
    if config.preset == "auto":
        from kit.machine import tune

        config = tune.settle(config)
    chosen = row_of(config)
    n_envs = config.n_envs if isinstance(config.n_envs, int) else int(chosen.get("n_envs", 1))
    hyper = {name: value for name, value in chosen.items() if name != "n_envs" and name not in OF_POLICY}
    if policy := {name: chosen[name] for name in OF_POLICY if name in chosen}:
        hyper["policy_kwargs"] = policy
    if config.algo == "SAC" and config.preset == "auto":
        hyper["gradient_steps"] = _gradient_steps(n_envs, chosen)
    hyper |= config.overrides
    check_overrides(config.algo, hyper)
    if hyper.get("autocast") and not settings.short_floats(device := _device(config.device)):
        raise UserError(
            f"overrides autocast={hyper['autocast']!r} needs an NVIDIA card from Ampere (2020) on, which "
            f"device={device!r} is not; leave it out."
        )
    if config.algo == "PPO":
        hyper["batch_size"] = _batch_size(n_envs, int(hyper.get("n_steps", 2048)), hyper, config.overrides)
    return config.replace(
        run_name=config.run_name or default_name(config),
        device=_device(config.device),
        n_envs=n_envs,
        threads=_threads(config.threads),
        eval_every=max(1, config.total_steps // 10) if config.eval_every == "auto" else config.eval_every,
        overrides=hyper,
    )


def shrink(config: RunConfig, n_envs: int) -> RunConfig:
    """A resolved config with fewer worlds, its batch by the batch rule."""
    overrides = dict(config.overrides)
    if config.algo == "PPO":
        rollout = n_envs * int(overrides.get("n_steps", 2048))
        overrides["batch_size"] = largest_batch(rollout, int(overrides.get("batch_size", 64)))
    return config.replace(n_envs=n_envs, overrides=overrides)


def network_threads(config: RunConfig) -> int:
    """CPU threads for the networks of a resolved config: one where a layer's product is too small to share.

    Below about 2**24 multiplications (64 × 64 × 4096) handing work to a second thread cost more than it saved, most of
    all on a busy machine. It depends on the config alone, so that sums are added in the same order after a resume.
    """
    arch = config.overrides.get("policy_kwargs", {}).get("net_arch", [256] if config.algo == "SAC" else [64])
    layers = [width for part in (arch.values() if isinstance(arch, dict) else [arch]) for width in part]
    batch = int(config.overrides.get("batch_size", 256 if config.algo == "SAC" else int(config.n_envs)))
    return int(config.threads) if batch * max(layers, default=1) ** 2 > 2**24 else 1


def default_name(config: RunConfig) -> str:
    """Such as reach-ppo-s0-20261121-090000, in UTC."""
    env = re.sub(r"[^A-Za-z0-9]+", "-", config.env).strip("-").lower()
    return f"{env}-{config.algo.lower()}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"


def largest_batch(rollout: int, at_most: int) -> int:
    """The largest divisor of `rollout` (steps × worlds) that is no more than `at_most`."""
    return next(size for size in range(min(rollout, at_most), 0, -1) if rollout % size == 0)


def row_of(config: RunConfig) -> Hyperparameters:
    """What the preset says, for the device of `config`."""
    if config.preset == "sb3":
        return STOCK[config.algo]
    if config.preset in GPU:
        row = GPU[config.preset]
        return {"n_envs": row["n_envs"], **{name: row[name] for name in KNOWN_TO[config.algo]}}
    rows = TUNED | TUNED_CUDA if _device(config.device) != "cpu" else TUNED
    return rows.get((config.env, config.algo), GENERAL[config.algo])


def _gradient_steps(n_envs: int, row: Hyperparameters) -> int:
    """As many for each env step as the row's, whatever the number of worlds: what SAC learns hangs on that.

    Reach, 60,000 steps, mean return of three seeds: 4.10 with 8 worlds, 4.14 with 16, 4.17 with 32."""
    return max(1, round(int(row.get("gradient_steps", 1)) * n_envs / int(row.get("n_envs", 1))))


def _batch_size(n_envs: int, n_steps: int, hyper: Mapping[str, Any], overrides: Mapping[str, Any]) -> int:
    rollout, batch_size = n_envs * n_steps, hyper.get("batch_size", 64)
    if "batch_size" not in overrides:
        return largest_batch(rollout, batch_size)
    if rollout % batch_size:
        remedy = largest_batch(rollout, batch_size)
        raise UserError(
            f"batch_size={batch_size} does not divide n_envs × n_steps = {n_envs} × {n_steps} = {rollout}; "
            f"the largest below it that does is {remedy}."
        )
    return batch_size


COUNTS = ("n_steps", "batch_size", "n_epochs", "buffer_size", "learning_starts", "train_freq", "gradient_steps")


def check_overrides(algo: str, overrides: Mapping[str, Any]) -> None:
    """Refuse counts that are not positive whole numbers; names are checked against SB3's signature by the trainer."""
    from kit.trainers import check_names

    check_names(algo, overrides)
    for name in COUNTS:
        value = overrides.get(name, 1)
        least = {"learning_starts": 0, "gradient_steps": -1}.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"overrides {name}={value!r} must be a whole number of at least {least}.")


def _device(device: str) -> str:
    import torch

    from kit.machine import settings

    if device == "auto":
        return "cuda" if settings.gpu_works() else "cpu"
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"device={device!r} needs a CUDA GPU and PyTorch sees none; use cpu or see `kit verify`.")
    return device


def _threads(threads: int | str) -> int:
    from kit.machine import usable_cores

    return threads if isinstance(threads, int) else usable_cores()
