"""Tests of `kit check`: one-sentence errors for mistakes in a task, also before and during training; videos."""

from __future__ import annotations

from pathlib import Path

import pytest

import kit
from kit import cli, envs
from kit.envs import names
from kit.errors import UserError
from kit.runs.video import RANDOM_S
from tests.envs.mistakes import Good

MODULE = "tests.envs.mistakes"
IN_FIRST_STEP = {
    "Column": r"reward\(\) returned shape \(3, 1\), expected \(3,\); leave out keepdim=True",
    "Scalar": r"reward\(\) returned shape \(\), expected \(3,\); it is a single number for all envs",
    "Numpy": r"reward\(\) returned the type ndarray, expected a tensor \(3,\)",
    "Float": r"terminated\(\) returned dtype torch.float32, expected torch.bool; compare",
    "Wide": r"observe\(\) returned shape \(3, 2\), expected \(3, 1\); it must agree with observation_space",
    "Whole": r"observe\(\) returned dtype torch.int64, expected floating-point numbers",
    "Keyless": r"observe\(\) returned the keys x, expected also 'speed'",
    "Timeless": "episode_steps=0 must be at least 1",
    "Limitless": "has no episode_steps; set it in the class or in its constructor",
    "Totals": r"info\(\) names a metric 'episode_return', which the env adds; rename it",
    "Unmeasured": "the curriculum measures 'sucess', which the task's info lacks; did you mean success",
    "Misspelt": "score='mean_retrun' is no metric of its evaluations; did you mean mean_return",
    "NoSuccess": "score='success_rate' is no metric of its evaluations; valid are mean_return, std_return, mean_length",
    "Misnamed": r"keeps=\('y',\) names 'y', which is no tensor; valid are x",
    "Unbounded": "action_space has no finite bounds",
}
LATER = {
    "Named": "action_space is a Dict; make it a Box, Discrete, MultiDiscrete or MultiBinary",
    "Soon": r"reward\(\) returned NaN or infinity",
    "Late": r"reward\(\) returned NaN or infinity",
    "Forgets": "after a restored snapshot, step 1 gave another observation; name every tensor .* `keeps`",
    "ForgetsGoal": "after a restored snapshot, step 1 gave another reward; name every tensor .* `keeps`",
    "Own": "the same seed gave another observation; draw with the generator",
    "All": r"reset\(mask\) changed 'task.x' of an env that `mask` leaves out",
    "Few": "reset draws more random numbers for some masks",
    "Narrow": r"observe\(\) returned values from -[0-9.]+ to [0-9.]+, expected -2 to 2",
    "OtherGoalReward": r"compute_reward\(\) returned [0-9.e+-]+ for the goals of a step whose reward was -[0-9.e-]+",
    "WideGoalReward": r"compute_reward\(\) returned shape \(3, 1\), expected \(3,\)",
}


@pytest.mark.parametrize(("mistake", "says"), [*IN_FIRST_STEP.items(), *LATER.items()])
def test_a_mistake_is_named_with_its_remedy(mistake: str, says: str) -> None:
    with pytest.raises(UserError, match=f"env='{MODULE}:{mistake}':? {says}"):
        kit.check_task(f"{MODULE}:{mistake}", say=lambda line: None)


def test_dtypes_that_are_converted_are_mentioned() -> None:
    lines: list[str] = []
    kit.check_task(f"{MODULE}:Converted", steps=5, say=lines.append)
    hints = [line for line in lines if "hint" in line]
    assert hints == [
        "a hint: observe() returns torch.float64; the policy gets it as torch.float32",
        "a hint: reward() returns torch.int64, whole numbers; if fractions were cut off, compute it with floats",
    ]


@pytest.mark.parametrize("env", [f"{MODULE}:Good", f"{MODULE}:Goals", *names()])
def test_a_correct_task_passes(env: str) -> None:
    lines: list[str] = []
    kit.check_task(env, steps=40, say=lines.append)
    assert any("bit for bit" in line for line in lines) and not any("hint" in line for line in lines)
    goals = env in (f"{MODULE}:Goals", "PickAndPlace", "Push", "Slide")
    assert any("compute_reward" in line for line in lines) == goals


@pytest.mark.parametrize("reward", [False, True])
def test_a_gymnasium_env_is_stepped_too(reward: bool) -> None:
    """Gymnasium's own check_env takes a few steps only; here NaN comes in step 40."""
    lines: list[str] = []
    kit.check_task(f"{MODULE}:Leaky", {"reward": reward}, steps=39, say=lines.append)
    assert lines == ["Gymnasium's check_env", "39 steps of random actions in 3 envs: no episode ended"]
    where = "the reward" if reward else "the observation"
    with pytest.raises(UserError, match=rf"env='Leaky': step\(\) returned NaN or infinity in {where}; look"):
        kit.check_task(f"{MODULE}:Leaky", {"reward": reward}, steps=40, say=lines.append)


def test_arguments_of_the_check_are_checked() -> None:
    with pytest.raises(UserError, match="steps=0 must be a whole number of at least 1"):
        kit.check_task(f"{MODULE}:Good", steps=0)
    with pytest.raises(UserError, match=r"env=<class '.*Good'> must be a name; .* name it, as in 'module:Class'"):
        kit.check_task(Good)  # type: ignore[arg-type]


def test_the_command_prints_passed_checks_and_accepts_gymnasium_envs(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["Pendulum-v1"], 0), ([f"{MODULE}:Good", "--steps", "60"], 0), ([f"{MODULE}:Late"], 2)):
        with pytest.raises(SystemExit) as ended:
            cli.main(["check", *arguments])
        assert ended.value.code == code
    said = capsys.readouterr()
    assert "ok  Gymnasium's check_env" in said.out and "500 steps of random actions in 3 envs: 6 episodes" in said.out
    assert "60 steps of random actions in 3 envs" in said.out
    assert said.err.startswith("kit: env='tests.envs.mistakes:Late': reward() returned NaN")


def test_a_video_shows_the_task_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "corridor.mp4"
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "tests.envs.corridor:Corridor", "--steps", "20", "--video", str(path)])
    assert ended.value.code == 0 and f"random actions: {path}" in capsys.readouterr().out
    _, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert seconds == pytest.approx(RANDOM_S, abs=0.5)


def test_a_notebook_gets_the_video_too(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path, lines = tmp_path / "corridor.mp4", list[str]()
    kit.check_task("tests.envs.corridor:Corridor", steps=20, say=lines.append, video=path)
    assert lines[-1] == f"a film of random actions: {path}"
    assert ffmpeg.count_frames_and_secs(str(path))[1] == pytest.approx(RANDOM_S, abs=0.5)
    with pytest.raises(UserError, match="cannot render images; give its task a render method"):
        kit.check_task(f"{MODULE}:Good", steps=20, say=lines.append, video=path)


@pytest.mark.parametrize("mistake", ["Timeless", "Wide", "Column", "Misnamed"])
def test_no_training_starts_with_a_mistake(mistake: str, tmp_path: Path) -> None:
    """One that is found when the env is made, one in its reset, in its step, and in what it keeps."""
    with pytest.raises(UserError, match=IN_FIRST_STEP[mistake]):
        kit.train(env=f"{MODULE}:{mistake}", total_steps=100, runs_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("Longer", r"reset\(\) returned an observation of shape \(2,\), expected \(1,\); it must agree with obs"),
        ("Lone", r"step\(\) returned an observation of shape \(\), expected \(3,\); it must agree with obs"),
        ("Old", r"step\(\) returned 4 values, expected a tuple of 5; return observation, reward, terminated, t"),
    ],
)
def test_no_training_starts_with_a_mistake_of_a_gymnasium_env(mistake: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^env='{mistake}': {says}") as refused:
        kit.launch(env=f"{MODULE}:{mistake}", total_steps=100, runs_dir=str(tmp_path))
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_a_wrapper_of_ones_own_is_checked_and_not_the_env_inside() -> None:
    assert envs.describe(f"{MODULE}:Shortened").observation_space.shape == (1,)


@pytest.mark.parametrize(
    ("algo", "overrides"), [("PPO", {"n_steps": 64, "batch_size": 64}), ("SAC", {"learning_starts": 64})]
)
def test_a_reward_that_turns_nan_ends_the_run_with_a_sentence(
    algo: str, overrides: dict[str, int], tmp_path: Path
) -> None:
    fields = {"total_steps": 4000, "n_envs": 4, "runs_dir": str(tmp_path), "overrides": overrides, "eval_every": 0}
    words = r"a reward, an observation or the policy is NaN or infinite, before step [0-9,]+; `kit check ENV`"
    with pytest.raises(UserError, match=words):
        kit.train(env=f"{MODULE}:Late", algo=algo, **fields)
    (run,) = kit.runs(str(tmp_path))
    assert run.status()["state"] == "failed" and "NaN" in run.status()["message"]


def test_a_reward_that_is_nan_in_an_evaluation_ends_the_run_too(tmp_path: Path) -> None:
    """The first evaluation, before training, plays whole episodes."""
    with pytest.raises(UserError, match=r"a reward of env='.*Rare' is NaN or infinite, in an evaluation"):
        kit.train(env=f"{MODULE}:Rare", total_steps=4000, n_envs=4, runs_dir=str(tmp_path))
    assert kit.runs(str(tmp_path))[0].status()["state"] == "failed"
