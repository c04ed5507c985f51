"""Copies of the user's own files in a run: modules (module:NAME), and a robot's file with all that it refers to.

own/mine.py  own/dog.xml  own/meshes/leg.stl  ...     a robot's files lie as in its own folder

A process that does not find the original uses the copy: of a robot at once, of a module only if trusted (`kit.trust`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

from kit import trust
from kit.errors import UserError
from kit.format.files import sync_folder, write_file
from kit.format.layout import MAX_OWN, own_file
from kit.format.leftovers import hide, remove, temporary
from kit.stores.redact import redact_bytes
from kit.trust import COPIES

MAX_MODULE_BYTES, MAX_ROBOT_BYTES = 2**20, 50 * 2**20
MODELS = (".xml", ".mjcf", ".urdf")

Files = dict[str, bytes]
"""Path in own/ -> content."""


def keep(run_path: Path, config: trust.Config) -> None:
    """Bring own/ of the run up to date. A file that was not found keeps its copy.

    Not kept: packages, installed modules, files with a secret, and a robot that its copies alone do not make.
    """
    folder = run_path / COPIES
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.*")]
    kept = {name: (folder / name).read_bytes() for name in names if own_file(f"{COPIES}/{name}")}
    files = dict(kept)
    for module, file in trust.named_files(config).items():
        files.pop(f"{module}.py", None)
        if _is_single(module, file):
            files[f"{module}.py"] = file.read_bytes()
    kind, _, robot = config.env.partition(":")
    path = Path(robot).expanduser()
    if kind in trust.ROBOT_TASKS and path.is_file():
        modules = {name: data for name, data in files.items() if name.endswith(".py")}
        found = _robot(path)
        same = {name: data for name, data in kept.items() if not name.endswith(".py")} == found
        files = {**modules, **(found if same or _is_complete(run_path, path.name, found) else {})}
    files = {name: data for name, data in files.items() if kept.get(name) == data or not _has_secret(data)}
    if files != kept:
        with temporary(run_path) as building:
            _write(building, files)
            if folder.exists():
                remove(hide(folder))
            if files:
                building.rename(folder)
        sync_folder(run_path)


def _is_single(module: str, file: Path) -> bool:
    """Return whether `file` is the only file of `module`, small, and not installed."""
    installed = file.is_relative_to(sys.prefix) or {"site-packages", "dist-packages"} & set(file.parts)
    single = file.name == f"{module}.py" and own_file(f"{COPIES}/{file.name}")
    return single and not installed and file.stat().st_size <= MAX_MODULE_BYTES


def _robot(path: Path) -> Files:
    """Return the robot's file and the files in its folder that it refers to; {} if a reference is absolute."""
    top, found, read = path.parent, {path.name}, 0
    try:
        while len(found) > read:  # an included file may refer to others
            read, folders, references = len(found), {""}, set()
            for name in [name for name in found if name.lower().endswith(MODELS)]:
                folders.add(os.path.dirname(name))  # noqa: PTH120 - "" for the top folder
                for element in ElementTree.parse(top / name).iter():
                    values = element.attrib.items()
                    if element.tag == "compiler":
                        folders |= {value for key, value in values if key in ("meshdir", "texturedir", "assetdir")}
                    references |= {value for key, value in values if key.startswith("file")}
            if any(os.path.isabs(each) for each in folders | references):  # noqa: PTH117
                return {}
            parts = {part for each in references for part in (each, each.rpartition("/")[2])}  # strippath: the name
            paths = {os.path.normpath(Path(folder, part)) for folder in folders for part in parts}
            found |= {each for each in paths if own_file(f"{COPIES}/{each}") and (top / each).is_file()}
            if len(found) > MAX_OWN[0] or sum((top / each).stat().st_size for each in found) > MAX_ROBOT_BYTES:
                return {}
        return {name: (top / name).read_bytes() for name in found if own_file(f"{COPIES}/{name}")}
    except (OSError, ElementTree.ParseError):
        return {}


def _is_complete(run_path: Path, name: str, files: Files) -> bool:
    """Return whether MuJoCo can build the robot `name` from `files` alone, and none contains a secret."""
    from kit.tasks.robot_file import compiled, load

    if name not in files or any(map(_has_secret, files.values())):
        return False
    with temporary(run_path) as building:
        _write(building, files)
        try:
            compiled(name, load(str(building / name)))
        except UserError:
            return False
    return True


def _has_secret(data: bytes) -> bool:
    return redact_bytes(data) != data


def _write(folder: Path, files: Files) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, data)
