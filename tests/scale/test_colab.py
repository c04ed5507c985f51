"""Tests of Colab from a shell: what the machine runs, an end in order, secrets, Google's own parser."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kit.cli import main
from kit.runs.run import Run
from kit.scale import cloud, colab
from tests.envs.slow import SLOW
from tests.stores import live
from tests.stores.conftest import hub  # noqa: F401
from tests.stores.hub_server import WRITE_TOKEN, HubServer

COLAB = """#!{python}
import os, pathlib, shutil, subprocess, sys
machine = pathlib.Path({machine!r})
with open(machine / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1] == "upload":
    shutil.copy(sys.argv[-2], machine / pathlib.Path(sys.argv[-1]).name)
if sys.argv[1] == "exec":
    script = pathlib.Path(sys.argv[sys.argv.index("-f") + 1]).read_text().replace("/content", str(machine))
    environment = {{name: value for name, value in os.environ.items() if name != "HF_TOKEN"}}
    subprocess.run([sys.executable, "-c", script], cwd=machine, env=environment)
sys.exit({refuses!r} == sys.argv[1])
"""
"""Does what `colab` does, on this machine in a folder: its kernel has none of this shell's secrets, and `exec` always
succeeds."""


def run_kit(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["cloud", *words, "--cloud", "colab"])
    return int(ended.value.code or 0)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the machine, whose `pip` installs nothing, because kit is there."""
    commands, machine = tmp_path / "bin", tmp_path / "machine"
    commands.mkdir()
    machine.mkdir()
    put(commands / "colab", COLAB.format(python=sys.executable, machine=str(machine), refuses=""))
    put(commands / "pip", "#!/bin/sh\n")
    put(commands / "kit", f'#!/bin/sh\nexec {sys.executable} -m kit "$@"\n')
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(cloud.__file__).parents[2]))
    monkeypatch.setenv("KIT_FILM_S", "0.1")
    monkeypatch.chdir(tmp_path)
    write("hf://me/runs")
    return machine


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def write(store: str, **fields: object) -> None:
    small = {"env": "Reach", "n_envs": 2, "total_steps": 64, "eval_every": 0, "overrides": {"n_steps": 16}}
    Path("reach.yaml").write_text(yaml.safe_dump({**small, "store": store, **fields}))


def calls(machine: Path) -> list[list[str]]:
    return [line.split() for line in (machine / "calls").read_text().splitlines()]


def test_a_run_trains_on_the_machine_and_arrives_in_the_store(
    machine: Path, hub: HubServer, capfd: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    assert run_kit("launch", "reach.yaml", "--gpu", "T4", "--hours", "2") == 0
    said = capfd.readouterr().out
    assert any(name.endswith("latest.json") for name in hub.repos["me/runs"].files), said
    assert colab.ENDED not in said
    new, upload, execute, stop = calls(machine)
    session = new[new.index("-s") + 1]
    assert new == ["new", "-s", session, "--gpu", "T4"] and stop == ["stop", "-s", session]
    assert upload[0] == "upload" and execute[0] == "exec" and execute[-2:] == ["--timeout", "8100"]
    assert WRITE_TOKEN not in (machine / "calls").read_text()
    assert not (machine / ".kit-secrets").exists(), "the job deletes it before it starts"


@pytest.mark.parametrize(("env", "code"), [(SLOW, 0), ("Nowhere", 2)])
def test_the_session_ends_after_its_time_and_after_an_error(machine: Path, env: str, code: int) -> None:
    """35 seconds of training, and a task that does not exist on the machine."""
    (machine / "store").mkdir()
    write("hf://me/runs", env="Reach", total_steps=10**7)
    task = cloud.task("reach.yaml", spot=False, own_python=False, hours=35 / 3600)
    run = task["run"].replace("hf://me/runs", f"file://{machine}/store").replace("Reach", env)
    assert colab.launch({**task, "run": run, "secrets": {}}, None, 1.0) == code
    assert [words[0] for words in calls(machine)] == ["new", "exec", "stop"]
    if code == 0:
        trained = Run(machine / "runs/reach-tests.envs.slow-slow-ppo-s0")
        assert trained.status()["state"] == "interrupted" and trained.status()["step"] > 0
        assert trained.checkpoints()[-1].step == trained.status()["step"]
        assert (machine / "store" / trained.name / "latest.json").exists(), "it was copied before the task ended"
    else:
        assert not list((machine / "store").iterdir())


def test_a_machine_that_is_refused_costs_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    put(machine.parent / "bin/colab", COLAB.format(python=sys.executable, machine=str(machine), refuses="new"))
    assert run_kit("launch", "reach.yaml") == 1
    assert [words[0] for words in calls(machine)] == ["new"]


def test_ctrl_c_while_a_machine_is_rented_ends_its_session(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    rents = f'#!/bin/sh\necho "$@" >> {machine}/calls\n[ "$1" = new ] || exit 0\nkill -INT $PPID\nsleep 5\n'
    put(machine.parent / "bin/colab", rents)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores SIGINT
    try:
        with pytest.raises(KeyboardInterrupt):
            colab.launch(cloud.task("reach.yaml", spot=False, own_python=False), None, None)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [words[0] for words in calls(machine)] == ["new", "stop"]


def test_a_session_that_cannot_be_ended_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(machine.parent / "bin/colab", COLAB.format(python=sys.executable, machine=str(machine), refuses="stop"))
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    task = {**cloud.task("reach.yaml", spot=False, own_python=False), "setup": "", "run": "exit 3\n"}
    assert colab.launch(task, None, None) == 3
    assert f"colab stop -s kit-{task['name']}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["launch", "--gpu", "V100"], "gpu='V100' is not offered by Colab; choose T4, L4, G4, A100, H100"),
        (["launch", "--hours", "30"], "hours=30 must be above 0 and at most 24"),
        (["launch"], "HF_TOKEN is not set in this shell"),
        (["launch", "--dollars", "2"], "costs compute units, not dollars"),
        (["launch", "--volume", "disk"], "volume='disk' works only on runpod"),
        (["launch", "--on-demand"], "--on-demand has no effect with --cloud colab"),
        (["launch", "--cpus", "4"], "cpus=4 has no effect with --cloud colab"),
        (["plan"], "costs compute units, not dollars"),
    ],
)
def test_what_cannot_work_is_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert run_kit(words[0], "reach.yaml", *words[1:]) == 2
    assert sentence in capsys.readouterr().err and not (machine / "calls").exists()


def test_without_googles_command_line(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_kit("launch", "reach.yaml") == 2
    assert "pipx install google-colab-cli" in capsys.readouterr().err


@pytest.mark.skipif("KIT_COLAB" not in os.environ, reason="google-colab-cli is not installed")
@pytest.mark.parametrize("gpu", [None, *colab.GPUS])
def test_googles_command_line_accepts_the_commands(machine: Path, gpu: str | None) -> None:
    commands = colab.commands(cloud.task("reach.yaml", spot=False, own_python=False), machine, gpu, 2.0)
    check = [os.environ["KIT_COLAB"], str(Path(__file__).with_name("colab_check.py")), json.dumps(commands)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parsed = {line.split()[0]: json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines()}
    assert parsed["new"].get("gpu") == gpu and parsed["exec"]["timeout"] == 8100.0
    assert parsed["upload"]["remote_path"] == colab.SECRETS and parsed["stop"]["session"].startswith("kit-")


@pytest.mark.live
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("colab") is None, reason="Colab itself: pipx install google-colab-cli")
def test_a_real_colab_machine_trains_and_its_run_arrives_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    huggingface_hub = pytest.importorskip("huggingface_hub")
    with live.hub() as store:
        monkeypatch.setenv("HF_TOKEN", huggingface_hub.get_token())
        write(store, total_steps=20_000)
        assert run_kit("launch", "reach.yaml", "--hours", "0.2") == 0
        assert any(name.endswith("latest.json") for name in huggingface_hub.list_repo_files(store.removeprefix("hf://")))
