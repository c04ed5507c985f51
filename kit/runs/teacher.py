"""Teachers for distillation: the policy of another run, an exported policy, or the task's scripted policy.

The config and weights of a teacher's policy, or its ONNX file, are saved in every checkpoint of the student's run, so
that the student's run resumes on a machine that does not have the teacher.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space, spaces

from kit.config import SCRIPTED, RunConfig
from kit.envs.contract import BatchEnv
from kit.envs.obs import TEACHER, Obs, pick, pick_space
from kit.envs.play import HiddenState, Player, restart
from kit.errors import UserError
from kit.runs.evaluation import Script
from kit.runs.exported import ExportedPolicy, read
from kit.runs.finding import locate_step
from kit.runs.run import Run, load_policy, opened
from kit.trust import mark_source, permit

if TYPE_CHECKING:
    from kit.envs.registry import Spaces


class ScriptedTeacher(Script):
    """The task's scripted policy, which reads the state of the envs and not their observations."""

    def player(self, env: BatchEnv) -> Player:
        """Return the teacher as a player of `env`, for evaluations."""
        return Script(env, self._name)

    def act(self, obs: Obs) -> torch.Tensor:
        return self(obs, ())[0]

    def restart(self, done: torch.Tensor) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class PolicyTeacher:
    """A trained policy as teacher. It acts deterministically in `n` envs.

    `is_bare`: whether its observation is a tensor, not a dict. `saved`: what a checkpoint of the student holds of it.
    """

    def __init__(self, policy: Player, is_bare: bool, n: int, saved: dict[str, Any]) -> None:
        self.policy, self._is_bare, self._saved = policy, is_bare, saved
        self._hidden_state: HiddenState = policy.initial_state(n)

    def player(self, env: BatchEnv) -> Player:
        """Return the teacher as a player of `env`, for evaluations; it sees the group "teacher"."""
        return _GroupPlayer(self, env.obs_groups.get(TEACHER))

    def act(self, obs: Obs) -> torch.Tensor:
        action, self._hidden_state = self.policy(self.own_obs(obs), self._hidden_state)
        return action

    def own_obs(self, obs: Obs) -> Obs:
        """Convert `obs`, the entries of the group "teacher", to the form of the teacher's own env: dict or tensor."""
        return pick(obs, tuple(obs)) if self._is_bare and isinstance(obs, dict) else obs

    def restart(self, done: torch.Tensor) -> None:
        self._hidden_state = restart(self.policy, self._hidden_state, done)

    def state(self) -> dict[str, Any]:
        return self._saved | {f"hidden_state/{i}": x.cpu().clone() for i, x in enumerate(self._hidden_state)}

    def load_state(self, state: dict[str, Any]) -> None:
        saved = tuple(state[f"hidden_state/{i}"].to(now.device) for i, now in enumerate(self._hidden_state))
        if all(then.shape == now.shape for then, now in zip(saved, self._hidden_state, strict=True)):
            self._hidden_state = saved  # else the number of envs has changed, and all start new episodes


class _GroupPlayer:
    """Plays the policy of `teacher` in a student's env. The policy sees the observation entries `names`."""

    def __init__(self, teacher: PolicyTeacher, names: tuple[str, ...] | None) -> None:
        self._teacher, self._names = teacher, names

    def initial_state(self, n: int) -> HiddenState:
        return self._teacher.policy.initial_state(n)

    def __call__(self, obs: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        return self._teacher.policy(self._teacher.own_obs(pick(obs, self._names)), hidden_state)


def make_teacher(config: RunConfig, env: BatchEnv, saved: dict[str, Any] | None) -> ScriptedTeacher | PolicyTeacher:
    """Return the teacher of `config`; `saved`: its state in the run's checkpoint. Raises `UserError`."""
    name, _, script = str(config.teacher).partition(":")
    if name == SCRIPTED:
        return ScriptedTeacher(env, script or None)
    if saved is None:
        if _is_onnx(str(config.teacher)):
            return _exported(config, *read(_path(config)), env)
        teacher_config, policy = _read_run(config)
        check_spaces(config, teacher_config, env)
    elif "onnx" in saved:
        return _exported(config, bytes(saved["onnx"].numpy()), saved["about"], env)
    else:
        teacher_config, policy = saved_config(saved, config.runs_dir), {}
        for path, value in saved.items():
            component, slash, key = path.partition("/")
            if slash and component != "hidden_state":
                policy.setdefault(component, {})[key] = value
    return _trained(teacher_config, policy, env.num_envs, env.device)


def _trained(config: RunConfig, policy: dict[str, Any], n: int, device: torch.device) -> PolicyTeacher:
    """Return the teacher with the weights `policy` of a run with `config`."""
    from kit.trainers.saving import RandomGenerators

    generators = RandomGenerators(torch.device("cpu"))
    before = generators.state()
    trainer = load_policy(config, None)
    generators.load_state(before)  # building a network draws random numbers
    trainer.load_policy(policy)
    weights = {f"{name}/{key}": value for name, values in policy.items() for key, value in values.items()}
    is_bare = not isinstance(trainer.tensor_env.observation_space, spaces.Dict)
    saved = {"config": json.dumps(config.to_dict()), **weights}
    return PolicyTeacher(trainer.as_actor().to(device), is_bare, n, saved)


def _exported(config: RunConfig, content: bytes, about: str, env: BatchEnv) -> PolicyTeacher:
    policy = ExportedPolicy(content, about, f"teacher={config.teacher!r}")
    saved = {"onnx": torch.frombuffer(bytearray(content), dtype=torch.uint8), "about": about}
    return PolicyTeacher(policy, policy.is_bare, env.num_envs, saved)


def _is_onnx(teacher: str) -> bool:
    return teacher.endswith(".onnx")


def _path(config: RunConfig) -> Path:
    return Path(str(config.teacher)).expanduser()


def saved_config(saved: dict[str, Any], runs_dir: str) -> RunConfig:
    """Return the config of a policy teacher from its state in a checkpoint; modules it names need trust."""
    return RunConfig.from_dict(mark_source(json.loads(saved["config"]), runs_dir, of_run=True))


def _read_run(config: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """Return config and policy of the run that `config.teacher` names."""
    run, step = locate_step(str(config.teacher), config.runs_dir)
    return run.config, load_policy(run.config, run.find(step)).policy_state()


def check(config: RunConfig, env: Spaces, trust: bool) -> None:
    """Raise `UserError` if the teacher of `config` does not fit `env`. Makes no envs."""
    if config.teacher is None or config.teacher.partition(":")[0] == SCRIPTED:
        return
    if _is_onnx(config.teacher):
        policy = ExportedPolicy(*read(_path(config)), f"teacher={config.teacher!r}")
        if problem := policy.misfit(_teacher_space(env, as_dict=not policy.is_bare), env.action_space):
            raise UserError(
                f"teacher={config.teacher!r} does not fit env={config.env!r}: {problem}; name a policy whose env fits "
                "the observation group 'teacher'."
            )
        return
    if config.teacher.endswith(".zip") or os.path.isfile(_path(config)):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        valid = "a run (runs/NAME, runs/NAME@STEP or its URL in a store), an ONNX file of kit.export, or 'scripted'"
        raise UserError(f"teacher={config.teacher!r} is a file; name {valid} instead.")
    run, step = locate_step(config.teacher, config.runs_dir, trust)
    check_spaces(config, opened(run, trust).config, env)
    run.find(step)


def check_trust(run: Run, runs_dir: str, trust: bool) -> None:
    """Raise `UserError` unless the modules of the teacher of `run` may be imported.

    The teacher's config is in the run's checkpoint or, before the first one, in the teacher's own run.
    """
    name, saved = str(run.config.teacher), run.latest()
    if name.partition(":")[0] == SCRIPTED or _is_onnx(name):
        return
    if saved is None:
        opened(locate_step(name, runs_dir, trust)[0], trust)
    elif "config" in (state := saved.numbers().get("teacher", {})):
        permit(saved_config(state, runs_dir), trust)


def check_spaces(config: RunConfig, teacher: RunConfig, env: Spaces | BatchEnv) -> None:
    """Raise `UserError` unless the teacher's observations and actions are those of the group "teacher" of `env`."""
    from kit import envs

    theirs = envs.describe(teacher.env, envs.without_opponents(teacher.env, teacher.env_options))
    pairs: list[tuple[str, Space, Space]] = [
        ("sees", theirs.observation_space, _teacher_space(env, isinstance(theirs.observation_space, spaces.Dict))),
        ("acts in", theirs.action_space, env.action_space),
    ]
    for verb, its, ours in pairs:
        if its != ours:
            raise UserError(
                f"teacher={config.teacher!r} was trained on env={teacher.env!r} and {verb} {its}, but the teacher of "
                f"env={config.env!r} {verb} {ours}; name a run whose env fits the observation group 'teacher'."
            )


def _teacher_space(env: Spaces | BatchEnv, as_dict: bool) -> Space:
    return pick_space(env.observation_space, env.obs_groups.get(TEACHER), bare=not as_dict)
