"""Begin a run from somebody's Stable-Baselines3 zip. Opening one can run code, so it is asked for twice."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from kit.config import RunConfig
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs.run import Run

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm


def check(path: str | Path, trust: bool) -> Path:
    """`path`, if it is a zip that the user trusts. Raises `UserError`; nothing in it was opened."""
    path = Path(path)
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"start_from={str(path)!r} is not a Stable-Baselines3 zip; save one with model.save().")
    if not trust:
        raise UserError(
            f"start_from={str(path)!r} can run code when it is opened; "
            "if you trust whoever made it, say trust=True (kit train --trust)."
        )
    return path


def config_of(path: Path, config: RunConfig) -> tuple[RunConfig, BaseAlgorithm]:
    """`config` with the network and hyperparameters of the zip, and the model in it. Runs whatever the zip says."""
    from kit.trainers import algorithm

    found = algorithm.find(config.algo)
    try:
        model: BaseAlgorithm = found.stock.load(path, device="cpu")
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"start_from={str(path)!r} does not load as {config.algo} ({reason}); name its algo.") from None
    hyper = {name: getattr(model, name) for name in found.imported}
    arch = model.policy_kwargs.get("net_arch")
    if arch is not None:
        hyper["policy_kwargs"] = {"net_arch": arch}
    activation = model.policy_kwargs.get("activation_fn")
    if activation is not None:
        hyper.setdefault("policy_kwargs", {})["activation_fn"] = activation.__name__.lower()
    plain = {name: value for name, value in hyper.items() if isinstance(value, int | float | str | dict)}
    n_envs = config.n_envs if config.n_envs != "auto" else model.n_envs
    return config.replace(overrides={**plain, **config.overrides}, n_envs=n_envs), model


def first_checkpoint(run: Run, model: BaseAlgorithm) -> None:
    """Write step 0 of `run`: the zip's policy in fresh worlds. Raises `UserError` if it does not fit the task."""
    from kit import envs
    from kit.trainers import make_trainer

    config = run.config.replace(device="cpu")
    env = envs.make_vec(config.env, int(config.n_envs), "cpu", config.seed, int(config.threads), config.env_options)
    trainer = make_trainer(config, env)
    try:
        trainer.policy.load_state_dict(model.policy.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the zip's policy does not fit env={config.env!r} ({reason}); name the env it is of."
        ) from None
    session = {"rows": 0, "last_eval": 0, "best": None}
    checkpoint.write(run.path / "checkpoints", 0, {**trainer.state(), "session": session})
    env.close()
