"""Which env a name means, here and in child processes. Names are looked up without loading torch or MuJoCo."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from kit import trust
from kit.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kit.config import RunConfig
    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Groups
    from kit.envs.task import Task

_TASKS = {
    "Ant": "kit.tasks.ant:Ant",
    "Dishwashing": "kit.tasks.dishwashing.task:Dishwashing",
    "DishwashingVideo": "kit.tasks.dishwashing.vision:DishwashingVideo",
    "G1Joystick": "kit.tasks.joystick.robots:G1Joystick",
    "Go1Joystick": "kit.tasks.joystick.robots:Go1Joystick",
    "Mission": "kit.tasks.mission.task:Mission",
    "Reach": "kit.tasks.reach.task:Reach",
    "ReachVision": "kit.tasks.reach.vision:ReachVision",
}
"""Task name -> module:class; the module is imported when the task is made."""
MOVED = {
    "kit.envs.ant": "kit.tasks.ant",
    "kit.envs.dishwashing": "kit.tasks.dishwashing.task",
    "kit.envs.dishwashing_video": "kit.tasks.dishwashing.vision",
    "kit.envs.joystick_robots": "kit.tasks.joystick.robots",
    "kit.envs.mission": "kit.tasks.mission.task",
    "kit.envs.reach": "kit.tasks.reach.task",
    "kit.envs.reach_vision": "kit.tasks.reach.vision",
}
"""Where tasks were until 0.2, as configs of older runs may name them."""
CARRIED = "KIT_REGISTERED_ENV"
"""A variable of child processes: the Gymnasium spec, in JSON, of an env that their parent knows."""


def names() -> list[str]:
    """kit's own tasks."""
    return sorted(_TASKS)


def make_vec(
    env: str,
    n_envs: int = 1,
    device: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    env_options: Mapping[str, Any] | None = None,
) -> BatchEnv:
    """A vector env of `n_envs` worlds.

    `env` is one of kit's tasks ("Reach"; "kit/Reach-v0" is the same), a class of one's own ("my_tasks:Corridor", a
    `Task` or a Gymnasium env) or a Gymnasium id ("Ant-v5", "package:Id-v0"). `env_options` go to its constructor; of a
    task's, `randomize` (`kit.envs.randomize`) and `obs_groups` (`kit.envs.groups`) are known to all.
    `threads` is how many CPU threads share the physics, by default one per usable core.
    """
    if not isinstance(n_envs, int) or n_envs < 1:
        raise UserError(f"n_envs={n_envs!r} must be a whole number of at least 1.")
    found = find(env)
    if _is_task(found):
        from kit.envs.vec import TensorEnv

        return TensorEnv(make_task(env, **env_options or {}), n_envs, device, seed, threads)
    from kit.envs.gymnasium_env import GymnasiumEnv

    return GymnasiumEnv(found, n_envs, device, seed, **env_options or {})


def make_task(name: str, **options: object) -> Task:
    """The task called `name`, built anew with the `options` of its constructor."""
    found = find(name)
    if not _is_task(found):
        raise UserError(f"env={name!r} is a Gymnasium env, not a Task of kit's.")
    return _construct(name, found, options)


class Spaces(NamedTuple):
    """What can be known of an env without making worlds."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    batched: bool
    """Whether it is a Task, whose worlds live on the training device."""
    physics: bool = True
    """Whether a step costs what physics does; a Task without MuJoCo wants thousands of worlds."""
    obs_groups: Groups = MappingProxyType({})
    """Who sees what of the observation; see `BatchEnv.obs_groups`."""


def opponents(env: str, env_options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Those options of a task that name a run whose policy is to play against the one that learns."""
    named = getattr(find(env), "opponents", ())
    return {name: value for name, value in (env_options or {}).items() if name in named and value != "stock"}


def alone(env: str, env_options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without such opponents: for worlds in which nobody plays, or only to see how fast it goes."""
    return {name: value for name, value in env_options.items() if name not in opponents(env, env_options)}


def plays(env: str, env_options: Mapping[str, Any]) -> str:
    """The option under which a policy of this task would play against another, or nothing."""
    parts = getattr(find(env), "opponents", ())
    return str(env_options.get("side", parts[0])) if parts else ""


def describe(env: str, env_options: Mapping[str, Any] | None = None) -> Spaces:
    """The spaces of one world as training sees them. Raises `UserError` if the env cannot be made."""
    return _describe(env, json.dumps(env_options or {}, sort_keys=True))


@functools.lru_cache(maxsize=32)
def _describe(env: str, options: str) -> Spaces:
    found = find(env)
    if _is_task(found):
        task = _construct(env, found, json.loads(options))
        from kit.envs.groups import delivery

        given = delivery(task)
        return Spaces(given.observation_space, task.action_space, True, hasattr(task, "model"), given.obs_groups)
    from kit.envs.gymnasium_env import GymnasiumEnv

    one = GymnasiumEnv(found, 1, **json.loads(options))
    one.close()
    return Spaces(one.observation_space, one.action_space, False, obs_groups=one.obs_groups)


def find(env: str) -> type[Task] | type[gymnasium.Env] | EnvSpec:
    """What `env` names; nothing is built. Raises `UserError` if it names nothing."""
    name = env.removeprefix("kit/").removesuffix("-v0") if env.startswith("kit/") else env
    if name in _TASKS:
        module, _, attribute = _TASKS[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    module, colon, attribute = env.partition(":")
    module = MOVED.get(module, module)
    if colon and attribute.startswith("kit/"):
        return find(attribute)
    own = getattr(_import(env, module), attribute, None) if colon else None
    if isinstance(own, type) and (issubclass(own, gymnasium.Env) or _is_task(own)):
        if own.__module__ == "kit.envs.gym":  # its option names an env once more
            raise UserError(f"env={env!r} is a view of a task; name the task itself.")
        return own
    if (carried := os.environ.get(CARRIED)) and (spec := EnvSpec.from_json(carried)).id not in gymnasium.registry:
        gymnasium.registry[spec.id] = spec
    try:
        spec = gymnasium.spec(attribute if colon else env)  # its module, once imported, has registered it
    except gymnasium.error.Error:
        raise UserError(_unknown(env)) from None
    if isinstance(spec.entry_point, str):
        trust.check(env, spec.entry_point.partition(":")[0])
    return spec


def carry(config: RunConfig) -> dict[str, str]:
    """Environment variables with which a child process finds what `config` names as this one does: modules beside the
    notebook, those that are trusted, and ids registered here. Raises `UserError` for an env that no other process can
    make, and for a module that is not trusted."""
    trust.permit(config)
    env, found = config.env, find(config.env)
    paths = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(str(Path(p or ".").resolve()) for p in sys.path))}
    paths |= trust.trusted_environment()
    if not isinstance(found, EnvSpec) or found.id.startswith("kit/"):
        return paths
    point: Any = found.entry_point
    if callable(point) and point.__module__ != "__main__":
        found = dataclasses.replace(found, entry_point=f"{point.__module__}:{point.__qualname__}")
    if found.entry_point is None or callable(found.entry_point):
        raise UserError(
            f"env={env!r} is made by code of this notebook alone, which a training process cannot import; put it into "
            "a module beside the notebook and name it module:Class."
        )
    return {**paths, CARRIED: found.to_json()}


def _is_task(found: object) -> TypeIs[type[Task]]:
    """Without loading kit.envs.task, and with it torch and MuJoCo: whoever has a Task has loaded it."""
    module = sys.modules.get("kit.envs.task")
    return module is not None and isinstance(found, type) and issubclass(found, module.Task)


def _construct(name: str, task: Any, options: Mapping[str, object]) -> Task:
    from kit.envs import groups, randomize

    random, listed = options.get(randomize.OPTION), options.get(groups.OPTION)
    options = {key: value for key, value in options.items() if key not in (randomize.OPTION, groups.OPTION)}
    try:
        made: Task = task(**options)
    except TypeError as error:
        if not options:
            raise
        raise UserError(f"env_options={dict(options)!r} do not suit env={name!r}: {error}.") from None
    if not hasattr(made, "name"):
        made.name = name
    if random is not None:
        made.randomized = randomize.chosen(name, made.random_terms, random)
    if listed is not None:
        made.groups = groups.requested(name, made, listed)
    return made


def _import(env: str, module: str) -> Any:
    """A module on the path or in the present folder, where notebooks lie."""
    trust.check(env, module)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise UserError(f"env={env!r}: {module} needs {error.name}, which is not installed.") from None
        raise UserError(
            f"env={env!r}: there is no module {module!r} on the path or in {Path.cwd()}; put {module}.py there."
        ) from None


def _unknown(env: str) -> str:
    ids = [*_TASKS, *gymnasium.registry]
    folded = {name.lower(): name for name in ids}
    close = [folded[name] for name in difflib.get_close_matches(env.lower(), folded, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "any registered Gymnasium id works too."
    return f"env={env!r} is unknown; kit's own are {', '.join(names())}; {hint}"


for _name in _TASKS:
    gymnasium.register(
        f"kit/{_name}-v0",
        entry_point="kit.envs.gym:TaskEnv",
        vector_entry_point="kit.envs.gym:TaskVectorEnv",
        kwargs={"task": _name},
    )
