"""RunConfig: the validated settings of a run.

The notebook's panel, YAML files, the command line and papermill all use it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kit.errors import UserError, check_whole, suggest
from kit.trust import mark_source

MAX_SEED = 2**32 - 1 - 3_000_003
"""Largest seed of a run: numpy's largest minus `RECORD_SEED` (`kit.runs.demonstrations`), the largest constant that is
added to a seed."""
VERSION = 1
"""Format version of config.yaml. A config written by a newer version is refused."""

ALGOS = {
    "PPO": "kit.trainers.ppo",
    "RecurrentPPO": "kit.trainers.recurrent_ppo",
    "A2C": "kit.trainers.a2c",
    "SAC": "kit.trainers.sac",
    "TD3": "kit.trainers.td3",
    "CrossQ": "kit.trainers.crossq",
    "Distill": "kit.trainers.distill",
    "BC": "kit.trainers.bc",
}
"""Algorithm name -> module. The module's constant `ALGORITHM` defines the algorithm."""
ENCODERS = (
    "auto", "mlp", "nature_cnn", "multi_camera", "simple2dcnn", "clip_cnn", "simple3dcnn", "r3d18", "timesformer",
)  # fmt: skip
PRESETS = ("auto", "sb3", "fast", "heavy", "beast")
STOCK = "stock"
"""Value of an option that names a team's policy, such as Mission's `defenders`: the team follows fixed rules."""
OF_BATCHES = ("jobs", "seeds", "sweep", "grid", "notebook")
"""Keys of files for `kit batch` that no RunConfig has."""
SCRIPTED = "scripted"
"""Value of `teacher` that names the task's scripted policy."""
MAY_CHANGE_ON_RESUME = (
    "total_steps", "device", "store", "runs_dir", "checkpoint_every", "eval_every", "session_limit", "disk_budget",
    "tracker", "processes",
)  # fmt: skip
"""Fields that `kit.resume` may change."""
LEAST = {
    "total_steps": 1, "processes": 1, "seed": 0, "n_envs": 1, "threads": 1, "eval_every": 0, "checkpoint_every": 1,
}  # fmt: skip
"""Field -> its smallest valid whole number."""


def _setting(default: Any, help: str) -> Any:
    """Declare a field of `RunConfig`. The panel and the command line show the `help` text."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run: what to train, how and where. `kit.resolve` replaces every "auto" by the value used."""

    env: str = _setting(
        "Reach", "the task: one of kit's (Reach, Ant, ...), a Gymnasium id (Ant-v5, package:Id-v0), or module:Class"
    )
    env_options: dict[str, Any] = field(default_factory=dict, metadata={"help": "options of the task"})
    algo: str = _setting("PPO", f"the algorithm: {', '.join(ALGOS)}, or module:NAME")
    encoder: str = _setting(
        "auto", "network from observations to features: auto, a name from `kit encoders`, or module:Class"
    )
    teacher: str | None = _setting(
        None, "who teaches, for Distill: a run, RUN@STEP or its URL; NAME.onnx; or scripted, the task's own policy"
    )
    dataset: str | None = _setting(
        None, "recorded episodes, for BC, SAC, TD3, CrossQ: a folder of `kit record`, or its URL in a store"
    )
    preset: str = _setting(
        "auto", "auto: tuned for task and machine; sb3: SB3's defaults; fast, heavy, beast: larger networks, for GPUs"
    )
    total_steps: int = _setting(
        100_000, "environment steps to train for, summed over all envs; usual: 100,000 to 100 million"
    )
    n_envs: int | str = _setting(
        "auto", "number of envs simulated in parallel; usual: 4 to 64, without physics or on a GPU up to 4,096"
    )
    seed: int = _setting(0, "seed of every random generator; usual: 0 to 9, another for each repetition")
    device: str = _setting(
        "auto", "cpu, cuda, or auto: cuda if there is a GPU and it speeds up the task or the network"
    )
    store: str | None = _setting(
        None, "where to copy checkpoints: a path, drive:folder, hf://user/repo, s3://bucket/prefix"
    )
    run_name: str | None = _setting(None, "folder name of the run; if empty, made from env, algo, seed and time")
    runs_dir: str = _setting("runs", "the folder on this machine in which runs are stored")
    checkpoint_every: int | str = _setting(
        "1m", 'how often to write a checkpoint: a number of steps, or a time; usual: "1m" to "10m"'
    )
    eval_every: int | str = _setting(
        "auto", "steps between evaluations, one before training; 0: none; auto (usual): a tenth of total_steps"
    )
    session_limit: str | None = _setting(
        None, 'stop after a time such as "11h30m", with a checkpoint to resume from; usual: "1h" to "12h"'
    )
    disk_budget: str = _setting(
        "10GB", "disk space for checkpoints; the newest and the best are always kept; usual: 1GB to 100GB"
    )
    tracker: str | None = _setting(None, "also log metrics to a tracker: wandb:PROJECT or trackio:PROJECT")
    overrides: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "hyperparameters by Stable-Baselines3's names, such as gamma"}
    )
    threads: int | str = _setting(
        "auto", "CPU threads for physics and networks; usual: 1 to the number of cores; auto: all cores"
    )
    processes: int = _setting(1, "processes for distributed training, each on its own GPU; PPO only; usual: 1 to 8")

    def __post_init__(self) -> None:
        for name, kind in _field_types().items():
            value = getattr(self, name)
            if isinstance(value, float) and value.is_integer() and int in _alternatives(kind):
                value = int(value)  # a float such as 1e6 is accepted where a field takes a whole number
                object.__setattr__(self, name, value)
            if isinstance(value, bool) or not isinstance(value, _alternatives(kind)):
                raise UserError(f"{name}={value!r} is {_type_name(value)}; give {_expected(kind)}.")
        for name in ("overrides", "env_options"):
            object.__setattr__(self, name, _plain(name, getattr(self, name)))
        for name, valid in (("algo", ALGOS), ("encoder", ENCODERS), ("preset", PRESETS)):
            object.__setattr__(self, name, _choice(name, getattr(self, name), tuple(valid)))
        if self.device not in ("auto", "cpu") and not re.fullmatch(r"cuda(:\d+)?", self.device):
            raise UserError(f"device={self.device!r} is not a device; use auto, cpu, cuda or cuda:0.")
        for name, least in LEAST.items():
            value = getattr(self, name)
            text = value == "auto" or (name == "checkpoint_every" and isinstance(value, str))
            if not text:
                check_whole(name, value, least)
        if self.seed > MAX_SEED:
            raise UserError(f"seed={self.seed} is too large; the largest is {MAX_SEED}.")
        for name in ("checkpoint_every", "session_limit"):
            if isinstance(value := getattr(self, name), str):
                seconds(name, value, "a number of steps or a time" if name == "checkpoint_every" else "a time")
        byte_count("disk_budget", self.disk_budget)
        if self.tracker is not None and not re.fullmatch(r"(wandb|trackio):[\w.-]+", self.tracker):
            raise UserError(f"tracker={self.tracker!r} is not a tracker; write wandb:PROJECT or trackio:PROJECT.")
        if self.run_name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.run_name):
            raise UserError(f"run_name={self.run_name!r} cannot name a folder; use letters, digits, '.', '_' and '-'.")

    # -- constructors -----------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Build a config from a mapping of field names to values. Raises `UserError` for an unknown name."""
        values = dict(values)
        version = values.pop("version", VERSION)
        if not isinstance(version, int):
            raise UserError(f"version={version!r} of this config is not a whole number; write version: {VERSION}.")
        if version > VERSION:
            raise UserError(f"version={version} of this config is newer than {VERSION}; update kit to open it.")
        names = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise UserError(
                    f"{name}={values[name]!r} is not a field of RunConfig; {suggest(str(name), names)}; an algorithm's "
                    "hyperparameters belong in overrides, such as overrides: {gamma: 0.99}."
                )
        return cls(**values)

    @classmethod
    def load(cls, path: str | Path, of_run: bool = False, shown: str = "") -> RunConfig:
        """Load a YAML file. `of_run`: the file is a run's config.yaml, which kit wrote. `shown`: its name in messages.

        The config records that its module names came from this file; `kit.trust` asks before importing the modules.
        """
        config = cls._from_yaml(read_yaml(path, exponents=not of_run), shown or path)
        return config.replace(**mark_source(config.to_dict(), path, of_run, shown))

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        """Parse a config from YAML text; the inverse of `to_yaml`."""
        return cls._from_yaml(parse_yaml(text, "this text"), "this text")

    @classmethod
    def _from_yaml(cls, values: Any, source: str | Path) -> RunConfig:
        if not isinstance(values, dict):
            raise UserError(
                f"{source} is {_type_name(values)}, not a mapping of fields; write lines such as `env: Reach`."
            )
        if of_batch := [key for key in OF_BATCHES if key in values]:
            raise UserError(
                f"{source} has {', '.join(of_batch)}, as a file for many runs; train it with `kit batch`, or leave out "
                "what is not a field of RunConfig."
            )
        return cls.from_dict(values)

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with `changes`."""
        return RunConfig.from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def non_defaults(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, and always `env`."""
        default = RunConfig().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != default[name] or name == "env"}

    def to_yaml(self) -> str:
        return dump_yaml({"version": VERSION, **self.to_dict()})

    @staticmethod
    def from_text(name: str, text: str) -> Any:
        """Parse `text`, typed by the user, as the value of the field `name`.

        1e6, 400k and 1,000,000 are numbers, mappings are JSON, and an empty text or "none" is None where the field
        allows it.
        """
        kinds, text = _alternatives(_field_types()[name]), text.strip()
        if dict in kinds:
            return _mapping(name, text)
        if text.lower() in ("", "none", "null") and types.NoneType in kinds:
            return None
        if int in kinds and re.fullmatch(r"\d{1,3}\.\d{3}", text):
            thousands = text.replace(".", "")
            raise UserError(f"{name}={text!r} may mean {thousands} or {float(text):g}; write it without a point.")
        return number(text) if int in kinds else text


def read_yaml(path: str | Path, exponents: bool = True) -> Any:
    """Load a YAML file; see `parse_yaml`. Raises `UserError` if the file is missing or cannot be read safely."""
    try:
        return parse_yaml(Path(path).read_text(), path, exponents)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a YAML file with RunConfig's fields.") from None
    except (UnicodeDecodeError, OSError) as error:
        raise _not_yaml(path, error) from None


def parse_yaml(text: str, source: str | Path, exponents: bool = True) -> Any:
    """Parse the YAML `text`. Raises `UserError`, which names `source`, if the text cannot be read safely.

    1e6 and 3e-4 are numbers, as in YAML 1.2. With `exponents=False` they are texts, as in YAML 1.1. Configs of runs
    are read this way, because older versions of kit wrote a run_name such as 1e6 without quotes.
    """
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise UserError(f"{source} uses YAML aliases (*name), which can grow without bound; write values out.")
        return yaml.load(text, _yaml_classes()[0] if exponents else yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _not_yaml(source, error) from None


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Write `values` as YAML that `parse_yaml` reads back unchanged: a text such as 1e6 is quoted."""
    import yaml

    return yaml.dump(values, Dumper=_yaml_classes()[1], sort_keys=False)


@cache
def _yaml_classes() -> tuple[Any, Any]:
    """Return subclasses of PyYAML's SafeLoader and SafeDumper that read 1e6 as a number and quote the text "1e6"."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = set[str]()
            for key, _ in node.value:
                if isinstance(key.value, str) and key.value in keys:  # PyYAML keeps the last value silently
                    reason = f"{key.value} is given twice"
                    raise yaml.constructor.ConstructorError(problem=reason, problem_mark=key.start_mark)
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    class Dumper(yaml.SafeDumper):
        pass

    pattern = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
    for each in (Loader, Dumper):
        each.add_implicit_resolver("tag:yaml.org,2002:float", pattern, list("-+.0123456789"))
    return Loader, Dumper


def _not_yaml(source: str | Path, error: Exception) -> UserError:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)  # of PyYAML
    reason = f"line {mark.line + 1}: {problem}" if problem and mark else str(error).splitlines()[0]
    return UserError(f"{source} cannot be read as YAML ({reason}); write lines such as `env: Reach`.")


def seconds(name: str, value: str, expected: str = "a time") -> float:
    """Parse a time such as "90s", "5m" or "11h30m" into seconds; errors name the field and what is `expected`."""
    match = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", value.strip())
    parts = [float(part or 0) for part in match.groups()] if match and value.strip() else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=False))
    if total <= 0:
        raise UserError(f'{name}={value!r} is not {expected}; write a time like "30s", "5m" or "11h30m".')
    return total


def byte_count(name: str, value: str) -> int:
    """Parse an amount such as "500MB" or "10GB" into bytes; errors name the field `name`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MGT])B", value.strip())
    if not match or float(match[1]) <= 0:
        raise UserError(f'{name}={value!r} is not an amount; write it like "500MB" or "10GB".')
    return int(float(match[1]) * {"M": 1e6, "G": 1e9, "T": 1e12}[match[2]])


def default_name(config: RunConfig) -> str:
    """Return a run name such as reach-ppo-s0-20261121-090000; the time is in UTC."""
    kind, _, rest = config.env.partition(":")
    task = f"{kind} {Path(rest).stem}" if "/" in rest else config.env  # of joystick:PATH, only the file's name
    env, algo = (re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() for text in (task, config.algo))
    return f"{env}-{algo}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"


def _choice(name: str, value: str, valid: Sequence[str]) -> str:
    """Return the entry of `valid` that equals `value`, ignoring case. Raises `UserError` if there is none.

    An algorithm or encoder of the form module:NAME is returned unchanged.
    """
    known = {word.lower(): word for word in valid}
    if value.lower() not in known and not (name in ("algo", "encoder") and re.fullmatch(r"[\w.]+:\w+", value)):
        raise UserError(f"{name}={value!r} is unknown; {suggest(value, valid)}.")
    return known.get(value.lower(), value)


def _mapping(name: str, text: str) -> dict[str, Any]:
    """Parse `text`, the value of the field `name`, as a JSON mapping; empty text is an empty mapping."""
    example = """'{"gamma": 0.98}'""" if name == "overrides" else """'{"size": 64}'"""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(f"{name}={text!r} is not JSON ({error}); write {example}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{name}={text!r} is not a JSON mapping; write {example}.")
    return value


def number(text: str) -> int | float | str:
    """Parse a number such as 1e6, 400k or 1,000,000. Return any other text unchanged; the caller validates it.

    A decimal comma is not accepted, because 1,500 would be ambiguous.
    """
    if "," in text and not re.fullmatch(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?[kM]?", text):
        return text
    match = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?)([kM])", text)
    digits = (match[1] + {"k": "e3", "M": "e6"}[match[2]] if match else text).replace(",", "")
    for kind in (int, float):
        try:
            return kind(digits)
        except ValueError:
            continue
    return text


def with_point(value: Any) -> str:
    """Return the end of an error message, such as "; write 0.9, with a point", for a decimal comma; "" otherwise."""
    is_decimal = isinstance(value, str) and re.fullmatch(r"-?\d+,\d+", value)
    return f"; write {value.replace(',', '.')}, with a point" if is_decimal else ""


def to_text(value: Any) -> str:
    """Format a value as a user would type it: text unchanged, anything else as JSON. `RunConfig.from_text` reads it."""
    return value if isinstance(value, str) else json.dumps(value)


def folder_name(text: str) -> str:
    """Replace characters that are not safe in a folder name by hyphens."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


@cache
def _field_types() -> dict[str, Any]:
    """Return field -> type. A form reads all fields after each edit."""
    return typing.get_type_hints(RunConfig)


def _alternatives(kind: Any) -> tuple[type, ...]:
    """Return the classes that a type hint allows: (int, str) for `int | str`, (dict,) for `dict[str, Any]`."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return tuple(typing.get_origin(k) or k for k in kinds)


def _type_name(value: Any) -> str:
    """Return the type of `value` in plain words, such as "a number"; "empty" for None."""
    if value is None:
        return "empty"
    words = {str: "a text", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return words.get(type(value), type(value).__name__)


def _expected(kind: Any) -> str:
    """Describe the values that a type hint allows, such as "a text or None"."""
    if kind is int:
        return "a whole number such as 1000 or 1e3"
    words = {int: "a whole number", str: "a text", dict: "a mapping"}
    return " or ".join(words.get(k, "None") for k in _alternatives(kind))


def _plain(name: str, mapping: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy of `mapping`. Raises `UserError` if JSON cannot represent it."""

    def refuse(value: Any) -> Any:
        raise UserError(f"{name} holds {value!r}, which JSON cannot represent; use numbers, texts, lists and mappings.")

    try:
        return dict(json.loads(json.dumps(mapping, default=refuse)))
    except TypeError as error:  # of a key
        raise UserError(f"{name}={mapping!r}: {error}; use texts as keys.") from None
