"""Export a policy to ONNX, TorchScript, an SB3 zip or safetensors, with a JSON file that describes inputs and outputs.

ONNX and TorchScript files hold a function from observations to actions, which includes observation normalisation.
"""

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
from kit.runs.directory import check_output, making
from kit.runs.evaluation import EVAL_SEED
from kit.runs.opponents import make_env
from kit.runs.run import Run, load_policy, opened
from kit.trainers import Trainer
from kit.trainers.actor import Actor


class ExportedFunction(NamedTuple):
    """An exported function, loaded back from its file."""

    run: Callable[..., Sequence[torch.Tensor]]
    """Maps observation fields and hidden state, each (n, ...), to actions and the next hidden state."""
    inputs: list[str]
    """Names of the file's inputs, in order; an exporter may drop inputs that do not affect the action."""


N_ENVS, STEPS = 50, 20
"""The exported function is compared with the policy on 50 * 20 = 1,000 observations."""
TOLERANCE = 1e-4
"""Maximum accepted difference of an action. Rounding differs, because runtimes sum in different orders."""


class PolicyModule(nn.Module):
    """Module to export: maps observation fields `names` and hidden state to clipped actions and new hidden state."""

    def __init__(self, actor: Actor, names: Sequence[str]) -> None:
        super().__init__()
        self.actor, self.names = actor, tuple(names)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fields, hidden_state = inputs[: len(self.names)], inputs[len(self.names) :]
        action, hidden_state = self.actor(from_leaves("obs", dict(zip(self.names, fields, strict=True))), hidden_state)
        return self.actor.clip(action), *hidden_state


def export(
    run: Run | str | Path,
    to: str = "onnx",
    step: int | str | None = None,
    path: str | Path | None = None,
    trust: bool = False,
) -> Path:
    """Write the policy of `step` (default: the best; 0: the initial one) for use without kit; return the path.

    The default path is `exports/step_<step>` in the run; a JSON file beside it has the name and unit of every entry.
    Actions are deterministic.

    "onnx" (needs the extra `deploy`) and "torchscript" hold a function. Its inputs are a batch of each observation
    field and, for an LSTM, the hidden state (zeros at the start of an episode); its outputs are actions, clipped to the
    action space, and the next hidden state. The actions are checked on 1,000 observations. "sb3" is a
    Stable-Baselines3 zip, "safetensors" holds only the policy's weights; for both, the normaliser's statistics are in
    the JSON file. If the critic reads its own observation group (`env.obs_groups`), all formats except "sb3" leave out
    the critic and the entries that only the critic reads. `trust` as in `kit.resume`. If the export
    fails, raises `UserError` and leaves no file.
    """
    run = opened(run, trust)
    if to not in WRITERS:
        raise UserError(f"to={to!r} is not an export format; valid are {', '.join(WRITERS)}.")
    suffix, write = WRITERS[to]
    saved = run.find_or_new(step)
    number = saved.step if saved else 0
    path = Path(path).expanduser() if path else run.path / "exports" / f"step_{number:09d}{suffix}"
    if path.suffix != suffix:
        raise UserError(f"path={str(path)!r} must end in {suffix} for an export to {to}.")
    check_output(path)
    trainer = load_policy(run.config, saved)
    env = make_env(run.config.replace(device="cpu"), N_ENVS, run.config.seed + EVAL_SEED)
    with contextlib.ExitStack() as stack:
        stack.callback(env.close)
        building = stack.enter_context(making(path)) / path.name
        obs, actor = env.reset(seed=run.config.seed + EVAL_SEED), trainer.as_actor()
        fields = dict(leaves("obs", _policy_obs(env, obs)))
        module = PolicyModule(actor, list(fields))
        exported = write(trainer, module, (*fields.values(), *actor.initial_state(N_ENVS)), building)
        about = {"kit": kit.__version__, "env": run.config.env, "env_options": run.config.env_options,
                 "algo": run.config.algo, "step": number, **describe(trainer, env)}  # fmt: skip
        if exported is not None:
            for kind in ("inputs", "memory"):
                entries = {entry["name"]: entry for entry in about[kind]}
                about[kind] = [entries[name] for name in exported.inputs if name in entries]
            about["largest_difference"] = largest = _largest_difference(module, exported, env, obs)
            if not largest <= TOLERANCE:  # NaN, too
                raise UserError(f"{to} cannot hold this policy: its actions differ by {largest:.2g}; export to sb3.")
        write_atomic(path.with_suffix(".json"), json.dumps(about, indent=1))
        building.replace(path)
    return path


def _policy_obs(env: BatchEnv, obs: Obs) -> Obs:
    return pick(obs, env.obs_groups.get(POLICY), bare=False)


def describe(trainer: Trainer, env: BatchEnv) -> dict[str, Any]:
    """Return a JSON-compatible description of inputs and outputs: names, shapes, meaning and unit of each number."""
    info = env.task_info if isinstance(env, TensorEnv) else None
    sees = {f"obs.{name}" if name else "obs": parts for name, parts in info.sees.items()} if info else {}
    action = _entry("action", env.action_space, info.does if info else ())
    if isinstance(env.action_space, spaces.Box):
        action |= {"low": env.action_space.low.tolist(), "high": env.action_space.high.tolist()}
    actor = trainer.as_actor()
    hidden_state = actor.initial_state(1)
    obs_space = pick_space(env.observation_space, env.obs_groups.get(POLICY), bare=False)
    inputs = dict(leaves("obs", obs_space))
    about = {
        "inputs": [_entry(name, space, sees.get(name, ())) for name, space in inputs.items()],
        "memory": [{"name": f"memory_{i}", "shape": list(state.shape[1:])} for i, state in enumerate(hidden_state)],
        "outputs": [action], "control_dt_s": env.control_dt_s,
    }  # fmt: skip
    if (normalizer := trainer.normalizer) is not None and normalizer.norm_obs:
        normalized = dict(leaves("obs", PolicyView(obs_space).space))
        # A group with one entry reaches the policy as a bare tensor, which the normaliser names "obs". The file uses
        # the entry's own name, such as "obs.joints".
        aliases = {"obs": next(iter(normalized))} if "obs" not in normalized else {}
        about["normalizer"] = {"clip": normalizer.clip_obs, "epsilon": normalizer.epsilon} | {
            aliases.get(name, name): {"mean": moments.mean.tolist(), "var": moments.var.tolist()}
            for name, moments in normalizer.obs_moments.items()
            if aliases.get(name, name) in normalized
        }
    return about


def _entry(name: str, space: spaces.Space, parts: Sequence[Any]) -> dict[str, Any]:
    about = {"name": name, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    return about | ({"parts": [part._asdict() for part in parts]} if parts else {})


@torch.no_grad()
def _largest_difference(module: PolicyModule, exported: ExportedFunction, env: BatchEnv, obs: Obs) -> float:
    """Return the largest difference between actions of policy and export, in batches of `N_ENVS` envs and of one."""
    differences = []
    for step in islice(play(env, module.actor, obs), STEPS):
        inputs = [*(field for _, field in leaves("obs", _policy_obs(env, step.obs))), *step.hidden_state]
        for n in (N_ENVS, 1):
            action = exported.run(*(tensor[:n] for tensor in inputs))[0]
            differences.append((module.actor.clip(step.action[:n]) - action).abs().max())
    return float(torch.stack(differences).max())  # NaN if one is NaN


def _torchscript(
    trainer: Trainer, module: PolicyModule, example: tuple[torch.Tensor, ...], path: Path
) -> ExportedFunction:
    with warnings.catch_warnings():  # hide tracer warnings about `if` on shapes, which are constant here
        warnings.simplefilter("ignore")
        torch.jit.trace(module, example, check_trace=False).save(str(path))
        loaded = torch.jit.load(str(path))
    return ExportedFunction(loaded, _input_names(module, example))


def _onnx(trainer: Trainer, module: PolicyModule, example: tuple[torch.Tensor, ...], path: Path) -> ExportedFunction:
    need("onnx", "deploy")
    onnxruntime = need("onnxruntime", "deploy")
    inputs = _input_names(module, example)
    outputs = ["action", *(f"{name}_after" for name in inputs[len(module.names) :])]
    batched = {name: {0: "n"} for name in inputs + outputs}
    with warnings.catch_warnings():  # hide tracer warnings, and advice to use the newer exporter, which fails on SB3
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, example, str(path), dynamo=False, input_names=inputs, output_names=outputs, dynamic_axes=batched
        )
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    used = [entry.name for entry in session.get_inputs()]  # the exporter drops inputs that do not affect the output

    def run(*values: torch.Tensor) -> Sequence[torch.Tensor]:
        named = {name: value.numpy() for name, value in zip(inputs, values, strict=True) if name in used}
        return [torch.from_numpy(value) for value in session.run(outputs, named)]

    return ExportedFunction(run, used)


def _input_names(module: PolicyModule, example: tuple[torch.Tensor, ...]) -> list[str]:
    return [*module.names, *(f"memory_{i}" for i in range(len(example) - len(module.names)))]


def _sb3(trainer: Trainer, module: PolicyModule, example: tuple[torch.Tensor, ...], path: Path) -> None:
    trainer.save(path)


def _safetensors(trainer: Trainer, module: PolicyModule, example: tuple[torch.Tensor, ...], path: Path) -> None:
    from safetensors.torch import save_file

    kept = {name: value.contiguous().clone() for name, value in trainer.policy.state_dict().items()}
    if isinstance(trainer.policy, GroupedPolicy):
        kept = {name: value for name, value in kept.items() if not name.startswith(CRITICS)}
    save_file(kept, path)


Writer = Callable[[Trainer, PolicyModule, tuple[torch.Tensor, ...], Path], ExportedFunction | None]
WRITERS: dict[str, tuple[str, Writer]] = {
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
    "sb3": (".zip", _sb3),
    "safetensors": (".safetensors", _safetensors),
}
"""Format -> file suffix and writer. The ONNX and TorchScript writers return the exported function, the others None."""
