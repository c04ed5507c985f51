"""Look up and make envs by name, in this process and in child processes."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
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
from kit.config import SCRIPTED, STOCK
from kit.errors import UserError, check_names, check_whole, not_python, suggest

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kit.config import RunConfig
    from kit.envs.contract import BatchEnv
    from kit.envs.mirror import Mirror
    from kit.envs.obs import Groups
    from kit.envs.task import Task

_TASKS = {
    "Ant": "kit.tasks.ant:Ant",
    "Dishwashing": "kit.tasks.dishwashing.task:Dishwashing",
    "DishwashingVideo": "kit.tasks.dishwashing.vision:DishwashingVideo",
    "G1Joystick": "kit.tasks.joystick.robots:G1Joystick",
    "G1Legs": "kit.tasks.joystick.robots:G1Legs",
    "Go1Joystick": "kit.tasks.joystick.robots:Go1Joystick",
    "Mission": "kit.tasks.mission.task:Mission",
    "PickAndPlace": "kit.tasks.fetch.task:PickAndPlace",
    "Push": "kit.tasks.fetch.task:Push",
    "Reach": "kit.tasks.reach.task:Reach",
    "ReachVision": "kit.tasks.reach.vision:ReachVision",
    "Slide": "kit.tasks.fetch.task:Slide",
}
"""Task name -> module:Class. The module is imported when the task is looked up."""
_OF_ROBOTS = {"joystick": "kit.tasks.joystick.any_robot:AnyRobot", "reach": "kit.tasks.reach.any_arm:AnyArm"}
"""Tasks for any robot, "joystick:ROBOT" -> module:Class; ROBOT is a name in the MuJoCo Menagerie, or a file."""
MOVED = {
    "kit.envs.ant": "kit.tasks.ant",
    "kit.envs.dishwashing": "kit.tasks.dishwashing.task",
    "kit.envs.dishwashing_video": "kit.tasks.dishwashing.vision",
    "kit.envs.joystick_robots": "kit.tasks.joystick.robots",
    "kit.envs.mission": "kit.tasks.mission.task",
    "kit.envs.reach": "kit.tasks.reach.task",
    "kit.envs.reach_vision": "kit.tasks.reach.vision",
}
"""Module of a task up to kit 0.2 -> its present module, for configs of older runs."""
CARRIED = "KIT_REGISTERED_ENV"
"""Environment variable for child processes: the JSON spec of a Gymnasium env that this process has registered."""


def names() -> list[str]:
    """Return the names of kit's own tasks."""
    return sorted(_TASKS)


def robot_envs() -> list[str]:
    """Return the env names of robots in the MuJoCo Menagerie, such as "joystick:unitree_go2"; [] if not installed."""
    if not importlib.util.find_spec("mujoco_menagerie"):
        return []
    import mujoco_menagerie

    kinds = {"quadruped": "joystick", "humanoid": "joystick", "arm": "reach"}
    robots = [(kinds.get(robot.category), robot.name) for robot in mujoco_menagerie.robots()]
    return sorted(f"{kind}:{name}" for kind, name in robots if kind)


def make_vec(
    env: str,
    n_envs: int = 1,
    device: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    env_options: Mapping[str, Any] | None = None,
) -> BatchEnv:
    """Make a vector env of `n_envs` envs.

    `env` is one of kit's tasks ("Reach" or "kit/Reach-v0"), a task for any robot ("joystick:unitree_go2",
    "reach:arm.xml"), your own class ("my_tasks:Corridor", a `Task` or a Gymnasium env) or a Gymnasium id ("Ant-v5",
    "package:Id-v0"). `env_options` are passed to the env's constructor; every `Task` also accepts `randomize`
    (`kit.envs.randomize`), `curriculum` (`kit.envs.curriculum`) and `obs_groups` (`kit.envs.groups`). `threads` is the
    number of CPU threads for the physics of a `Task`, by default one per usable core.
    """
    check_whole("n_envs", n_envs, 1)
    entry = find(env)
    if _is_task(entry):
        from kit.envs.vec import TensorEnv

        return TensorEnv(make_task(env, **env_options or {}), n_envs, device, seed, threads)
    from kit.envs.gymnasium_env import GymnasiumEnv

    return GymnasiumEnv(entry, n_envs, device, seed, **_free(env, env_options or {}))


def make_task(name: str, /, **options: object) -> Task:
    """Construct the task `name` with the `options` of its constructor."""
    entry = find(name)
    if not _is_task(entry):
        raise UserError(f"env={name!r} is a Gymnasium env, not a kit.envs.Task.")
    return _construct(name, entry, options)


class Spaces(NamedTuple):
    """Spaces and properties of an env that are known without making a batch of envs."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    batched: bool
    """Whether the env is a `Task`: all envs are stepped as one batch, on the training device."""
    physics: bool = True
    """Whether a step simulates MuJoCo physics. Without physics a step is so cheap that thousands of envs pay off."""
    obs_groups: Groups = MappingProxyType({})
    """See `BatchEnv.obs_groups`."""
    groups: tuple[str, ...] = ()
    """Observation groups that the task declares; env_options `obs_groups` selects some."""
    scripts: tuple[str, ...] = ()
    """Values of RunConfig's `teacher` that name the task's scripted policies: "scripted", "scripted:NAME"."""
    frames: Mapping[str, int] = MappingProxyType({})
    """See `BatchEnv.frames`."""
    mirror: Mirror | None = None
    """See `BatchEnv.mirror`."""
    has_camera: bool = True
    unfit: str = ""
    """Why no new run may have these env_options, "" if one may. Older runs that have them can be resumed and played."""


def opponents(env: str, env_options: Mapping[str, Any] | None = None) -> dict[str, list[str]]:
    """Return the runs whose policies play a side of a game, such as {"defenders": ["runs/NAME"]}.

    `env_options` names a run or a list of runs for a side; "stock" stands for the game's own players. A side that is
    "stock" is left out.
    """
    sides = getattr(find(env), "opponents", ())
    named = {name: value for name, value in (env_options or {}).items() if name in sides and value != STOCK}
    return {name: list(value) if isinstance(value, list | tuple) else [value] for name, value in named.items()}


def without_opponents(env: str, env_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `env_options` without the opponents from saved runs, for getting spaces or measuring speed."""
    return {name: value for name, value in env_options.items() if name not in opponents(env, env_options)}


def learner_side(env: str, env_options: Mapping[str, Any]) -> str:
    """Return the side that the learning policy plays, or "" for a task without opponents."""
    sides = getattr(find(env), "opponents", ())
    return str(env_options.get("side", sides[0])) if sides else ""


def describe(env: str, env_options: Mapping[str, Any] | None = None) -> Spaces:
    """Return the spaces and properties of one env. Raises `UserError` if the env cannot be made.

    The result is cached until the env's class or registration changes, as when a notebook reloads an edited module.
    """
    key, entry = (env, json.dumps(env_options or {}, sort_keys=True)), find(env)
    if key not in _described or _described[key][0] is not entry:
        _described[key] = entry, _describe(env, entry, json.loads(key[1]))
    return _described[key][1]


SET_BY_KIT = ("env", "num_envs", "device", "seed")
"""Options of Gymnasium envs that kit itself sets."""
_described: dict[tuple[str, str], tuple[Any, Spaces]] = {}
"""(env, options as JSON) -> class or registration, and its spaces."""


def _describe(env: str, entry: Any, options: dict[str, Any]) -> Spaces:
    if _is_task(entry):
        task = _construct(env, entry, options)
        from kit.envs import curriculum, randomize
        from kit.envs.groups import delivered_obs
        from kit.envs.outputs import SPACES, check_declared

        check_declared(task, SPACES)
        obs = delivered_obs(task)
        unfit = randomize.unfit(task.random_terms, task.randomized) or curriculum.unfit(task.curriculum)
        return Spaces(
            obs.observation_space, task.action_space, True, hasattr(task, "model"), obs.obs_groups,
            tuple(task.obs_groups), _scripts(task), obs.frames, task.mirror,
            bool(task.cameras), unfit,
        )  # fmt: skip
    from kit.envs.gymnasium_env import GymnasiumEnv, check_own

    if isinstance(entry, type):
        check_own(entry, _free(env, options))
    one = GymnasiumEnv(entry, 1, **_free(env, options))
    one.close()
    return Spaces(one.observation_space, one.action_space, False, obs_groups=one.obs_groups)


def _scripts(task: Task) -> tuple[str, ...]:
    from kit.envs.task import Task

    if not task.scripts and type(task).scripted is Task.scripted:
        return ()
    return SCRIPTED, *(f"{SCRIPTED}:{name}" for name in task.scripts)


def find(env: str) -> type[Task] | type[gymnasium.Env] | EnvSpec:
    """Return the class or Gymnasium spec named `env`, without making an env. Raises `UserError` if unknown."""
    name = env.removeprefix("kit/").removesuffix("-v0") if env.startswith("kit/") else env
    if name in _TASKS:
        module, _, attribute = _TASKS[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    module, colon, attribute = env.partition(":")
    if colon and module in trust.ROBOT_TASKS:
        return _for_robot(env)
    module = MOVED.get(module, module)
    if colon and attribute.startswith("kit/"):
        return find(attribute)
    own = getattr(_import(env, module), attribute, None) if colon else None
    if _is_env(own):
        if own.__module__ == "kit.envs.gym":  # this class needs an argument `task`
            raise UserError(f"env={env!r} is the Gymnasium wrapper of kit's tasks; name the task, such as 'Reach'.")
        return own
    if (carried := os.environ.get(CARRIED)) and (spec := EnvSpec.from_json(carried)).id not in gymnasium.registry:
        gymnasium.registry[spec.id] = spec
    try:
        spec = gymnasium.spec(attribute if colon else env)  # the import of `module` above has registered the id
    except gymnasium.error.Error:
        if colon and (valid := _envs_of(module)):
            raise UserError(f"env={env!r}: {module} has no env {attribute!r}; {suggest(attribute, valid)}.") from None
        raise UserError(_unknown(env)) from None
    if isinstance(spec.entry_point, str):
        trust.check(env, spec.entry_point.partition(":")[0])
    return spec


def _for_robot(env: str) -> type[Task]:
    """Return the class of "joystick:ROBOT" or "reach:ROBOT": a subclass with the class attribute `robot`.

    It is cached. If ROBOT is a file that has changed, a new class is made.
    """
    file = Path(env.partition(":")[2]).expanduser()
    return _robot_task(env, (str(file.resolve()), file.stat().st_mtime_ns) if file.is_file() else None)


@functools.cache
def _robot_task(env: str, version: object) -> type[Task]:
    kind, _, robot = env.partition(":")
    module, _, attribute = _OF_ROBOTS[kind].partition(":")
    task = getattr(importlib.import_module(module), attribute)
    made: type[Task] = type(attribute, (task,), {"robot": robot, "name": env, "__doc__": task.__doc__})
    return made


def child_environ(config: RunConfig) -> dict[str, str]:
    """Return environment variables that let a child process make the env of `config`.

    Raises `UserError` for an env defined in the notebook itself, for a module that is not trusted, and for a module
    whose file has a syntax error.
    """
    trust.permit(config)
    for field in ("env", "algo", "encoder"):
        check_source(field, getattr(config, field))
    env, entry = config.env, find(config.env)
    variables = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(str(Path(p or ".").resolve()) for p in sys.path))}
    variables |= trust.trusted_environment()
    if not isinstance(entry, EnvSpec) or entry.id.startswith("kit/"):
        return variables
    point: Any = entry.entry_point
    if hasattr(point, "__qualname__") and point.__module__ != "__main__":  # functools.partial has none
        entry = dataclasses.replace(entry, entry_point=f"{point.__module__}:{point.__qualname__}")
    if entry.entry_point is None or callable(entry.entry_point):
        raise UserError(
            f"env={env!r} is defined in this notebook, which a training process cannot import; put it into a module "
            "beside the notebook and name it module:Class."
        )
    return {**variables, CARRIED: entry.to_json()}


def _is_task(entry: object) -> TypeIs[type[Task]]:
    """Return whether `entry` is a Task class."""
    module = sys.modules.get("kit.envs.task")  # if not imported, no Task class exists
    return module is not None and isinstance(entry, type) and issubclass(entry, module.Task)


def _construct(name: str, task: Any, options: Mapping[str, object]) -> Task:
    from kit.envs import curriculum, groups, randomize

    terms, group_names, stages = (options.get(x.OPTION) for x in (randomize, groups, curriculum))
    of_all = (randomize.OPTION, groups.OPTION, curriculum.OPTION)
    options = {key: value for key, value in options.items() if key not in of_all}
    _check_names(name, task, options)
    if lacking := sorted(getattr(task, "__abstractmethods__", ())):
        # a notebook that fails to reload an edited file keeps an older class, perhaps half written
        check_source("env", name)
        raise UserError(f"env={name!r} lacks {', '.join(lacking)}; write what is missing.")
    try:
        inspect.signature(task).bind(**options)
    except TypeError as error:
        raise UserError(f"env_options={dict(options)!r} do not fit env={name!r}: {error}; give it a value.") from None
    try:
        made: Task = task(**options)
    except TypeError as error:
        if not options:
            raise
        raise UserError(f"env_options={dict(options)!r} do not fit env={name!r}: {error}.") from None
    if not hasattr(made, "name"):
        made.name = name
    if terms is not None:
        made.randomized = randomize.chosen(name, made.random_terms, terms)
    if group_names is not None:
        made.groups = groups.check_option(name, made, group_names)
    if stages is not None:
        own, made.curriculum = made.curriculum, curriculum.chosen(name, made.curriculum, stages)
        made.switched_off = own if made.curriculum is None else None
    return made


def _free(env: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `options` of a Gymnasium env. Raises `UserError` for one that kit itself sets."""
    for name in SET_BY_KIT:
        if name in options:
            raise UserError(f"env_options {name}={options[name]!r}: kit sets this for env={env!r}; leave it out.")
    return options


def options_of(entry: object) -> list[str]:
    """Return the names of `env_options` for an entry of `find`; [] for a Gymnasium id."""
    from kit.envs import curriculum, groups, randomize

    if not isinstance(entry, type):
        return []
    of_all = (randomize.OPTION, curriculum.OPTION, groups.OPTION) if _is_task(entry) else ()
    parameters = inspect.signature(entry).parameters.values()
    named = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return [*named, *of_all] if of_all else [name for name in named if name not in (*SET_BY_KIT, "render_mode")]


def _check_names(env: str, task: type, options: Mapping[str, object]) -> None:
    if not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(task).parameters.values()):
        check_names("env_options", options, env, options_of(task))


def _import(env: str, module: str) -> Any:
    if module.endswith(".py") or "/" in module or not all(module.split(".")):
        raise UserError(f"env={env!r}: {module!r} is no module's name; write module:Class, without folder or .py.")
    trust.check(env, module)
    try:
        return importlib.import_module(module)
    except SyntaxError as error:
        raise not_python(f"env={env!r}", error) from None
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise UserError(f"env={env!r}: {module} needs {error.name}, which is not installed.") from None
        raise UserError(
            f"env={env!r}: there is no module {module!r} on the path or in {Path.cwd()}; put {module}.py there."
        ) from None


def check_source(field: str, name: str) -> None:
    """Raise `UserError` if the imported module of `name`, "module:Class", now has a syntax error in its file.

    `field`: the RunConfig field with this name.
    """
    file = Path(getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) or "")
    if file.suffix == ".py" and file.is_file():
        try:
            compile(file.read_bytes(), file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise not_python(f"{field}={name!r}", error) from None


def _is_env(entry: object) -> TypeIs[type[Task] | type[gymnasium.Env]]:
    return isinstance(entry, type) and (issubclass(entry, gymnasium.Env) or _is_task(entry))


def _envs_of(module: str) -> list[str]:
    """Return the names of the env classes that a module defines."""
    entries = vars(importlib.import_module(module)).items()
    return [name for name, entry in entries if _is_env(entry) and entry.__module__ == module]


def _unknown(env: str) -> str:
    ids = [*_TASKS, *gymnasium.registry]
    folded = {name.lower(): name for name in ids}
    close = [folded[name] for name in difflib.get_close_matches(env.lower(), folded, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "any registered Gymnasium id works too."
    own = f"{', '.join(names())}, joystick:ROBOT and reach:ROBOT"
    return f"env={env!r} is unknown; kit's own are {own}; {hint}"


for _name in _TASKS:
    gymnasium.register(
        f"kit/{_name}-v0",
        entry_point="kit.envs.gym:TaskEnv",
        vector_entry_point="kit.envs.gym:TaskVectorEnv",
        kwargs={"task": _name},
    )
