"""Tests of Hugging Face Jobs with the real client: prices, limits in dollars, what is sent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from kit.cli import main
from kit.errors import UserError
from kit.scale import hf_jobs
from tests.stores import live
from tests.stores.conftest import hub  # noqa: F401
from tests.stores.hub_server import OTHER_TOKEN, WRITE_TOKEN, HubServer


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("reach.yaml").write_text(yaml.safe_dump({"env": "Reach", "store": "hf://me/runs"}))
    return tmp_path


def run_kit(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["cloud", *words])
    return int(ended.value.code or 0)


def test_a_job_is_sent_with_its_limit_and_the_stores_secret(
    jobs: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    assert run_kit("launch", "reach.yaml", "--cloud", "hf", "--gpu", "t4-small", "--dollars", "1.2") == 0
    assert capsys.readouterr().out == f"{hub.endpoint}/jobs/me/job1: ends after 120 minutes at most, for 1.2 dollars\n"
    (sent,) = hub.jobs
    assert sent["flavor"] == "t4-small" and sent["timeoutSeconds"] == 7200, "0.6 dollars an hour"
    assert sent["secrets"] == {"HF_TOKEN": WRITE_TOKEN} and WRITE_TOKEN not in str(sent["command"])
    script = sent["command"][2]
    assert "timeout --signal=INT 6600 kit batch reach.yaml" in script, "five minutes to install, and five to upload"
    assert script.startswith("pip install") and sent["dockerImage"] == hf_jobs.IMAGE


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--gpu", "t4-small", "--dollars", "0.1"], "dollars=0.1 pays for 10 minutes of t4-small; give at least 0.15"),
        (["--gpu", "H100", "--dollars", "1"], "gpu='H100' is no machine of the Hub; valid are cpu-basic (0.01 $/h), "),
        (["--gpu", "t4-small"], "cloud='hf' needs --gpu"),
        (["--gpu", "t4-small", "--dollars", "-1"], "dollars=-1 must be a number above 0"),
        (["--gpu", "t4-small", "--dollars", "nan"], "dollars=nan must be a number above 0"),
        (["--gpu", "t4-small", "--dollars", "1", "--volume", "disk"], "volume='disk' works only on runpod"),
        (["--gpu", "t4-small", "--dollars", "1", "--on-demand"], "--on-demand has no effect with --cloud hf"),
        (["--gpu", "t4-small", "--dollars", "1", "--cpus", "8"], "cpus=8 has no effect with --cloud hf"),
    ],
)
def test_a_job_that_cannot_work_is_refused(
    jobs: Path, hub: HubServer, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str  # noqa: F811
) -> None:
    assert run_kit("launch", "reach.yaml", "--cloud", "hf", *words) == 2
    assert sentence in capsys.readouterr().err and not hub.jobs


def test_a_token_that_may_not_start_jobs(jobs: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("HF_TOKEN", OTHER_TOKEN)
    with pytest.raises(UserError, match=r"the Hub did not start the job .*403"):
        hf_jobs.launch(hf_jobs.job("reach.yaml", "t4-small", 1.0))


def test_a_plan_lists_the_hubs_machines(
    jobs: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    assert run_kit("plan", "reach.yaml", "--cloud", "hf") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hf", "t4-small", "T4", "4.0", "0.600"] in [row[:5] for row in rows]


@pytest.mark.live
@pytest.mark.timeout(1200)
def test_a_real_job_trains_and_its_run_arrives_in_the_store(jobs: Path) -> None:
    """On the Hub's smallest machine, for less than a cent; needs a token that may start jobs."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    with live.hub() as store:
        Path("reach.yaml").write_text(yaml.safe_dump({"env": "Reach", "total_steps": 20_000, "store": store}))
        smallest = hf_jobs.machines()[0]
        planned = hf_jobs.job("reach.yaml", smallest.name, max(0.01, smallest.usd_per_h * hf_jobs.LEAST_S / 3600))
        page, api = hf_jobs.launch(planned), huggingface_hub.HfApi()
        while (job := api.inspect_job(job_id=page.rpartition("/")[2])).status.stage in ("SCHEDULING", "RUNNING"):
            time.sleep(10)
        assert job.status.stage == "COMPLETED", job.status
        assert any(name.endswith("latest.json") for name in api.list_repo_files(store.removeprefix("hf://")))
