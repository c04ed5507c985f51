"""No code from a run's folder: what a config that came with a run names is imported only after a word of trust.

A name that somebody types may be any module of theirs. A name that was read from a file is a `FromFile` text, and stays
one wherever the config goes; `check` stands before every import of a module by its name. What is trusted once holds for
this process and those that it starts (`trusted_environment`), and on this machine for the same module in the same file.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import NamespaceLoader
from pathlib import Path
from typing import Any, Protocol

from kit.errors import UserError

NAMES = ("env", "algo", "encoder")
"""Fields of RunConfig that may name a module, as module:NAME."""
OWN = ("kit", "gymnasium")
CARRIED = "KIT_TRUSTED"
"""A variable of child processes: what their parent trusts, one a line."""

_trusted = set(filter(None, os.environ.get(CARRIED, "").split("\n")))


class Config(Protocol):
    """The part of RunConfig that may name modules."""

    @property
    def env(self) -> str: ...
    @property
    def algo(self) -> str: ...
    @property
    def encoder(self) -> str: ...


class FromFile(str):
    """A name read from the file `source`: of a run, or named by the user. Another process gets it as plain text, from
    one that has checked it."""

    source: Path
    of_run: bool

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __deepcopy__(self, memo: object) -> FromFile:
        return self


def mark_source(fields: Mapping[str, Any], source: str | Path, of_run: bool = False) -> dict[str, Any]:
    """A copy of `fields` of RunConfig in which names that may be modules say that they are from `source`."""
    import yaml

    yaml.SafeDumper.add_representer(FromFile, yaml.SafeDumper.represent_str)
    marked = dict(fields)
    for field in NAMES:
        if isinstance(marked.get(field), str) and not isinstance(marked[field], FromFile):
            marked[field] = name = FromFile(marked[field])
            name.source = Path(source).absolute()
            name.of_run = of_run or name.source.with_name("checkpoints").is_dir()
    return marked


def permit(config: Config, trust: bool = False) -> None:
    """Raise `UserError` unless what `config` names may be imported, now and later, or if the user says `trust`."""
    for field in NAMES:
        name: str = getattr(config, field)
        if trust:
            _trusted.add(str(name))
        if ":" in name:
            check(name, name.partition(":")[0])


def check(name: str, module: str) -> None:
    """Raise `UserError` unless `module`, which `name` stands for, may be imported. Nothing is imported here."""
    if str(Path.cwd()) not in sys.path:  # where notebooks lie, and their modules
        sys.path.append(str(Path.cwd()))
    if module in _trusted or module.partition(".")[0] in OWN:
        return
    file = _file(module)
    if isinstance(name, FromFile) and name not in _trusted and module not in sys.modules:
        asks = name.of_run or _lies_below(file, name.source.parent)
        if asks and f"{module}\t{file}" not in _remembered():
            raise UserError(
                f"{name.source} names the module {module!r} ({str(name)!r}), and to import it runs its code; "
                "if you trust that, say trust=True (--trust), or import it first."
            )
    _trusted.add(module)
    _remember(f"{module}\t{file}")


def trusted_environment() -> dict[str, str]:
    """Environment variables with which a child process trusts what this one does."""
    return {CARRIED: "\n".join(sorted(_trusted))}


def _lies_below(file: str | None, folder: Path) -> bool:
    """Whether `file` came along with what lies in `folder`, or with a run: not in the working directory but below it,
    where dotted names reach any folder."""
    here = Path.cwd()
    below = [place for place in Path(file or here).parents if here in place.parents]
    return folder in below or any((place / "config.yaml").is_file() for place in below)


def _file(module: str) -> str | None:
    """What `import module` would execute, found without executing anything; None if nobody knows."""
    found, path = None, None
    parts = module.split(".")
    for name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
        if name in sys.modules:
            found, path = sys.modules[name].__spec__, getattr(sys.modules[name], "__path__", None)
            continue
        try:
            tried = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
            found = next((spec for spec in tried if spec is not None), None)
        except Exception:  # a finder of anybody's, in a package whose parent is not imported
            return None
        if found is None:
            return None
        path = found.submodule_search_locations
        if found.loader is None or isinstance(found.loader, NamespaceLoader):
            importlib.import_module(name)  # a folder without code, which its parts are looked up in
    return None if found is None else found.origin


def _state() -> Path:
    """The user's record of what is trusted on this machine: module, tab, file."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "kit/trusted-modules"


def _remembered() -> list[str]:
    with contextlib.suppress(OSError, RuntimeError, UnicodeDecodeError):
        return _state().read_text().splitlines()
    return []


@cache
def _remember(line: str) -> None:
    """Where nothing can be written, it is asked again another time."""
    if not line.endswith("\tNone") and line not in _remembered():
        with contextlib.suppress(OSError, RuntimeError):
            _state().parent.mkdir(parents=True, exist_ok=True)
            with _state().open("a") as file:
                file.write(line + "\n")
