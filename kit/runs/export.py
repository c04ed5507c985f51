"""A policy for use without kit: observation in, action out, the normaliser inside; and what every number means."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import nn

import kit
from kit.encoders.asymmetric import CRITICS, GroupedPolicy
from kit.envs.contract import BatchEnv
from kit.envs.obs import POLICY, Obs, PolicyView, from_leaves, leaves, pick, pick_space
from kit.envs.play import play
from kit.envs.vec import TensorEnv
from kit.errors import UserError, need
from kit.format.files import write_atomic
from kit.format.leftovers import temporary
from kit.runs.evaluation import EVAL_SEED
from kit.runs.opponents import make_env
from kit.runs.policies import load_policy
from kit.runs.run import Run, opened
from kit.trainers import Trainer
from kit.trainers.actor import Actor


class Function(NamedTuple):
    """What was written, as it was read back: entries of the observation (n, ...) and what is remembered, to actions
    (n, ...) and what is remembered then."""

    run: Callable[..., Sequence[torch.Tensor]]
    inputs: list[str]
    """Names of those that it takes, in order; what does not decide an action may be left out."""


WORLDS, STEPS = 50, 20
"""A thousand observations: what is written is compared with the policy on them."""
TOLERANCE = 1e-4
"""Largest difference of an action; other arithmetic orders sums differently."""


class Alone(nn.Module):
    """`actor` as a function of tensors, its actions inside their space."""

    def __init__(self, actor: Actor, names: Sequence[str], action_space: spaces.Space) -> None:
        super().__init__()
        self.actor, self.names, self.space = actor, tuple(names), action_space

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen, hidden_state = given[: len(self.names)], given[len(self.names) :]
        action, hidden_state = self.actor(from_leaves("obs", dict(zip(self.names, seen, strict=True))), hidden_state)
        return self.inside(action), *hidden_state

    def inside(self, action: torch.Tensor) -> torch.Tensor:
        """`action`, clipped to the action space."""
        if isinstance(self.space, spaces.Box):
            return torch.maximum(torch.minimum(action, self.actor.high), self.actor.low)
        return action


def export(
    run: Run | str | Path,
    to: str = "onnx",
    step: int | str | None = None,
    path: str | Path | None = None,
    trust: bool = False,
) -> Path:
    """Write the policy of `step` (default: the best; 0: as training began) for use without kit, by default to
    `exports/step_<step>` in the run, and beside it a JSON with the name and unit of every entry. It acts without noise.

    "onnx" (needs the extra `deploy`) and "torchscript" are functions: a batch of each entry of the observation, and
    what an LSTM remembers (zeros as an episode begins), to actions inside the action space and the memory afterwards.
    Whatever the format, only the policy's observation group goes in, and a critic with a group of its own stays out.
    They are compared with the policy on 1,000 observations of its env. "sb3" is Stable-Baselines3's zip, "safetensors"
    the policy's weights alone; for these the normaliser is in the JSON. `trust` as in `kit.resume`. Raises `UserError`;
    nothing is left then.
    """
    run = opened(run, trust)
    if to not in WRITERS:
        raise UserError(f"to={to!r} is not something to export to; valid are {', '.join(WRITERS)}.")
    suffix, write = WRITERS[to]
    found = run.find_or_new(step)
    number = found.step if found else 0
    path = Path(path) if path else run.path / "exports" / f"step_{number:09d}{suffix}"
    if path.suffix != suffix:
        raise UserError(f"path={str(path)!r} must end in {suffix}, as what is exported to {to} does.")
    trainer = load_policy(run.config, found)
    env = make_env(run.config.replace(device="cpu"), WORLDS, run.config.seed + EVAL_SEED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.callback(env.close)
        building = stack.enter_context(temporary(path.parent)) / path.name
        obs, actor = env.reset(seed=run.config.seed + EVAL_SEED), trainer.as_actor()
        seen = dict(leaves("obs", _of_policy(env, obs)))
        alone = Alone(actor, list(seen), env.action_space)
        written = write(trainer, alone, (*seen.values(), *actor.initial_state(WORLDS)), building)
        about = {"kit": kit.__version__, "env": run.config.env, "env_options": run.config.env_options,
                 "algo": run.config.algo, "step": number, **described(trainer, env)}  # fmt: skip
        if written is not None:
            for kind in ("inputs", "memory"):
                known = {entry["name"]: entry for entry in about[kind]}
                about[kind] = [known[name] for name in written.inputs if name in known]
            about["largest_difference"] = worst = _difference(alone, written, env, obs)
            if worst > TOLERANCE:
                raise UserError(f"{to} cannot hold this policy: its actions differ by {worst:.2g}; export to sb3.")
        building.replace(path)
        write_atomic(path.with_suffix(".json"), json.dumps(about, indent=1))
    return path


def _of_policy(env: BatchEnv, obs: Obs) -> Obs:
    """The entries of `obs` that the policy's group sees; nothing else goes into an export."""
    return pick(obs, env.obs_groups.get(POLICY), bare=False)


def described(trainer: Trainer, env: BatchEnv) -> dict[str, Any]:
    """What goes in and comes out, in order: names, shapes, what each number is and what 1 stands for."""
    info = env.task_info if isinstance(env, TensorEnv) else None
    sees = {f"obs.{name}" if name else "obs": parts for name, parts in info.sees.items()} if info else {}
    action = _entry("action", env.action_space, info.does if info else ())
    if isinstance(env.action_space, spaces.Box):
        action |= {"low": env.action_space.low.tolist(), "high": env.action_space.high.tolist()}
    actor = trainer.as_actor()
    memory, seen = actor.initial_state(1), pick_space(env.observation_space, env.obs_groups.get(POLICY), bare=False)
    inputs = dict(leaves("obs", seen))
    about = {
        "inputs": [_entry(name, space, sees.get(name, ())) for name, space in inputs.items()],
        "memory": [{"name": f"memory_{i}", "shape": list(kept.shape[1:])} for i, kept in enumerate(memory)],
        "outputs": [action], "control_dt_s": env.control_dt_s,
    }  # fmt: skip
    if (normalizer := trainer.normalizer) is not None and normalizer.norm_obs:
        known = dict(leaves("obs", PolicyView(seen).space))
        own = {"obs": next(iter(known))} if "obs" not in known else {}  # of a single entry, taken by itself
        about["normalizer"] = {"clip": normalizer.clip_obs, "epsilon": normalizer.epsilon} | {
            own.get(name, name): {"mean": moments.mean.tolist(), "var": moments.var.tolist()}
            for name, moments in normalizer.obs_moments.items()
            if own.get(name, name) in known
        }
    return about


def _entry(name: str, space: spaces.Space, parts: Sequence[Any]) -> dict[str, Any]:
    about = {"name": name, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    return about | ({"parts": [part._asdict() for part in parts]} if parts else {})


@torch.no_grad()
def _difference(alone: Alone, written: Function, env: BatchEnv, obs: Obs) -> float:
    """The largest of any action as the policy plays, in batches of all envs, with which it was traced, and of one."""
    worst = 0.0
    for step in islice(play(env, alone.actor, obs), STEPS):
        given = [*(entry for _, entry in leaves("obs", _of_policy(env, step.obs))), *step.hidden_state]
        for n in (WORLDS, 1):
            told = written.run(*(each[:n] for each in given))[0]
            worst = max(worst, float((alone.inside(step.action[:n]) - told).abs().max()))
    return worst


def _torchscript(trainer: Trainer, alone: Alone, given: tuple[torch.Tensor, ...], path: Path) -> Function:
    with warnings.catch_warnings():  # of branches that the shapes of spaces decide, which never change
        warnings.simplefilter("ignore")
        torch.jit.trace(alone, given, check_trace=False).save(str(path))
        loaded = torch.jit.load(str(path))
    return Function(loaded, _inputs(alone, given))


def _onnx(trainer: Trainer, alone: Alone, given: tuple[torch.Tensor, ...], path: Path) -> Function:
    need("onnx", "deploy")
    onnxruntime = need("onnxruntime", "deploy")
    inputs = _inputs(alone, given)
    outputs = ["action", *(f"{name}_after" for name in inputs[len(alone.names) :])]
    batched = {name: {0: "n"} for name in inputs + outputs}
    with warnings.catch_warnings():  # as above; and that there is a newer exporter, which SB3's distributions stop
        warnings.simplefilter("ignore")
        torch.onnx.export(
            alone, given, str(path), dynamo=False, input_names=inputs, output_names=outputs, dynamic_axes=batched
        )
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    taken = [entry.name for entry in session.get_inputs()]  # the exporter leaves out what does not matter

    def run(*values: torch.Tensor) -> Sequence[torch.Tensor]:
        named = {name: value.numpy() for name, value in zip(inputs, values, strict=True) if name in taken}
        return [torch.from_numpy(value) for value in session.run(outputs, named)]

    return Function(run, taken)


def _inputs(alone: Alone, given: tuple[torch.Tensor, ...]) -> list[str]:
    return [*alone.names, *(f"memory_{i}" for i in range(len(given) - len(alone.names)))]


def _sb3(trainer: Trainer, alone: Alone, given: tuple[torch.Tensor, ...], path: Path) -> None:
    trainer.save(path)


def _safetensors(trainer: Trainer, alone: Alone, given: tuple[torch.Tensor, ...], path: Path) -> None:
    from safetensors.torch import save_file

    kept = {name: value.contiguous().clone() for name, value in trainer.policy.state_dict().items()}
    if isinstance(trainer.policy, GroupedPolicy):
        kept = {name: value for name, value in kept.items() if not name.startswith(CRITICS)}
    save_file(kept, path)


Writer = Callable[[Trainer, Alone, tuple[torch.Tensor, ...], Path], Function | None]
WRITERS: dict[str, tuple[str, Writer]] = {
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
    "sb3": (".zip", _sb3),
    "safetensors": (".safetensors", _safetensors),
}
"""How the file's name ends, and what writes it; what is a function comes back as it was read from there."""
