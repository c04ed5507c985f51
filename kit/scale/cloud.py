"""Runs on rented machines: a task for SkyPilot that begins or resumes them wherever there is room, and what it costs.

SkyPilot lives in an environment of its own (`pipx install 'skypilot[aws,runpod,lambda]'`): it holds back packages that
the rest wants newer. What it is given is a YAML file; what is known of machines and prices is read in its catalogue.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kit
from kit.config import RunConfig, folder_name, read_yaml
from kit.errors import UserError
from kit.machine import limits
from kit.runs import provenance
from kit.runs.finding import local_runs
from kit.runs.status import INTERRUPTED
from kit.scale import files, notebooks, sweep
from kit.scale.batch import check, of_file

if TYPE_CHECKING:
    import pandas as pd

    from kit.measure.speed import Speed

SAID = (
    "Hours of {}, scaled from this machine by cores; with a card they are those that a run of this task and algorithm "
    "had on one like it, where there is such a run in {}."
)
CATALOGUE = "~/.sky/catalogs/v8"
SECRETS = {"hf": ("HF_TOKEN",), "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
"""What opens a store, by the beginning of its URL: named in the task, never written into it."""
EXTRAS = {"jobs": "video,stores,gpu", "sweep": "video,stores,gpu,scale", "notebook": "notebook,video,stores,gpu"}


@dataclass(frozen=True)
class Provider:
    """What SkyPilot can do there; of its sources, `sky/clouds/*.py` of 0.14.1."""

    recovers: bool
    """Managed jobs: what was taken away begins again elsewhere."""
    spot: bool
    volumes: bool
    why: str = ""


PROVIDERS = {
    "aws": Provider(recovers=True, spot=True, volumes=False),
    "runpod": Provider(recovers=True, spot=True, volumes=True),
    "lambda": Provider(recovers=False, spot=False, volumes=False, why="it rents on demand, and does not stop machines"),
}


def task(
    path: str | Path,
    *,
    cloud: str | None = None,
    gpu: str | None = None,
    cpus: int = 8,
    spot: bool = True,
    volume: str | None = None,
) -> dict[str, Any]:
    """SkyPilot's task that does what the YAML file at `path` says: a config, jobs, a search or notebooks, with a
    `store:` beyond the machine. `cloud` is aws, runpod, lambda, or None for whichever is cheapest; `gpu` such as "L4"
    or "A100:1", None for a machine of `cpus` cores. Raises `UserError`, also for what the provider cannot do."""
    provider = _provider(cloud)
    if provider is not None and spot and not provider.spot:
        raise UserError(f"cloud={cloud!r} has no spot machines: {provider.why}; say --on-demand.")
    if volume and (provider is None or not provider.volumes):
        raise UserError(f"volume={volume!r} can be had on runpod alone; name it as the cloud, or use a store.")
    kind, content = files.kind(path), read_yaml(path)
    brought = ""
    if kind == "notebook":
        rented = [(job.name, job.store, 1) for job in notebooks.planned(Path(path))[0]]
        notebook = Path(content["notebook"])
        content["notebook"] = notebook.name
        brought = f"cat > {notebook.name} <<'END'\n{notebook.read_text().rstrip()}\nEND\n"
    else:
        rented = [(run.run_name or Path(path).stem, run.store, run.processes) for run in asked(path)]
    for name, store, _ in rented:
        if "://" not in (store or "") and not (volume and (store or "").startswith("/volume")):
            others = "hf://you/runs, s3://bucket/runs or, with a volume, /volume/runs"
            raise UserError(f"{path}: store={store!r} of {name} goes with the machine; write one such as {others}.")
    resources: dict[str, Any] = {"infra": cloud} if cloud else {}
    cards = max(processes for _, _, processes in rented)
    gpu = f"{gpu}:{cards}" if gpu and cards > 1 and ":" not in gpu else gpu
    resources |= {"accelerators": gpu} if gpu else {"cpus": f"{cpus}+"}
    if provider is None or provider.recovers:
        resources |= {"use_spot": True} if spot else {}
        resources["job_recovery"] = {"strategy": "EAGER_NEXT_REGION", "recover_on_exit_codes": [INTERRUPTED]}
    name = f"{folder_name(Path(path).stem)}.yaml"  # what it asks for is called after it
    secrets = {secret for _, store, _ in rented for secret in SECRETS.get(str(store).partition(":")[0], ())}
    return {
        "name": rented[0][0] if len(rented) == 1 else Path(path).stem,
        "resources": resources,
        **({"volumes": {"/volume": volume}} if volume else {}),
        **({"secrets": dict.fromkeys(sorted(secrets))} if secrets else {}),
        "setup": f'pip install -q "kit[{EXTRAS[kind]}] @ git+{kit.HOME}"\n',
        "run": f"{brought}cat > {name} <<'END'\n{to_yaml(content)}END\nkit batch {name}\n",
    }


def _provider(cloud: str | None) -> Provider | None:
    if cloud is not None and cloud not in PROVIDERS:
        raise UserError(f"cloud={cloud!r} is unknown; valid are {', '.join(PROVIDERS)}.")
    return None if cloud is None else PROVIDERS[cloud]


def to_yaml(value: Any) -> str:
    """With long texts as blocks."""
    import yaml

    class Blocks(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Blocks.add_representer(str, text)
    return yaml.dump(value, Dumper=Blocks, sort_keys=False)


def launch(given: dict[str, Any]) -> int:
    """Hand the task to SkyPilot, which asks before it spends anything; its exit code. Raises `UserError`."""
    sky = shutil.which("sky")
    if sky is None:
        raise UserError("sky is not on the PATH; install it by itself: pipx install 'skypilot[aws,runpod,lambda]'.")
    missing = [name for name in given.get("secrets", {}) if name not in os.environ]
    if missing:
        raise UserError(f"{missing[0]} is not set in this shell; the machine needs it to open the store.")
    managed = "job_recovery" in given["resources"]
    with tempfile.TemporaryDirectory(prefix="kit-sky-") as folder:
        path = Path(folder, "task.yaml")
        path.write_text(to_yaml(given))
        secrets = [word for name in given.get("secrets", {}) for word in ("--secret", name)]
        command = [sky, "jobs", "launch", str(path)] if managed else [sky, "launch", "--down", str(path)]
        return subprocess.run([*command, *secrets], check=False).returncode


def asked(path: str | Path) -> list[RunConfig]:
    """The runs that a file asks for, of a search as many as it has trials. Raises `UserError`."""
    kind = files.kind(path)
    if kind == "notebook":
        raise UserError(f"{path} holds notebooks, and what they train is not said; plan for the config of one run.")
    if kind == "sweep":
        found = sweep.plan(path)[0]
        return [found.base] * found.trials
    jobs, _ = of_file(path, elsewhere=True)
    check(jobs, elsewhere=True)
    return [job.config for job in jobs]


def plan(
    config: RunConfig, speed: Speed, cloud: str | None = None, folder: str = CATALOGUE, runs: float = 1
) -> pd.DataFrame:
    """Machines of SkyPilot's catalogue, the cheapest of each kind, with what so many `runs` of `config` would take and
    cost there, one after the other: hours scaled from `speed`, measured here, by the number of cores, or as runs in
    `config.runs_dir` had them on such cards. Raises `UserError` where there is no catalogue yet."""
    import pandas as pd

    _provider(cloud)
    found = []
    for name in [cloud] if cloud else PROVIDERS:
        path = Path(folder).expanduser() / str(name) / "vms.csv"
        if path.is_file():
            found.append(pd.read_csv(path).assign(cloud=name))
    if not found:
        raise UserError(f"{folder} holds no catalogue; SkyPilot fetches it: `sky gpus list --all` in its environment.")
    machines = pd.concat(found, ignore_index=True).dropna(subset=["Price", "vCPUs"])
    machines = machines.sort_values("Price").drop_duplicates(["cloud", "InstanceType"])
    card, cards = machines["AcceleratorName"].fillna(""), machines["AcceleratorCount"].fillna(0)
    seen = _on_gpus(config)
    hours = [
        _hours(config, speed, float(vcpus) / 2)
        if not name
        else next((hours for words, hours in seen if {*name.split("-")} <= words and count >= config.processes), None)
        for name, count, vcpus in zip(card, cards, machines["vCPUs"], strict=True)
    ]
    table = pd.DataFrame({
        "cloud": machines["cloud"], "machine": machines["InstanceType"],
        "card": card.where(cards < 2, cards.map("{:g} ".format) + card), "vCPUs": machines["vCPUs"],
        "$/h": machines["Price"], "$/h spot": machines["SpotPrice"],
        "hours": pd.Series(hours, machines.index, dtype=float) * runs,
    })  # fmt: skip
    table["$"] = table["hours"] * table["$/h"]
    table["$ spot"] = table["hours"] * table["$/h spot"]
    return table.sort_values(["$", "$/h"]).reset_index(drop=True)


def _on_gpus(config: RunConfig) -> list[tuple[set[str], float]]:
    """Of runs of the same task and algorithm that trained on a card, the newest first: the words of its name, as in
    SkyPilot's A100-80GB or RTX4090, and the hours that `config` would take at its env steps per second."""
    found = []
    for run in local_runs(config.runs_dir):
        cards = (provenance.read(run.path) or [{}])[-1].get("cards")
        same = (run.config.env, run.config.algo, run.config.processes) == (config.env, config.algo, config.processes)
        if not same or not cards or run.config.device == "cpu":
            continue
        rates = [float(row["time/fps"]) for row in run.rows() if row.get("time/fps")]
        words = set(re.split(r"[ -]", cards[0].replace("RTX ", "RTX")))
        found += [(words, config.total_steps / rates[-1] / 3600)] if rates else []
    return found


def _hours(config: RunConfig, speed: Speed, cores: float) -> float:
    """Physics takes the less the more cores there are, two vCPUs to a core; the network takes what it takes here."""
    share = min(1.0, speed.steps_per_s / speed.env_steps_per_s)
    return speed.seconds(config) * (1 - share + share * limits.usable_cores() / max(1.0, cores)) / 3600
