"""Trust: modules that a run's or a downloaded config names are imported only if the user trusts them.

A module name that the user types may be imported. A name read from a file is a `FromFile` string; copies of the config
keep this mark. `check` runs before every import of a module by name. Trust holds for this process and its child
processes (`trusted_environment`). It is also stored on this machine, as a pair of module name and file: a module of the
same name in another file is not trusted.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.machinery import NamespaceLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

from kit.errors import UserError, not_python

NAMES = ("env", "algo", "encoder")
"""Fields of RunConfig that may name a module, as module:NAME."""
OWN = ("kit", "gymnasium")
"""Packages that are always trusted."""
ROBOT_TASKS = ("joystick", "reach")
"""Envs "joystick:ROBOT" and "reach:ROBOT" are kit's own tasks; ROBOT is a model, not a module."""
TRUSTED_VARIABLE = "KIT_TRUSTED"
"""Environment variable of child processes: the modules and names that their parent trusts, one per line."""

_seen: dict[str, int] = {}
"""Module -> the time of its file when it was imported."""
_PROCESS_START_NS = time.time_ns()
training = set[object]()
"""Sessions that train in this process."""
_trusted = set(filter(None, os.environ.get(TRUSTED_VARIABLE, "").split("\n")))


class Config(Protocol):
    """The fields of RunConfig that may name modules."""

    @property
    def env(self) -> str: ...
    @property
    def algo(self) -> str: ...
    @property
    def encoder(self) -> str: ...


class FromFile(str):
    """A module name read from the file `source`, which messages call `shown`.

    `of_run`: the file is the config of a saved run, whose modules always need trust.

    Pickling drops the mark, because the sending process has already checked the name.
    """

    source: Path
    shown: str
    of_run: bool

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __deepcopy__(self, memo: object) -> FromFile:
        return self


def mark_source(
    fields: Mapping[str, Any], source: str | Path, of_run: bool = False, shown: str = ""
) -> dict[str, Any]:
    """Return a copy of RunConfig `fields` with module names marked (`FromFile`) as read from the file `source`.

    `shown`: what messages call the file; default: its path.
    """
    import yaml

    yaml.SafeDumper.add_representer(FromFile, yaml.SafeDumper.represent_str)
    marked = dict(fields)
    for field in NAMES:
        if isinstance(marked.get(field), str) and not isinstance(marked[field], FromFile):
            marked[field] = name = FromFile(marked[field])
            name.source = Path(source).absolute()
            name.shown = shown or str(name.source)
            # a file beside a folder "checkpoints" is a run's config
            name.of_run = of_run or name.source.with_name("checkpoints").is_dir()
    return marked


def permit(config: Config, trust: bool = False) -> None:
    """Raise `UserError` unless the modules that `config` names may be imported; `trust` allows them from now on."""
    for field in NAMES:
        name: str = getattr(config, field)
        if trust:
            _trusted.add(_key(name))
        module = name.partition(":")[0]
        if ":" in name and not (field == "env" and module in ROBOT_TASKS):  # joystick:ROBOT names no module
            check(name, module)


def _key(name: str) -> str:
    """Return the text that stands for `name` in `_trusted`: with a colon, to tell it from a module ("Ant:")."""
    return str(name) if ":" in name else f"{name}:"


def check(name: str, module: str) -> None:
    """Raise `UserError` unless `module`, the module part of `name`, may be imported.

    Runs no code of the module. Records trust that is granted, for this process and on disk. Adds the working directory
    to the module path.
    """
    if str(Path.cwd()) not in sys.path:  # so that modules beside the notebook can be found, as in an ordinary notebook
        sys.path.append(str(Path.cwd()))
    if module in _trusted or module.partition(".")[0] in OWN:
        return
    file = _file(module)
    if isinstance(name, FromFile) and _key(name) not in _trusted and module not in sys.modules:
        needs_trust = name.of_run or _downloaded_with(file, name.source.parent)
        if needs_trust and file is None:
            raise UserError(
                f"{name.shown} names the module {module!r} ({str(name)!r}), and there is no such module on the path "
                f"or in {Path.cwd()}; put its file there."
            )
        if needs_trust and f"{module}\t{file}" not in _remembered():
            raise UserError(
                f"{name.shown} names the module {module!r} ({str(name)!r}), and importing it runs its code; "
                "if you trust it, pass trust=True (--trust), or import it first."
            )
    _trusted.add(module)
    if (changed := _modified_ns(file)) is not None:
        # a notebook cell may have imported the module before the file last changed
        _seen[module] = min(changed, _PROCESS_START_NS) if module in sys.modules else changed
    _remember(f"{module}\t{file}")


def load(field: str, value: str, target: str, expected: str) -> Any:
    """Import `target`, "module:NAME", and return the object of that name. Raises `UserError`.

    For messages: `value` of the RunConfig field `field`, and what a valid value looks like (`expected`).
    """
    module, _, attribute = target.partition(":")
    check(value, module)
    try:
        return getattr(importlib.import_module(module), attribute)
    except SyntaxError as error:
        raise not_python(f"{field}={value!r}", error) from None
    except (ImportError, AttributeError) as error:
        raise UserError(f"{field}={value!r} cannot be loaded ({error}); write {expected}.") from None


def named_files(config: Config) -> dict[str, Path]:
    """Return module -> file for the modules that `config` names; only those that may be imported and have a file."""
    modules = {name.partition(":")[0] for name in (config.env, config.algo, config.encoder) if ":" in name}
    files = {module: _file(module) for module in modules & _trusted}
    return {module: Path(file) for module, file in files.items() if file and Path(file).is_file()}


def refresh(config: Config) -> None:
    """Reload the modules that `config` names if their files have changed. Raises `UserError`.

    A notebook's kernel would otherwise keep the older class: `%autoreload` acts on cells, not on a panel's buttons. The
    new module takes the old one's place; objects of the old one stay as they are. Nothing happens while this process
    trains (`training`), because a run must not change its task.
    """
    files = {} if training else named_files(config)
    for field in NAMES:
        name: str = getattr(config, field)
        module = name.partition(":")[0]
        old, changed = sys.modules.get(module), _modified_ns(files.get(module))
        if old is None or changed is None or _seen.get(module, changed) == changed:
            continue
        file = files[module]  # not what `sys.path` finds now: this file is trusted
        spec = spec_from_file_location(module, file, submodule_search_locations=getattr(old, "__path__", None))
        assert spec is not None
        sys.modules[module] = new = module_from_spec(spec)
        try:
            # from the source: cached bytecode may be stale if the file changed within a second
            exec(compile(file.read_bytes(), str(file), "exec"), new.__dict__)
        except BaseException as error:
            sys.modules[module] = old
            if isinstance(error, SyntaxError):
                raise not_python(f"{field}={name!r}", error) from None
            if isinstance(error, Exception):
                reason = f"{type(error).__name__}: {error}"
                raise UserError(f"{field}={name!r} cannot be loaded ({reason}); correct {file}.") from None
            raise
        _seen[module] = changed


def _modified_ns(file: str | Path | None) -> int | None:
    """Return the time of the file's last change, ns; None without a file, also while an editor replaces it."""
    with contextlib.suppress(OSError):
        return Path(file).stat().st_mtime_ns if file else None
    return None


def trusted_environment() -> dict[str, str]:
    """Return environment variables that make a child process trust the same modules."""
    return {TRUSTED_VARIABLE: "\n".join(sorted(_trusted))}


def _downloaded_with(file: str | None, folder: Path) -> bool:
    """Return whether `file` was probably downloaded together with the config in `folder`.

    So it is if one of its parent folders, below the working directory, is `folder` or a run's. The working directory is
    on the module path, so a dotted name can import files from its subfolders.
    """
    cwd = Path.cwd()
    subfolders = [parent for parent in Path(file or cwd).parents if cwd in parent.parents]
    return folder in subfolders or any((parent / "config.yaml").is_file() for parent in subfolders)


def _file(module: str) -> str | None:
    """Return the file that `import module` would execute, without executing anything; None if unknown."""
    spec, path = None, None
    parts = module.split(".")
    for name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
        if name in sys.modules:
            spec, path = sys.modules[name].__spec__, getattr(sys.modules[name], "__path__", None)
            continue
        try:
            specs = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
            spec = next((found for found in specs if found is not None), None)
        except Exception:  # a third-party finder may fail on a package whose parent is not imported
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if spec.loader is None or isinstance(spec.loader, NamespaceLoader):
            importlib.import_module(name)  # a namespace package has no code of its own
    return None if spec is None else spec.origin


def _trust_file() -> Path:
    """Return the path of this user's list of trusted modules; each line is module, tab, file."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "kit/trusted-modules"


def _remembered() -> list[str]:
    with contextlib.suppress(OSError, RuntimeError, UnicodeDecodeError):
        return _trust_file().read_text().splitlines()
    return []


@cache
def _remember(line: str) -> None:
    """Add `line` to the trust file. If the file cannot be written, the module must be trusted again next time."""
    if not line.endswith("\tNone") and line not in _remembered():
        with contextlib.suppress(OSError, RuntimeError):
            _trust_file().parent.mkdir(parents=True, exist_ok=True)
            with _trust_file().open("a") as file:
                file.write(line + "\n")
