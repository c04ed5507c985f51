"""Tests of rented machines: SkyPilot tasks, refused options, table of prices, SkyPilot's own check of the tasks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

import kit
from kit.cli import main
from kit.errors import UserError
from kit.measure.speed import Speed
from kit.runs.fingerprint import fingerprint
from kit.scale.cloud import configs_of, plan, task
from kit.scale.notebooks import plan_jobs
from tests.runs.crash import create
from tests.scale.shared import write_notebook

VMS = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
CATALOGUE = {
    "aws": [
        "m6i.2xlarge,,,8,32,,0.384,0.15,us-east-1,us-east-1a", "m6i.2xlarge,,,8,32,,0.42,0.2,us-west-1,us-west-1a",
        "c6i.8xlarge,,,32,64,,1.36,0.5,us-east-1,us-east-1a", "g6.xlarge,L4,1,4,16,,0.8,0.3,us-east-1,us-east-1a",
        "g6.12xlarge,L4,4,48,192,,4.6,1.6,us-east-1,us-east-1a",
    ],
    "runpod": ["1x_RTX4090_SECURE,RTX4090,1,16,24,,0.69,0.34,US,US-GA-1"],
    "lambda": ["gpu_1x_a10,A10,1,30,200,,0.75,,us-east-1"],
}  # fmt: skip
"""Rows in the columns of SkyPilot's catalogue; the prices are invented."""
ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "01_train.ipynb"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for cloud, rows in CATALOGUE.items():
        folder = tmp_path / "home/.sky/catalogs/v8" / cloud
        folder.mkdir(parents=True)
        (folder / "vms.csv").write_text(
            (VMS if cloud != "lambda" else VMS.replace(",AvailabilityZone", "")) + "".join(f"{row}\n" for row in rows)
        )
    common = tmp_path / "home/.sky/catalogs/v8/common"
    common.mkdir()
    (common / "accelerators.csv").write_text("AcceleratorName,Clouds\nL4,AWS\nRTX4090,RunPod\nA10,Lambda\n")
    (common / "metadata.csv").write_text("GPU,MemoryGiB,Manufacturer\nL4,24,NVIDIA\n")
    write(env="Reach", total_steps=100_000, store="s3://robots/runs")
    return tmp_path / "home"


def write(**fields: Any) -> None:
    Path("reach.yaml").write_text(yaml.safe_dump(fields))


def test_task_starts_or_resumes_and_requests_recovery_of_a_lost_machine(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cloud", "task", "reach.yaml", "--cloud", "aws", "--gpu", "L4"])
    found = yaml.safe_load(capsys.readouterr().out)
    assert ended.value.code == 0
    assert found["resources"] == {
        "infra": "aws", "accelerators": "L4", "use_spot": True,
        "job_recovery": {"strategy": "EAGER_NEXT_REGION", "recover_on_exit_codes": [75]},
    }  # fmt: skip
    assert found["secrets"] == {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "only names, no values"
    write(env="Reach", processes=4, store="s3://robots/runs")
    assert task("reach.yaml", gpu="L4")["resources"]["accelerators"] == "L4:4"
    local: dict[str, Any] = {"env": "Reach", "n_envs": 2, "total_steps": 64, "eval_every": 0}
    local["overrides"] = {"n_steps": 16}
    (tmp_path / "store").mkdir()
    write(**local, store="s3://robots/runs")
    store = f"file://{tmp_path}/store"
    first = kit.train(**local, store=store, run_name="reach-reach-ppo-s0")
    shell = task("reach.yaml")["run"].replace("s3://robots/runs", store)
    (tmp_path / "machine").mkdir()  # it has only the store, and finds the run finished
    path = os.pathsep.join([str(Path(kit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = shell.replace("kit batch", f"{sys.executable} -m kit batch")
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run(["bash", "-ec", command], cwd="machine", env=environment, check=False).returncode == 0
    assert fingerprint("machine/runs/reach-reach-ppo-s0") == fingerprint(first)
    assert not kit.Run("machine/runs/reach-reach-ppo-s0").log(), "nothing is trained there"


@pytest.mark.parametrize(
    ("fields", "where", "words"),
    [
        ({"env": "Reach"}, {}, r"store=None of reach-reach-ppo-s0 is lost with .* read-only; use one such as hf://"),
        ({"env": "Reach", "store": "runs2"}, {}, r"runs2' of reach-reach-ppo-s0 is lost with the machine"),
        ({"store": "/data/runs"}, {"cloud": "runpod", "volume": "v"}, r"or, with a volume, /volume/runs"),
        ({"store": "s3://b/r"}, {"cpus": 0}, r"cpus=0 must be a whole number of at least 1"),
        ({"store": "s3://b/r"}, {"hours": float("nan")}, r"hours=nan must be a number above 0, such as 2"),
        ({}, {"cloud": "azure"}, r"cloud='azure' is unknown; valid are aws, runpod, lambda"),
        ({}, {"cloud": "lambda"}, r"cloud='lambda' has no spot machines; add --on-demand"),
        ({}, {"cloud": "aws", "volume": "v"}, r"volume='v' works only on runpod"),
        ({"sweep": {"space": {"gamma": [0.9]}}}, {}, r"store=None of reach is lost with the machine"),
        ({"store": "/volumes/runs"}, {"cloud": "runpod", "volume": "v"}, r"store='/volumes/runs' of .* is lost"),
        ({"store": "file:///data/runs"}, {}, r"store='file:///data/runs' of .* is lost with the machine"),
        ({"store": "memory://runs"}, {}, r"is lost with the machine or read-only"),
        ({"store": "gdrive-link:https://drive.google.com/drive/folders/x"}, {}, r"is lost with the machine or read-"),
        ({"store": "s3://b/r", "algo": "BC", "dataset": "demos"}, {}, r"dataset='demos' is not on the rented machine"),
        ({"store": "s3://b/r", "jobs": [{"algo": "Distill", "teacher": "old@best"}]}, {}, r"teacher='old@best' is not"),
    ],
)
def test_invalid_task_is_refused_before_a_machine_is_rented(
    home: Path, fields: dict[str, Any], where: dict[str, Any], words: str
) -> None:
    if fields:
        write(**fields)
    with pytest.raises(UserError, match=words):
        task("reach.yaml", **where)


@pytest.mark.parametrize(("ends", "code"), [("exit 75", 75), ("exit 1", 1), ("exit 0", 0), ("sleep 9", 0)])
def test_a_limit_in_time_keeps_the_exit_code(home: Path, ends: str, code: int) -> None:
    """75 lets a managed job start again on another machine; 124 is `timeout`'s own, for when the time is over."""
    shell = task("reach.yaml", hours=1 / 3600)["run"].replace("kit batch reach.yaml", f"bash -c '{ends}'")
    assert subprocess.run(["bash", "-ec", shell], cwd=home, check=False).returncode == code


def test_the_file_of_an_own_task_travels_and_a_folder_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = "from tests.envs.corridor import Corridor\nTEXT = '''\nEND\n'''\n"
    Path("my_walk.py").write_text(own)
    Path("my_toy.py").write_text("from tests.trainers.toy import REINFORCE\n")
    Path("machine").mkdir()
    for fields in ({"env": "my_walk:Corridor"}, {"sweep": {"space": {"algo": ["PPO", "my_toy:REINFORCE"]}}}):
        write(store="s3://robots/runs", **fields)
        shell = task("reach.yaml")["run"].replace("kit batch", "true")
        subprocess.run(["bash", "-ec", shell], cwd="machine", check=True)
    assert Path("machine/my_walk.py").read_text() == own
    assert Path("machine/my_toy.py").read_text() == Path("my_toy.py").read_text()
    Path("my_folder").mkdir()
    Path("my_folder/__init__.py").write_text(own)
    write(store="s3://robots/runs", env="my_folder:Corridor")
    with pytest.raises(UserError, match=r"names the module 'my_folder', whose folder does not travel .*__init__.py"):
        task("reach.yaml")


def test_a_machine_with_an_old_python_gets_one_that_fits(home: Path) -> None:
    """SkyPilot's machines have Conda's Python 3.10, and uv in ~/.local/bin."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if uv is None:
        pytest.skip("could not import 'uv'")
    write(store="s3://robots/runs", env="Reach")
    found, folder = task("reach.yaml"), Path("machine/.local/bin")
    folder.mkdir(parents=True)
    (folder / "uv").symlink_to(uv)
    environment = {"HOME": str(Path("machine").resolve()), "PATH": os.environ["PATH"]}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    archive = f"{kit.HOME}/archive/main.zip"
    install = found["setup"].replace("-q --python ~", "--dry-run --no-deps --python ~").replace(archive, ROOT.as_uri())
    assert "uv pip install -q --python ~/kit-python --torch-backend auto " in found["setup"]
    install = install.replace("--torch-backend auto ", "")  # which needs another index
    done = subprocess.run(["bash", "-ec", install], env=environment, capture_output=True, text=True, check=False)
    if "error sending request" in done.stderr:
        pytest.skip("no package index can be reached")
    assert "+ kit @" in done.stderr, done.stderr
    own = Path("machine/kit-python/bin/kit")
    own.write_text("#!/bin/sh\necho own $*")
    own.chmod(0o755)
    ran = subprocess.run(["bash", "-ec", found["run"]], env=environment, cwd="machine", capture_output=True, check=True)
    assert ran.stdout == b"own batch reach.yaml\n"
    assert "kit-python" not in str(task("reach.yaml", own_python=False)), "Colab and Hugging Face Jobs have newer ones"


def test_a_name_that_looks_like_a_number_stays_a_text(home: Path) -> None:
    Path("reach.yaml").write_text("{run_name: '1e6', store: 's3://robots/runs'}")
    Path("machine").mkdir()
    shell = task("reach.yaml")["run"].replace("kit batch", "true")
    subprocess.run(["bash", "-ec", shell], cwd="machine", check=True)
    assert [config.run_name for config in configs_of("machine/reach.yaml")] == ["1e6"]


def test_tasks_for_searches_and_notebooks(home: Path) -> None:
    write(store="hf://me/runs", sweep={"space": {"gamma": [0.9, 0.99]}})
    search = task("reach.yaml", cloud="aws")
    assert search["name"] == "reach" and list(search["secrets"]) == ["HF_TOKEN"] and ",scale]" in search["setup"]
    parameters = nbformat.v4.new_code_cell("seed = 0", metadata={"tags": ["parameters"]})
    cells = [parameters, nbformat.v4.new_code_cell("print('END')\nprint(seed)")]
    Path("lab").mkdir()
    write(notebook="lab/own.ipynb", store="s3://robots/notebooks", grid={"seed": [0, 1]})
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "lab/own.ipynb")
    with pytest.raises(UserError, match=r"own.ipynb cannot be executed \(No kernel name found"):
        task("reach.yaml", cloud="aws")
    write_notebook("lab/own.ipynb", "seed = 0", "print('END')\nprint(seed)")
    found = task("reach.yaml", cloud="aws")
    assert "[notebook," in found["setup"]
    Path("machine").mkdir()
    subprocess.run(["bash", "-ec", found["run"].replace("kit batch", "true")], cwd="machine", check=True)
    assert nbformat.read("machine/own.ipynb", 4) == nbformat.read("lab/own.ipynb", 4)
    odd = Path("lab/own.ipynb").rename("lab/my $(exit 1) own.ipynb")
    write(notebook=str(odd), store="s3://robots/notebooks")
    shell = task("reach.yaml")["run"].replace("kit batch", "true")
    subprocess.run(["bash", "-ec", shell], cwd="machine", check=True)
    assert (Path("machine") / odd.name).is_file()
    write(notebook="lab/own.ipynb", store="s3://robots/notebooks", grid={"seed": [0, 1]})
    Path("machine/reach.yaml").write_text(Path("reach.yaml").read_text().replace("lab/", ""))
    os.chdir("machine")
    assert [job.parameters for job in plan_jobs(Path("reach.yaml"))[0]] == [{"seed": 0}, {"seed": 1}]


def test_a_plan_multiplies_hours_by_prices(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.machine.limits.usable_cores", lambda: 2)
    speed = Speed("Reach", "PPO", 8, "cpu", 2000.0, 2000.0, 1000.0)  # half of the time is physics
    config = kit.RunConfig(total_steps=36_000_000, eval_every=0)
    catalogue = str(home / ".sky/catalogs/v8")
    found = plan(config, speed, folder=catalogue)
    rows = {row["machine"]: row for row in found.to_dict("records")}
    assert list(rows)[:2] == ["m6i.2xlarge", "c6i.8xlarge"] and len(found) == 6
    assert rows["m6i.2xlarge"]["hours"] == pytest.approx(10 * (0.5 + 0.5 * 2 / 4), rel=0.01)
    assert rows["m6i.2xlarge"]["$ spot"] == pytest.approx(7.5 * 0.15, rel=0.01)
    assert rows["c6i.8xlarge"]["hours"] == pytest.approx(10 * (0.5 + 0.5 * 2 / 16), rel=0.01)
    assert rows["g6.xlarge"]["$/h"] == 0.8 and rows["g6.xlarge"]["hours"] != rows["g6.xlarge"]["hours"], "must be NaN"
    seen = create(Path("runs"), "seen", env="Reach", algo="PPO")
    (seen.path / "provenance.json").write_text(json.dumps([{"cards": ["NVIDIA L4"]}]))
    (seen.path / "config.yaml").write_text(seen.config.to_yaml().replace("device: cpu", "device: cuda"))
    (seen.path / "metrics.jsonl").write_text('{"step": 64, "time/fps": 20000}\n')
    rows = {row["machine"]: row for row in plan(config, speed, folder=catalogue).to_dict("records")}
    assert rows["g6.xlarge"]["$ spot"] == pytest.approx(0.3 * 36_000_000 / 20_000 / 3600), "from a run on an L4"
    assert rows["1x_RTX4090_SECURE"]["hours"] != rows["1x_RTX4090_SECURE"]["hours"]
    twice = plan(config, speed, folder=catalogue, runs=2).to_dict("records")
    assert {row["machine"]: row["hours"] for row in twice}["g6.xlarge"] == pytest.approx(2 * rows["g6.xlarge"]["hours"])
    write(env="Reach", sweep={"trials": 7, "space": {"gamma": [0.9]}})
    assert len(configs_of("reach.yaml")) == 7
    with pytest.raises(UserError, match=r"nowhere holds no catalogue; SkyPilot fetches it"):
        plan(config, speed, folder="nowhere")


@pytest.mark.skipif("KIT_SKY" not in os.environ, reason="SkyPilot is not installed")
@pytest.mark.parametrize(
    ("where", "clouds", "chosen"),
    [
        ({"cloud": "aws"}, ["aws"], "AWS m6i.2xlarge True"),
        ({"cloud": "aws", "gpu": "L4"}, ["aws", "runpod"], "AWS g6.xlarge True"),
        ({"cloud": "aws", "gpu": "L4", "processes": 4}, ["aws", "runpod"], "AWS g6.12xlarge True"),
        ({"cloud": "runpod", "gpu": "RTX4090"}, ["aws", "runpod"], "RunPod 1x_RTX4090_SECURE True"),
        ({"cloud": "lambda", "gpu": "A10", "spot": False}, ["lambda"], "Lambda gpu_1x_a10 False"),
        ({"cloud": "aws", "sweep": {"space": {"gamma": [0.9, 0.99]}}}, ["aws"], "AWS m6i.2xlarge True"),
        ({"cloud": "aws", "notebook": str(NOTEBOOK)}, ["aws"], "AWS m6i.2xlarge True"),
    ],
)
def test_skypilot_accepts_the_task(home: Path, where: dict[str, Any], clouds: list[str], chosen: str) -> None:
    from kit.scale.cloud import to_yaml

    given = {name: where.pop(name) for name in ("processes", "sweep", "notebook") if name in where}
    write(**({} if "notebook" in given else {"env": "Reach"}), store="s3://robots/runs", **given)
    Path("task.yaml").write_text(to_yaml(task("reach.yaml", **where)))
    environment = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    check = [os.environ["KIT_SKY"], str(Path(__file__).with_name("sky_check.py")), "task.yaml", *clouds]
    done = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.split("\n")[-2] == chosen, done.stdout + done.stderr
