"""Tests of the notebook files: format, parameters, links, install cell."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from executed import NOTEBOOKS, papermill, read, sources

import kit
from kit.config import RunConfig

REPOSITORY = kit.HOME.removeprefix("https://github.com/")
NOT_OF_CONFIG = {
    "run", "episodes", "film_episodes", "cameras", "steps", "ground_episodes", "robot_steps",
    "clips", "jobs", "seeds", "name", "on", "threshold", "usd_per_hour", "end_session", "trials", "space", "trust",
    "source", "demonstrations", "clone_steps", "teacher_steps", "student", "lesson_steps",
    "on_top", "careful", "without", "without_steps", "rival_steps", "twin_steps", "twin_seeds",
}  # fmt: skip
"""Notebook parameters that are not fields of RunConfig; every other parameter must be one."""


def test_names_of_the_first_five_notebooks() -> None:
    first = ["00_setup", "01_train", "02_resume", "03_visualize", "04_walk"]
    assert [path.stem for path in NOTEBOOKS][:5] == first


def test_install_cell_installs_the_checkout_or_else_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    first = sources(NOTEBOOKS[0], "code")[0]
    assert all(sources(path, "code")[0] == first for path in NOTEBOOKS)
    shell, asked = InteractiveShell(), list[str]()
    shell.register_magic_function(asked.append, magic_name="pip")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    cell = first.replace('find_spec("kit")', "None")
    assert shell.run_cell(cell).success
    (tmp_path / "pyproject.toml").touch()
    assert shell.run_cell(cell).success
    extras = "kit[notebook,video,stores]"
    assert asked == [f'install -q "{extras} @ git+{kit.HOME}"', f'install -q "{extras} @ file://{tmp_path}"']


def test_the_repository_has_one_address() -> None:
    root = Path(__file__).parents[2]
    texts = [path.read_text() for path in (*NOTEBOOKS, root / "README.md", root / "environment.yml")]
    named = {name for text in texts for name in re.findall(r"github(?:\.com)?/([\w.-]+/kit)\b", text)}
    assert named == {REPOSITORY}, "all links must name the repository of kit.HOME"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    notebook = read(path)
    cells = notebook["cells"]
    title = "".join(cells[0]["source"])
    assert cells[0]["cell_type"] == "markdown"
    assert title.startswith("# ")
    assert f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{path.name})" in title
    assert len({cell["id"] for cell in cells}) == len(cells), "cell ids must be unique"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "outputs are saved"
    assert 'find_spec("kit")' in "".join(code[0]["source"]), "the first cell must install kit if it is missing"
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1
    for cell in code[1:]:  # the first is collapsed
        if cell is not tagged[0] and not cell["source"][0].startswith("%%writefile"):
            assert len(cell["source"]) <= 7, f"{cell['id']} has more than 7 lines"
    assert path.read_text() == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "not written with indent=1"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_plain_and_named_as_in_a_config(path: Path) -> None:
    parameters = papermill.inspect_notebook(path)
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    assert parameters
    assert set(parameters) - NOT_OF_CONFIG <= fields
    said = {field.name: field.metadata["help"] for field in dataclasses.fields(RunConfig)}
    assert all(found["help"] == said.get(name, found["help"] or "nothing") for name, found in parameters.items())
    if path.stem == "01_train":
        assert set(parameters) - NOT_OF_CONFIG == fields


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_has_a_formula_something_to_change_two_exercises_and_a_way_on(path: Path) -> None:
    texts, code = sources(path, "markdown"), "\n".join(sources(path, "code"))
    prose = "\n".join(texts)
    assert re.search(r"^After \d+ minutes", texts[0], re.MULTILINE)
    assert re.search(r"\$\$.+?\$\$", prose, re.DOTALL)
    assert "Change it" in prose + code
    answers = re.findall(r"^\*\*\d\.\*\* .+?\n<details><summary>Answer</summary>\n", prose, re.MULTILINE | re.DOTALL)
    assert len(answers) >= 2
    assert re.search(r"\]\(\d\d_\w+\.ipynb\)", texts[-1]), "the last cell names another lesson"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*NOTEBOOKS, NOTEBOOKS[0].parent / "TERMS.md"], ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text() if path.suffix == ".md" else "\n".join(sources(path, "markdown"))
    for link in re.findall(r"\]\(([^)]+)\)", text):
        target, _, anchor = link.partition("#")
        if not target.startswith("http"):
            page = path.parent / target if target else path
            assert page.exists(), link
            assert not anchor or anchor in anchors(page), link
