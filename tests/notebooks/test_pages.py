"""Tests of the published pages: links, anchors, folded cells, exit codes. The notebooks are not executed here."""

from __future__ import annotations

import html
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from executed import NOTEBOOKS

import kit

PAGES = Path(__file__).parents[2] / ".github" / "pages.py"
pytest.importorskip("nbconvert")


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", PAGES)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(pages: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pages of all lessons, as they are without outputs."""
    out = tmp_path_factory.mktemp("pages")

    def copied(source: Path, result: Path, *_: Any, **__: Any) -> None:
        Path(result).write_text(source.read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages.papermill, "execute_notebook", copied)
        patch.setattr(pages.kit, "launch", lambda **_: _Stopped())
        patch.setattr(pages, "reference", _empty_reference)  # pdoc takes ten seconds
        patch.setattr(sys, "argv", ["pages.py", str(out)])
        assert pages.main() == 0
    return out


def _empty_reference(folder: Path) -> None:
    folder.mkdir()
    (folder / "kit.html").touch()


class _Stopped:
    """In place of the run that lesson 02 continues."""

    def wait(self, *_: Any, **__: Any) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("name", ["index", "TERMS", *(path.stem for path in NOTEBOOKS)])
def test_every_link_of_a_page_leads_somewhere(site: Path, name: str) -> None:
    page = (site / f"{name}.html").read_text()
    links = [html.unescape(link) for link in re.findall(r'<a [^>]*href="([^"]*)"', page)]
    assert links
    for link in links:
        target, _, anchor = link.partition("#")
        if target.startswith("http"):
            assert ".html" not in target or kit.HOME not in target
            assert not target.startswith("https://colab") or target.endswith(".ipynb"), link
            continue
        file = site / target if target else site / f"{name}.html"
        assert file.exists(), link
        if anchor:
            assert f'id="{anchor}"' in file.read_text(), link


def test_a_link_to_a_file_of_kit_leads_to_its_repository(site: Path) -> None:
    page = (site / "08_many_runs.html").read_text()
    assert f'href="{kit.HOME}/blob/main/kit/scale/README.md"' in page


def test_cells_that_are_folded_in_a_notebook_are_folded_on_its_page(site: Path) -> None:
    page = (site / "04_walk.html").read_text()
    folded = re.findall(r"<details [^>]*>\s*<summary>(.*?)</summary>(.*?)</details>", page, re.DOTALL)
    (install, installing), (parameters, values) = folded
    assert install.startswith("Install kit")
    assert "find_spec" in installing
    assert parameters.startswith("Parameters")
    assert "total_steps" in values


def test_an_unknown_notebook_is_refused(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pages.py", str(tmp_path), "01_trian"])
    with pytest.raises(SystemExit, match="2"):
        pages.main()
    assert not list(tmp_path.iterdir())
