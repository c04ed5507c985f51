"""Every notebook as a person gets it, and as papermill runs it with nobody there."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.config import RunConfig
from kit.errors import UserError
from kit.runs.finding import local_runs
from kit.runs.run import Run

papermill = pytest.importorskip("papermill")
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
REPOSITORY = kit.HOME.removeprefix("https://github.com/")
CELL_LIMIT_S = 240
TINY = {"env": "Reach", "total_steps": 1024, "n_envs": 4, "eval_every": 512, "checkpoint_every": 512}
TINY_PPO = {"n_steps": 64, "batch_size": 64, "n_epochs": 2}
NOT_OF_CONFIG = {
    "run", "episodes", "film_episodes", "cameras", "steps", "together", "joystick", "branch_steps",
    "clips", "jobs", "seeds", "name", "on", "threshold", "usd_per_hour", "end_session", "trials", "space", "trust",
}  # fmt: skip
"""Parameters that say what to look at or to do next; every other one is a field of RunConfig."""


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def sources(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == kind]


def execute(name: str, folder: Path, **parameters: Any) -> str:
    """The text of all outputs of the notebook, executed in `folder`."""
    path = next(path for path in NOTEBOOKS if path.stem == name)
    out = folder / f"{name}.out.ipynb"
    papermill.execute_notebook(
        path, out, parameters, cwd=folder, kernel_name="python3", execution_timeout=CELL_LIMIT_S, progress_bar=False
    )
    outputs = [output for cell in read(out)["cells"] for output in cell.get("outputs", [])]
    return json.dumps(outputs)


@pytest.fixture(scope="module", autouse=True)
def short_films() -> Iterator[None]:
    """Half a second of an episode: films are what takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_FILM_S", "0.5")
        yield


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def trained(workplace: Path) -> tuple[Run, str]:
    """The run that 01_train leaves, and what its notebook shows."""
    shown = execute("01_train", workplace, **TINY, run_name="tiny", overrides=TINY_PPO)
    return Run(workplace / "runs" / "tiny"), shown


def test_there_are_the_first_notebooks() -> None:
    first = ["00_setup", "01_train", "02_resume", "03_visualize", "04_walk"]
    assert [path.stem for path in NOTEBOOKS][:5] == first


def test_a_fresh_machine_installs_the_checkout_that_a_notebook_lies_in(
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
    root = Path(__file__).parents[1]
    texts = [path.read_text() for path in (*NOTEBOOKS, root / "README.md", root / "environment.yml")]
    named = {name for text in texts for name in re.findall(r"github(?:\.com)?/([\w.-]+/kit)\b", text)}
    assert named == {REPOSITORY}, "kit.HOME says where it is"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    notebook = read(path)
    cells = notebook["cells"]
    title = "".join(cells[0]["source"])
    assert cells[0]["cell_type"] == "markdown"
    assert title.startswith("# ")
    assert f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{path.name})" in title
    assert len({cell["id"] for cell in cells}) == len(cells), "ids are unique"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "nothing is saved"
    assert 'find_spec("kit")' in "".join(code[0]["source"]), "the first cell installs when needed"
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1
    for cell in code:
        if cell is not tagged[0] and not cell["source"][0].startswith("%%writefile"):
            assert len(cell["source"]) <= 7, f"{cell['id']} is longer than a glance"
    assert path.read_text() == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "plain JSON, stable in git"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_plain_and_named_as_in_a_config(path: Path) -> None:
    parameters = papermill.inspect_notebook(path)
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    assert parameters
    assert set(parameters) - NOT_OF_CONFIG <= fields
    said = {field.name: field.metadata["help"] for field in dataclasses.fields(RunConfig)}
    assert all(found["help"] == said.get(name, found["help"] or "nothing") for name, found in parameters.items())
    if path.stem == "01_train":
        assert set(parameters) - NOT_OF_CONFIG == fields - {"threads"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+\.ipynb)\)", "\n".join(sources(path, "markdown"))):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.timeout(CELL_LIMIT_S)
def test_setup_says_what_this_machine_can_do(workplace: Path) -> None:
    shown = execute("00_setup", workplace)
    for text in ("Ready to train.", "training, end to end", "100,000 steps of Reach with PPO take about"):
        assert text in shown


@pytest.mark.timeout(CELL_LIMIT_S)
def test_train_ends_with_success_rate_curve_and_video(trained: tuple[Run, str]) -> None:
    run, shown = trained
    assert run.status()["state"] == "finished"
    assert run.config.overrides["n_steps"] == 64
    assert re.search(r"Reach with PPO: \d+ % success after 1,024 steps", shown)
    assert "data:image/png;base64" in shown
    assert "data:video/mp4;base64" in shown
    assert run.checkpoints() and run.videos


@pytest.mark.timeout(CELL_LIMIT_S)
def test_visualize_shows_statistics_cameras_and_checkpoints(trained: tuple[Run, str], workplace: Path) -> None:
    shown = execute("03_visualize", workplace, episodes=4, film_episodes=1, cameras=["front"], steps=[0])
    assert "success rate" in shown
    assert "before training" in shown
    assert shown.count("data:video/mp4;base64") == 3
    assert shown.count('"image/png": ') == 6, "two figures, a comparison, and the last picture of each film"


@pytest.mark.timeout(CELL_LIMIT_S)
def test_resume_goes_on_with_the_latest_unfinished(workplace: Path) -> None:
    config = {**TINY, "runs_dir": str(workplace / "cut"), "total_steps": 10**6, "checkpoint_every": 256}
    from kit import launch

    run = launch(RunConfig(run_name="cut", overrides=TINY_PPO, **config))  # type: ignore[arg-type]
    run.wait(120, until=lambda now: now["checkpoint"] is not None)
    run.stop()
    stopped_at = run.wait(60)["step"]
    shown = execute("02_resume", workplace, runs_dir="cut", total_steps=stopped_at + 512)
    assert "interrupted" in shown, "the list comes first"
    assert Run(run.path).status()["state"] == "finished"
    assert Run(run.path).status()["step"] >= stopped_at + 512


PUPPY = """
from kit.tasks.joystick.robots import Go1Joystick

class Puppy(Go1Joystick):
    episode_steps = 20  # so that films are short
"""
SMALL_WALK = {"n_steps": 64, "batch_size": 64, "policy_kwargs": {"net_arch": [16, 16]}}


@pytest.mark.timeout(CELL_LIMIT_S)
def test_a_dog_is_taught_on_any_machine(workplace: Path) -> None:
    menagerie = pytest.importorskip("mujoco_menagerie")
    try:
        menagerie.load("unitree_go1", "go1")
    except menagerie._errors.MenagerieError as error:
        pytest.skip(f"no model of the Go1: {error}")
    (workplace / "puppies.py").write_text(PUPPY)
    little = {"total_steps": 512, "branch_steps": 256, "n_envs": 4, "eval_every": 256}
    little |= {"episodes": 2, "film_episodes": 1}
    little |= {"env": "puppies:Puppy", "runs_dir": "walks", "run_name": "walk"}
    shown = execute("04_walk", workplace, overrides=SMALL_WALK, **little)
    assert "No GPU here" not in shown
    run = Run(workplace / "walks" / "walk")
    second = next(Run(path) for path in run.path.parent.iterdir() if path.name != "walk")
    assert (run.status()["state"], run.status()["step"]) == ("finished", 512)
    assert (second.status()["state"], second.status()["step"]) == ("finished", 256)
    assert [each.config.env_options["always_moving"] for each in (run, second)] == [True, False]
    assert second.parent == ("walk", 512)
    assert re.search(r"puppies:Puppy with PPO: \d+ % success after 512 steps", shown)
    assert "eval/velocity_error" in shown and "eval/reward/feet_clearance" in shown
    assert shown.count("data:video/mp4;base64") == 2, "the report's, and one from three cameras"


def test_a_humanoid_without_a_gpu_is_tiny_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from kit.measure import within_reach

    try:
        small = within_reach(RunConfig(env="G1Joystick", total_steps=10**8, n_envs=512, device="cpu"))
    except UserError as error:
        pytest.skip(f"no model of the G1: {error}")
    assert (small.total_steps, small.n_envs, small.eval_every) == (8192, 32, 8192)
    assert "The run takes 8,192 steps instead of 100,000,000" in capsys.readouterr().out


@pytest.mark.timeout(CELL_LIMIT_S)
def test_a_robot_without_its_model_is_a_sentence(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENAGERIE_ROOT", str(workplace))
    with pytest.raises(papermill.PapermillExecutionError, match=r"the model of unitree_go1 could not be fetched"):
        execute("04_walk", workplace, runs_dir="none")
    assert not (workplace / "none").exists()


@pytest.mark.timeout(CELL_LIMIT_S)
def test_a_wrong_parameter_ends_the_notebook_with_one_sentence(workplace: Path) -> None:
    with pytest.raises(papermill.PapermillExecutionError, match=r"algo='PPPO' is unknown"):
        execute("01_train", workplace, algo="PPPO", runs_dir="none")
    assert not (workplace / "none").exists()


def test_a_team_learns_in_lessons_and_meets_defenders_that_have_learnt(workplace: Path) -> None:
    small = {"n_envs": 64, "total_steps": 2048, "branch_steps": 1024, "eval_every": 1024, "checkpoint_every": 1024}
    shown = execute("07_mission", workplace, **small, runs_dir="games", episodes=4, overrides={"n_steps": 16})
    games = {run.name: run for run in local_runs(workplace / "games")}
    assert len(games) == 4 and all(run.status()["state"] == "finished" for run in games.values())
    assert sorted(run.parent is not None for run in games.values()) == [False, False, True, True]
    assert "video/mp4" in shown and "reward/capture" in shown


@pytest.mark.timeout(2 * CELL_LIMIT_S)
def test_an_arm_learns_from_cameras_and_shows_where_it_looks(workplace: Path) -> None:
    small = {"env_options": {"size": 32, "frames": 2, "cameras": ["front", "top"]}, "total_steps": 64, "n_envs": 2}
    small |= {"eval_every": 0, "checkpoint_every": 64, "overrides": {"n_steps": 16, "batch_size": 16}}
    shown = execute("05_vision", workplace, **small, runs_dir="sights", episodes=2)
    (run,) = local_runs(workplace / "sights")
    assert run.status()["state"] == "finished" and run.config.encoder == "simple2dcnn"
    assert shown.count("where it looks") == 2 * 2 * 2 and "success rate" in shown
    assert "TimeSformer" in shown or "timesformer" in shown


@pytest.mark.timeout(CELL_LIMIT_S)
def test_dishes_are_washed_from_numbers_and_from_clips(workplace: Path) -> None:
    short = {"total_steps": 256, "n_envs": 2, "eval_every": 256, "checkpoint_every": 256}
    clips = {"env": "DishwashingVideo", "algo": "PPO", "encoder": "simple2dcnn", "total_steps": 128}
    clips |= {"eval_every": 0, "overrides": {"n_steps": 64, "batch_size": 64, "n_epochs": 1}}
    shown = execute(
        "06_video_policy", workplace, **short, env_options={"shift_s": 5.0}, run_name="plates", episodes=2, clips=clips,
        overrides={"n_steps": 64, "batch_size": 64},
    )  # fmt: skip
    assert Run(workplace / "runs" / "plates").status()["state"] == "finished"
    for text in ("scripted wiper", "policy, step 256", "Clean plates per hour", "simple2dcnn", "clips/s learning"):
        assert text in shown
    assert re.search(r"DishwashingVideo with PPO: a mean return of -?[\d.]+ after 128 steps", shown)
    assert "RunPod 4090" in shown
    assert shown.count("data:video/mp4;base64") == 2


@pytest.mark.timeout(CELL_LIMIT_S)
def test_algorithms_are_compared(workplace: Path) -> None:
    jobs = [{"algo": "PPO", "overrides": TINY_PPO}, {"algo": "A2C", "overrides": {"n_steps": 16}}]
    shown = execute("09_compare", workplace, total_steps=512, eval_every=256, runs_dir="races", jobs=jobs, seeds=1)
    assert sorted(run.name for run in local_runs(workplace / "races")) == [
        "compare-reach-a2c-s0",
        "compare-reach-ppo-s0",
    ]
    assert "Reach: " in shown and "final score" in shown and "after_s" in shown
    assert shown.count("data:video/mp4;base64") == 1


@pytest.mark.timeout(CELL_LIMIT_S)
def test_many_runs(workplace: Path) -> None:
    pytest.importorskip("optuna")
    shown = execute(
        "08_many_runs", workplace, total_steps=512, eval_every=256, n_envs=4, runs_dir="many", overrides=TINY_PPO,
        seeds=1, trials=2, space={"gamma": [0.9, 0.99]},
    )  # fmt: skip
    made = {"many-reach-ppo-s0", "many-search-t000", "many-search-t001", "many-best-reach-ppo-s0"}
    assert {run.name for run in local_runs(workplace / "many")} == made
    assert "many-search: 2 complete" in shown and "for kit train FILE" in shown


@pytest.mark.timeout(CELL_LIMIT_S)
def test_a_task_of_ones_own_from_an_empty_file(tmp_path: Path) -> None:
    shown = execute("10_your_own_task", tmp_path, total_steps=512, device="cpu", film_episodes=1, seeds=1)
    assert {run.config.env for run in local_runs(tmp_path / "runs")} == {
        "pendulum:SwingUp", "chase:Chase", "CartPole-v1",
    }  # fmt: skip
    for text in ("torque of the motor", "pendulum:SwingUp with PPO: 0 % success", "before training", "gamma 0.98"):
        assert text in shown
    assert re.search(r"stopped after [\d,]+ steps", shown)
    assert shown.count("data:video/mp4;base64") == 3
