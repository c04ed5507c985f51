"""Begin a run with a policy that there is: another run's, or one in a Stable-Baselines3 zip.

Of another run come its config, as far as it is not changed, the policy, what its normaliser has learnt and, from a
whole checkpoint of the same algorithm, the optimizer. Counters, random numbers, worlds and replay data begin anew.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kit.config import RunConfig
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs.finding import locate
from kit.runs.opponents import make_env
from kit.runs.run import Run, opened

if TYPE_CHECKING:
    from kit.trainers import Trainer


class WarmStart(NamedTuple):
    """A pretrained policy, and what comes along with it."""

    complete: Callable[[RunConfig | None, dict[str, Any]], RunConfig]
    """The run's config, of one that the user gives, if any, and changes."""
    give: Callable[[Trainer, RunConfig], None]
    """Puts the policy into a new trainer of such a config. Raises `UserError` if it does not fit."""
    parent: dict[str, Any]
    """For its provenance."""


def warm_start(start_from: str | Path, trust: bool, runs_dir: str, algo: str) -> WarmStart:
    """With what `start_from` names: MODEL.zip of `algo`, or RUN, RUN@STEP, RUN@best, RUN@latest; `trust` as in
    `kit.train`. Raises `UserError`; nothing is created."""
    if str(start_from).endswith(".zip"):
        return _of_zip(_checked(Path(start_from), trust), algo)
    name, at, step = str(start_from).rpartition("@")
    run, _ = locate(name if at else start_from, runs_dir)
    return _of_run(opened(run, trust), int(step) if step.isdecimal() else step if at else None)


def first_checkpoint(run: Run, warm: WarmStart) -> None:
    """Write step 0 of `run`: the policy in new worlds. Raises `UserError` if it does not fit the task."""
    from kit.trainers import make_trainer

    config = run.config.replace(device="cpu")
    env = make_env(config, int(config.n_envs), config.seed, int(config.threads))
    try:
        trainer = make_trainer(config, env)
        try:
            warm.give(trainer, config)
        except (UserError, RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            said = f"the policy of {warm.parent['name']} does not fit env={config.env!r} with {config.algo}"
            raise UserError(f"{said} ({reason}); name the env, algo and network that it is of.") from None
        session = {"rows": 0, "last_eval": -1, "best": None, "replay_capacity": getattr(trainer, "replay_capacity", 0)}
        session["untrained"] = False
        checkpoint.write(run.path / "checkpoints", 0, {**trainer.state(), "session": session})
    finally:
        env.close()


# -- another run ---------------------------------------------------------------------------------------------------


def _of_run(run: Run, step: int | str | None) -> WarmStart:
    chosen = run.find(step)
    found = next((whole for whole in run.checkpoints() if whole.step == chosen.step), chosen)
    try:
        state = found.read(replay=False)
    except checkpoint.Damaged as damage:
        raise UserError(f"{run.path} has a damaged step {found.step} ({damage}); name another.") from None

    def complete(config: RunConfig | None, changes: dict[str, Any]) -> RunConfig:
        return _changed(run.config, changes) if config is None else config.replace(**changes)

    def give(trainer: Trainer, config: RunConfig) -> None:
        same = config.algo == run.config.algo
        trainer.warm_start({name: values for name, values in state.items() if same or name != "optimizer"})

    return WarmStart(complete, give, {"name": run.name, "step": found.step})


def _changed(parent: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """The parent's config for another run. Mappings are completed by `changes`, not replaced, and hold only for the env
    and the algorithm that they are of; what follows from the machine and the length of the run is decided anew."""
    from kit.trainers.algorithm import with_n_envs

    mappings = {name: changes.get(name) or {} for name in ("overrides", "env_options")}
    evaluated = parent.eval_every if parent.eval_every != max(1, parent.total_steps // 10) else "auto"
    plain = {name: value for name, value in changes.items() if name not in mappings}
    config = parent.replace(**{"run_name": None, "threads": "auto", "device": "auto", "eval_every": evaluated, **plain})
    kept = parent.overrides
    if config.algo != parent.algo:
        kept = {name: value for name, value in kept.items() if name in ("policy_kwargs", "normalize")}
    options = parent.env_options if config.env == parent.env else {}
    if isinstance(config.n_envs, int) and config.n_envs != parent.n_envs and config.algo == parent.algo:
        kept = with_n_envs(parent, config.n_envs).overrides
    return config.replace(
        overrides={**kept, **mappings["overrides"]}, env_options={**options, **mappings["env_options"]}
    )


# -- a zip ---------------------------------------------------------------------------------------------------------


def _checked(path: Path, trust: bool) -> Path:
    """`path`, if it is a zip that the user trusts. Raises `UserError`; nothing in it was opened."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"start_from={str(path)!r} is not a Stable-Baselines3 zip; save one with model.save().")
    if not trust:
        raise UserError(
            f"start_from={str(path)!r} can run code when it is opened; "
            "if you trust whoever made it, say trust=True (kit train --trust)."
        )
    return path


def _of_zip(path: Path, algo: str) -> WarmStart:
    """With the network and hyperparameters of the zip, and its policy. Runs whatever the zip says."""
    from kit.trainers import algorithm
    from kit.trainers.arguments import POLICY_KWARGS
    from kit.trainers.saving import Weights

    found = algorithm.find(algo)
    try:
        model: Any = found.stock.load(path, device="cpu")
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"start_from={str(path)!r} does not load as {algo} ({reason}); name its algo.") from None
    hyper = {name: getattr(model, name) for name in found.imported}
    policy = {name: model.policy_kwargs[name] for name in POLICY_KWARGS if name in model.policy_kwargs}
    if "activation_fn" in policy:
        policy["activation_fn"] = policy["activation_fn"].__name__.lower()
    if policy:
        hyper["policy_kwargs"] = policy
    plain = {name: value for name, value in hyper.items() if isinstance(value, int | float | str | dict)}
    weights = model.policy.state_dict()

    def complete(config: RunConfig | None, changes: dict[str, Any]) -> RunConfig:
        config = (config or RunConfig()).replace(**changes)
        n_envs = config.n_envs if config.n_envs != "auto" else model.n_envs
        return config.replace(overrides={**plain, **config.overrides}, n_envs=n_envs)

    def give(trainer: Trainer, config: RunConfig) -> None:
        Weights(trainer.policy).load_state(weights)

    return WarmStart(complete, give, {"name": path.name})
