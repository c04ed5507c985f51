"""Warm start: start a run from a pretrained policy of another run or from a Stable-Baselines3 zip.

Another run provides its config (unless the caller passes one), its policy, the normaliser's statistics and, if the step
has a full checkpoint (not only a policy) and the algorithm is the same, the optimizer's state. Counters, random
numbers, envs and replay data start fresh.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kit.config import RunConfig
from kit.errors import UserError, first_line
from kit.format import checkpoint
from kit.runs.finding import locate_step
from kit.runs.opponents import make_env
from kit.runs.run import Run, opened

if TYPE_CHECKING:
    from kit.trainers import Trainer


class WarmStart(NamedTuple):
    """A pretrained policy, with functions that make a config from it and load it into a trainer."""

    make_config: Callable[[RunConfig | None, dict[str, Any]], RunConfig]
    """Returns the new run's config, given the user's config (or None) and the changed fields."""
    requested: Callable[[RunConfig | None, dict[str, Any]], RunConfig]
    """Returns that config as the user asked for it, with "auto" where kit chose for the source; same arguments."""
    load_into: Callable[[Trainer, RunConfig], None]
    """Loads the policy into a trainer that was made from the config. Raises `UserError` if the policy does not fit."""
    parent: dict[str, Any]
    """Name and step of the source, for provenance.json."""


def warm_start(start_from: str | Path, trust: bool, runs_dir: str, algo: str) -> WarmStart:
    """Read the policy `start_from`: MODEL.zip of `algo`, or RUN, RUN@STEP, RUN@best, RUN@latest. Raises `UserError`."""
    if str(start_from).endswith(".zip"):
        return _from_zip(Path(start_from).expanduser(), trust, algo)
    run, step = locate_step(start_from, runs_dir, trust)
    return _from_run(opened(run, trust), step)


def first_checkpoint(run: Run, warm: WarmStart) -> None:
    """Write the checkpoint of step 0: the pretrained policy and freshly reset envs. Raises `UserError` if the policy
    does not fit the task."""
    from kit.trainers import make_trainer

    config = run.config.replace(device="cpu")
    env = make_env(config, int(config.n_envs), config.seed, int(config.threads))
    try:
        trainer = make_trainer(config, env)
        try:
            warm.load_into(trainer, config)
        except (UserError, RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            problem = f"the policy of {warm.parent['name']} does not fit env={config.env!r} with {config.algo}"
            raise UserError(f"{problem} ({reason}); name the env, algo and network that it was trained with.") from None
        session = {"rows": 0, "last_eval": -1, "best": None, "replay_capacity": getattr(trainer, "replay_capacity", 0)}
        session["untrained"] = False
        checkpoint.write(run.path / "checkpoints", 0, {**trainer.state(), "session": session})
    finally:
        env.close()


# -- another run ---------------------------------------------------------------------------------------------------


def _from_run(run: Run, step: int | str | None) -> WarmStart:
    chosen = run.find(step)
    saved = next((whole for whole in run.checkpoints() if whole.step == chosen.step), chosen)
    try:
        state = saved.read(replay=False)
    except checkpoint.Damaged as damage:
        raise UserError(f"{run.path} has a damaged step {saved.step} ({damage}); name another.") from None

    def make_config(config: RunConfig | None, changes: dict[str, Any]) -> RunConfig:
        return _branch_config(run.config, changes) if config is None else config.replace(**changes)

    def requested(config: RunConfig | None, changes: dict[str, Any]) -> RunConfig:
        return _branch_config(run.requested, changes) if config is None else config.replace(**changes)

    def load_into(trainer: Trainer, config: RunConfig) -> None:
        same_algo = config.algo == run.config.algo
        trainer.warm_start({name: values for name, values in state.items() if same_algo or name != "optimizer"})

    return WarmStart(make_config, requested, load_into, {"name": run.name, "step": saved.step})


def _branch_config(parent: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """Return the parent's config, resolved or as requested, with `changes`, for a new run.

    `overrides` (and policy_kwargs in them) and `env_options` in `changes` are merged into the parent's. If the env
    changes, the parent's env_options are dropped. If the algorithm changes, the parent's teacher, dataset and overrides
    are dropped, except policy_kwargs and normalize. `threads` and `device` are chosen again, and `eval_every` too if it
    was a tenth of the parent's total_steps.
    """
    from kit.trainers.algorithm import with_n_envs

    mappings = {name: changes.get(name) or {} for name in ("overrides", "env_options")}
    eval_every = parent.eval_every if parent.eval_every != max(1, parent.total_steps // 10) else "auto"
    plain = {name: value for name, value in changes.items() if name not in mappings}
    config = parent.replace(
        **{"run_name": None, "threads": "auto", "device": "auto", "eval_every": eval_every, **plain}
    )
    kept = parent.overrides
    if config.algo != parent.algo:
        config = config.replace(teacher=changes.get("teacher"), dataset=changes.get("dataset"))
        kept = {name: value for name, value in kept.items() if name in ("policy_kwargs", "normalize")}
    options = parent.env_options if config.env == parent.env else {}
    if isinstance(config.n_envs, int) and config.n_envs != parent.n_envs != "auto" and config.algo == parent.algo:
        adapted = with_n_envs(parent, config.n_envs).overrides
        kept = {name: adapted[name] for name in kept}  # none that the parent leaves out
    overrides = {**kept, **mappings["overrides"]}
    old, new = (each.get("policy_kwargs") for each in (kept, mappings["overrides"]))
    if isinstance(old, dict) and isinstance(new, dict):
        overrides["policy_kwargs"] = old | new
    return config.replace(overrides=overrides, env_options={**options, **mappings["env_options"]})


# -- a zip ---------------------------------------------------------------------------------------------------------


def _from_zip(path: Path, trust: bool, algo: str) -> WarmStart:
    """Read network, hyperparameters and policy from a zip. Unpickling it can run any code; needs `trust`."""
    from kit.trainers import algorithm
    from kit.trainers.arguments import POLICY_KWARGS, hyperparameter_types
    from kit.trainers.saving import Weights

    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"start_from={str(path)!r} is not a Stable-Baselines3 zip; save one with model.save().")
    if not trust:
        raise UserError(
            f"start_from={str(path)!r} can run code when it is opened; "
            "if you trust its author, pass trust=True (kit train --trust)."
        )
    record = algorithm.find(algo)
    try:
        model: Any = record.stock.load(path, device="cpu")
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"start_from={str(path)!r} does not load as {algo} ({reason}); set another algo.") from None
    # imitation has hyperparameters of its own; SAC, TD3 and CrossQ support n_steps=1 only
    names = [] if record.taught or record.dataset == "needed" else [*hyperparameter_types(record)]
    left_out = ("policy_kwargs", "n_steps") if "train_freq" in names else ("policy_kwargs",)
    hyper = {name: getattr(model, name, None) for name in names if name not in left_out}
    policy = {name: model.policy_kwargs[name] for name in POLICY_KWARGS if name in model.policy_kwargs}
    if "activation_fn" in policy:
        policy["activation_fn"] = policy["activation_fn"].__name__.lower()
    if policy:
        hyper["policy_kwargs"] = policy
    # SB3 makes objects of schedules and of train_freq, which a config cannot hold
    plain = {name: value for name, value in hyper.items() if isinstance(value, int | float | str | dict)}
    weights = model.policy.state_dict()

    def make_config(config: RunConfig | None, changes: dict[str, Any]) -> RunConfig:
        config = (config or RunConfig()).replace(**changes)
        n_envs = config.n_envs if config.n_envs != "auto" else model.n_envs
        return config.replace(overrides={**plain, **config.overrides}, n_envs=n_envs)

    def load_into(trainer: Trainer, config: RunConfig) -> None:
        Weights(trainer.policy).load_state(weights)

    return WarmStart(make_config, make_config, load_into, {"name": path.name})
