"""Tests of the command line: exit codes, one-sentence errors that create no files, JSON output."""

import json
import os
import signal
import sys
import warnings
from unittest.mock import Mock

import pytest

from kit import cli
from kit.measure import speed
from kit.runs import directory
from kit.runs.status import Status
from kit.scale import cloud
from tests.runs.crash import SLIDE, Forked, complete, create


def kit(capsys, *arguments):
    """Run one command; return (exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG = {
    "unknown env": (["train", "--env", "Raech"], "env='Raech'", "did you mean Reach"),
    "unknown algo": (["train", "--algo", "DQN"], "algo='DQN'", "PPO, RecurrentPPO, A2C, SAC"),
    "unknown preset": (["train", "--preset", "fats"], "preset='fats'", "did you mean fast"),
    "unknown option": (["train", "--total-stepz", "5"], "--total-stepz", "see kit train --help"),
    "unknown override": (["train", "--overrides", '{"gama": 0.9}'], "gama=0.9", "did you mean gamma"),
    "override of a wrong type": (["train", "--overrides", '{"gamma": "big"}'], "gamma='big'", "number"),
    "overrides that are no JSON": (["train", "--overrides", "gamma=0.9"], "overrides='gamma=0.9'", "JSON"),
    "batch that does not divide": (
        ["train", "--n-envs", "8", "--overrides", '{"n_steps": 100, "batch_size": 256}'],
        "batch_size=256", "the largest divisor below it is 200",
    ),
    "overrides that are no mapping": (["train", "--overrides", "[1]"], "overrides='[1]'", "JSON mapping"),
    "env options that are no JSON": (["train", "--env-options", "{a: 1}"], "env_options='{a: 1}'", "JSON"),
    "a step that is none": (["evaluate", "runs/r", "--step", "foo"], "step='foo'", "best or latest"),
    "a step of a film that is none": (["video", "runs/r", "--step", "-5"], "--step", "--help"),
    "episodes that are none": (["evaluate", "runs/r", "--episodes", "many"], "--episodes", "'many'"),
    "no episodes": (["video", "runs/r", "--episodes", "0"], "episodes=0", "at least 1"),
    "an abbreviated option": (["batch", "jobs.yaml", "--seed", "3"], "--seed", "--help"),
    "a store that is not there": (["runs", "drive:kit"], "store='drive:kit'", "hf://"),
    "steps that are none": (["train", "--total-steps", "1.5"], "total_steps=1.5", "whole number"),
    "zero worlds": (["train", "--n-envs", "0"], "n_envs=0", "at least 1"),
    "negative steps": (["train", "--total-steps", "-5"], "total_steps=-5", "at least 1"),
    "negative n_steps": (["train", "--overrides", '{"n_steps": -1}'], "n_steps=-1", "at least 1"),
    "no such device": (["train", "--device", "cuda:77"], "device='cuda:77'", "cpu"),
    "no such config": (["train", "nothing.yaml"], "nothing.yaml", "does not exist"),
    "no such run": (["resume", "nothing"], "nothing", "kit runs"),
    "nothing to resume": (["resume"], "runs_dir='runs'", "kit train"),
    "not a run": (["evaluate", "."], "is not a run directory", "kit runs"),
    "a file in place of a run": (["evaluate", __file__], "is a file, and a run is a directory", "`kit runs` lists"),
    "a zip as teacher": (
        ["train", "--algo", "Distill", "--teacher", "model.zip"], "teacher='model.zip' is a file",
        "name a run (runs/NAME, runs/NAME@STEP or its URL in a store), an ONNX file of kit.export, or 'scripted'",
    ),
    "a task beside a run": (["record", "runs/r", "d", "--env", "Ant"], "--env Ant", "which plays in its own env"),
    "options beside a run": (["view", "runs/r", "--env-options", "{}"], "--env-options {}", "leave it out"),
    "unknown store": (["train", "--store", "ftpx://a/b"], "store=", "use a path"),
    "zip without trust": (["train", "--start-from", "model.zip"], "start_from='model.zip'", "save"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_exit_2_with_one_sentence_and_create_nothing(here, capsys, case):
    arguments, names, remedy = WRONG[case]
    before = sorted(here.rglob("*"))
    code, out, err = kit(capsys, *arguments)
    assert code == 2 and out == ""
    assert err.startswith("kit: ") and err.count("\n") == 1, err
    assert names in err and remedy in err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("text", ["just words", "- a\n- b\n", "env: [", "envv: Reach"])
def test_invalid_config_files_exit_2(here, capsys, text):
    (here / "c.yaml").write_text(text)
    code, _, err = kit(capsys, "train", "c.yaml")
    assert code == 2 and err.count("\n") == 1 and not (here / "runs").exists()


def test_existing_name_is_never_overwritten(here, capsys):
    run = create(here / "runs", "mine")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    code, _, err = kit(capsys, "train", "--run-name", "mine", "--total-steps", "10")
    assert code == 2 and "run_name='mine' exists" in err
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_list_of_runs_does_not_round_to_all(here, capsys):
    run = create(here / "runs", "mine", total_steps=1000)
    Status(run.path, total_steps=1000, step=996, success_rate=0.996).write()
    out = kit(capsys, "runs")[1]
    assert "996 of 1,000 (99.6 %)  success 99.6 %" in out


def test_a_folder_that_is_no_run_does_not_hide_the_run_of_its_name(here, capsys):
    run = create(here / "runs", "mine")
    (here / "mine").mkdir()
    assert directory.find("mine").absolute() == run.path
    assert "is not a run directory" in kit(capsys, "evaluate", "./runs")[2]
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("store: null", "store: /store"))
    code, _, err = kit(capsys, "rename", "mine", "ours")
    assert code == 2 and 'runs/mine").write_note("...").' in err


def test_run_of_a_newer_version(here, capsys):
    run = create(here / "runs", "mine")
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("version: 1", "version: 9"))
    for command in ("resume", "evaluate", "fingerprint"):
        code, _, err = kit(capsys, command, run.path)
        assert code == 2 and "version=9" in err and "update kit" in err


def test_run_in_use(here, capsys):
    run = create(here / "runs", "mine")
    with directory.lock(run.path):
        code, _, err = kit(capsys, "resume", run.path)
    assert code == 2 and "is in use by" in err


@pytest.fixture
def nobody():
    """Drop root privileges during a test, because root can write to read-only folders."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    yield
    os.seteuid(mine)


def test_no_permission(here, capsys, request):
    run = create(here / "runs", "mine")
    here.chmod(0o555)
    request.getfixturevalue("nobody")
    code, _, err = kit(capsys, "train", "--runs-dir", here / "new", "--total-steps", "10")
    assert code == 2 and "cannot be written" in err
    code, _, err = kit(capsys, "resume", run.path)
    assert code == 2 and err.count("\n") == 1


def test_a_run_of_another_user_cannot_be_paused(here, capsys, monkeypatch):
    run = create(here / "runs", "mine")
    monkeypatch.setattr(type(run), "pause", Mock(side_effect=PermissionError))
    with directory.lock(run.path):
        code, _, err = kit(capsys, "pause", run.path)
    assert code == 2 and "belongs to another user, who can pause it" in err


def test_a_speed_that_cannot_be_measured_is_one_sentence(capsys, monkeypatch):
    def fail(env):
        raise speed.NotMeasured("one iteration takes more than 60 s here")

    monkeypatch.setattr(speed, "bench", fail)
    code, _, err = kit(capsys, "bench")
    assert code == 2 and err == "kit: one iteration takes more than 60 s here\n"


def test_a_plan_without_a_price_is_valid_json(here, capsys, monkeypatch):
    pandas = pytest.importorskip("pandas")
    (here / "c.yaml").write_text(f"env: Reach\nstore: {here / 'store'}\n")
    monkeypatch.setattr(speed, "probe", lambda config: None)
    plan = pandas.DataFrame({"machine": ["one"], "dollars": [float("nan")]})
    monkeypatch.setattr(cloud, "plan", lambda *_, **__: plan)
    assert json.loads(kit(capsys, "cloud", "plan", "c.yaml", "--json")[1], parse_constant=pytest.fail) == [
        {"machine": "one", "dollars": None}
    ]


def test_runs_dir_that_is_a_file(here, capsys):
    (here / "runs").write_text("not a folder")
    code, _, err = kit(capsys, "train", "--total-steps", "10")
    assert code == 2 and "runs_dir='runs' cannot be written" in err


def test_fields_that_may_not_change_on_resume(here):
    from kit import UserError, resume

    run = create(here / "runs", "mine")
    with pytest.raises(UserError, match=r"seed=5 differs from the run's 0; on resume only total_steps"):
        resume(run.path, seed=5)


def test_train_evaluate_runs_fingerprint_and_their_json(here, capsys):
    (here / "c.yaml").write_text("env: Reach\ntotal_steps: 64\noverrides: {n_steps: 16, batch_size: 32}\n")
    code, out, _ = kit(capsys, "train", "c.yaml", "--n-envs", "2e0", "--run-name", "r", "--eval-every", "0")
    assert code == 0 and "done: 64 steps" in out
    rows = json.loads(kit(capsys, "runs", "--json")[1])
    assert [set(row) for row in rows] == [{"name", "state", "step", "total_steps", "success_rate", "updated"}]
    assert (rows[0]["name"], rows[0]["state"], rows[0]["step"]) == ("r", "finished", 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as SB3's warning about the batch size
        report = json.loads(kit(capsys, "evaluate", "runs/r", "--episodes", "3", "--json")[1])
    own = {"distance", "within_5cm", *(f"reward/{term}" for term in ("progress", "success", "precision", "effort"))}
    assert set(report) == {"episodes", "mean_return", "std_return", "success_rate", "mean_length"} | own
    assert report["episodes"] == 3 and 0 < report["distance"] < 2 and report["within_5cm"] <= report["success_rate"]
    line = kit(capsys, "fingerprint", "runs/r")[1]
    assert len(line.strip()) == 64 and int(line, 16)
    assert kit(capsys, "resume", "runs/r", "--total-steps", "128")[0] == 0
    assert json.loads(kit(capsys, "runs", "--json")[1])[0]["step"] == 128


def test_recurrent_policy_resumes_in_mid_episode_evaluates_and_renders_a_video(here, capsys):
    """Observations are images and numbers. The run is cut after 16 steps per env; episodes last up to 12 steps."""
    import torch

    torch.set_num_threads(1)  # building a trainer sets this and keeps it; the first run must start like the second
    small = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "policy_kwargs": {"lstm_hidden_size": 8, "net_arch": [8]}}
    train = ["train", "--env", "tests.envs.corridor:Corridor", "--algo", "recurrentppo", "--n-envs", "2"]
    train += ["--overrides", json.dumps(small), "--eval-every", "0", "--env-options", '{"length": 30}']
    assert kit(capsys, *train, "--run-name", "whole", "--total-steps", "64")[0] == 0
    assert kit(capsys, *train, "--run-name", "cut", "--total-steps", "32")[0] == 0
    assert kit(capsys, "resume", "runs/cut", "--total-steps", "64")[0] == 0
    whole, cut = (kit(capsys, "fingerprint", f"runs/{name}")[1] for name in ("whole", "cut"))
    assert whole == cut
    report = json.loads(kit(capsys, "evaluate", "runs/cut", "--episodes", "3", "--json")[1])
    assert report["episodes"] == 3
    code, out, _ = kit(capsys, "video", "runs/cut", "--episodes", "1", "--size", "36")
    assert code == 0 and (here / out.strip()).stat().st_size > 500


class Command(Forked):
    """`kit resume RUN` in a forked process, whose output goes to the run's log."""

    def _session(self):
        return lambda: cli.main(["resume", str(self.run.path)])


def test_an_interrupted_command_exits_75(tmp_path):
    run = create(tmp_path, "r", total_steps=10**9)
    process = Command(run)
    assert process.until(lambda: run.status()["step"] > 0), run.log()
    process.kill(signal.SIGINT)
    assert process.wait() == 75, run.log()
    assert "resume goes on from step" in run.log()


def test_help_everywhere(capsys):
    for command in ("verify", "train", "resume", "runs", "evaluate", "video", "fingerprint", "bench"):
        code, out, _ = kit(capsys, command, "--help")
        assert code == 0 and "usage: kit" in out
    assert "default: 100000" in kit(capsys, "train", "--help")[1]
    assert "default: as in the run" in " ".join(kit(capsys, "resume", "--help")[1].split())
    assert kit(capsys)[0] == 2


class Launcher(Forked):
    """A forked process that launches a run and ends at once."""

    def _session(self):
        from kit import launch

        launch(env=SLIDE, total_steps=10**9, run_name="r", runs_dir=str(self.run.path.parent), eval_every=0)
        return lambda: 0


def test_worker_outlives_the_process_that_launched_it(tmp_path):
    """Start a run with `kit.launch` in one process and open it in another, like a restarted notebook kernel."""
    assert Launcher(create(tmp_path, "log")).wait() == 0
    from kit import Run

    run = Run(tmp_path / "r")
    run.wait(200, until=lambda now: now["step"] > 0)
    assert run.status()["state"] == "running"
    run.stop()
    assert run.wait(200)["state"] == "interrupted"
    assert run.latest() is not None


def test_train_says_what_a_task_usually_needs_if_no_number_of_steps_is_given(here, capsys):
    quick = ("train", "--env", "Mission", "--eval-every", "0", "--run-name")
    _, out, _ = kit(capsys, *quick, "short")
    assert "Mission usually needs 40,000,000 steps: kit resume " in out
    assert "runs/short --total-steps 40000000 goes on." in out
    _, out, _ = kit(capsys, *quick, "chosen", "--total-steps", "64")
    assert "usually" not in out


def test_start_from_a_zip_needs_trust_and_predicts_the_same(here, capsys):
    run = create(here / "runs", "first", total_steps=64)
    assert complete(run) == 0
    model = run.policy()
    model.save(here / "model.zip")
    code, _, err = kit(capsys, "train", "--start-from", "model.zip", "--total-steps", "64")
    assert code == 2 and "trust" in err
    code, _, err = kit(
        capsys,
        "train",
        "--start-from",
        "model.zip",
        "--trust",
        "--total-steps",
        "64",
        "--run-name",
        "second",
        "--eval-every",
        "0",
    )
    assert code == 0, err
    import torch

    from kit import Run

    first = model.policy.state_dict()
    start = Run(here / "runs/second").find(0).read()["policy"]
    assert all(torch.equal(first[name], start[name]) for name in first)


def test_commands_control_a_running_run(here, capsys):
    run = create(here / "runs", "steered", total_steps=10**7)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 0), run.log()
    assert kit(capsys, "pause", run.path)[1].startswith(f"{run.path}: paused at step ")
    assert "is paused" in kit(capsys, "checkpoint", run.path)[2], "it would wait until somebody unpauses the run"
    assert kit(capsys, "unpause", run.path)[1].startswith(f"{run.path}: running at step ")
    assert " is saved" in kit(capsys, "checkpoint", run.path)[1] and run.checkpoints()
    assert kit(capsys, "rm", run.path, "--yes")[2].startswith(f"kit: {run.path} is at work; stop it first")
    assert kit(capsys, "stop", run.path)[1].startswith(f"{run.path}: interrupted at step ")
    assert session.wait() == 75
    code, _, err = kit(capsys, "pause", run.path)
    assert code == 2 and "is not running (interrupted)" in err
    out = kit(capsys, "runs")[1]
    assert " MB, on this machine only" in out and "steered" in out


def test_rm_asks_and_keeps_the_only_copy_of_unfinished_work(here, capsys, monkeypatch):
    run = create(here / "runs", "mine", total_steps=10**7)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 0), run.log()
    assert "is in use by" in kit(capsys, "rename", run.path, "ours")[2]
    run.stop()
    assert session.wait() == 75
    assert kit(capsys, "rename", run.path, "mine")[0] == 0, "no change"
    assert kit(capsys, "rename", run.path, "ours")[1] == f"renamed {run.path} to {run.path.with_name('ours')}\n"
    run = type(run)(here / "runs" / "ours")
    code, _, err = kit(capsys, "rm", run.path)
    assert code == 2 and "needs a confirmation, and this is not a terminal; add --yes" in err and run.path.exists()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert kit(capsys, "rm", run.path)[0] == 1 and run.path.exists()
    monkeypatch.setattr("builtins.input", Mock(side_effect=EOFError))  # Ctrl-D
    assert kit(capsys, "rm", run.path)[0] == 1 and run.path.exists()
    monkeypatch.setattr("builtins.input", lambda question: "y")
    code, out, err = kit(capsys, "rm", run.path)
    assert code == 2 and "no store has its step" in err and run.path.exists(), "y does not delete the only copy"
    step = run.checkpoints()[-1].step
    (run.path / ".sync.json").write_text(json.dumps({"url": "hf://me/runs", "step": step, "state": "ok", "time": 1.0}))
    code, out, _ = kit(capsys, "rm", run.path)
    assert code == 0 and f"step {step:,} verified in hf://me/runs" in out and not run.path.exists()
    assert not list((here / "runs").iterdir()), "rm left files behind"


@pytest.mark.parametrize("name", ["latest.json", "lease.json"])
def test_rm_keeps_a_stores_copy(here, capsys, name):
    run = create(here / "store", "mine")
    (run.path / name).write_text("{}")
    code, _, err = kit(capsys, "rm", run.path, "--yes")
    assert code == 2 and "is a store's copy of a run" in err and (run.path / "config.yaml").is_file()
