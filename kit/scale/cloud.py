"""Rented cloud machines: a SkyPilot task that starts or resumes runs, and a table of machines and prices.

SkyPilot needs its own environment (`pipx install 'skypilot[aws,runpod,lambda]'`), because it requires older versions of
some packages. kit passes it the task as a YAML file and reads machines and prices from its catalogue files.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import kit
from kit import trust
from kit.config import SCRIPTED, RunConfig, dump_yaml, folder_name, read_yaml
from kit.errors import UserError, check_whole
from kit.machine import limits
from kit.runs import provenance
from kit.runs.finding import local_runs
from kit.runs.status import INTERRUPTED
from kit.scale import files, notebooks, study
from kit.scale.batch import check, read_jobs

if TYPE_CHECKING:
    import pandas as pd

    from kit.measure.speed import Speed

FOOTNOTE = (
    "Hours of {}. Without a GPU: measured on this machine and scaled by the number of cores. With a GPU: known only if "
    "{} holds a run of this task and algorithm on the same kind of GPU."
)
"""Text under the table of machines; the placeholders are a text such as "one run", and runs_dir."""
CPUS = 8
"""vCPUs of a machine without a GPU."""
CATALOGUE = "~/.sky/catalogs/v8"
SECRETS = {"hf": ("HF_TOKEN",), "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
"""URL scheme of a store -> environment variables with the store's keys. The task contains only their names."""
LOST = ("file", "local", "memory", "gdrive-link", "http", "https")
"""URL schemes of stores that are lost with the machine, or that cannot be written."""
EXTRAS = {
    "jobs": "video,stores,s3,gpu", "sweep": "video,stores,s3,gpu,scale", "notebook": "notebook,video,stores,s3,gpu",
}  # fmt: skip
"""Kind of file (`kit.scale.files.kind`) -> extras with which the machine installs kit."""
OWN_PYTHON = 'export PATH="$HOME/kit-python/bin:$HOME/.local/bin:$PATH"\n'
"""Shell line that puts kit's own Python first, and uv.

SkyPilot's machines have uv in ~/.local/bin, and Conda's Python 3.10, which is too old for kit (SKY_UV_INSTALL_DIR and
CONDA_INSTALLATION_COMMANDS in its sky/skylet/constants.py).
"""

PROVIDERS = {"aws": {"spot"}, "runpod": {"spot", "volumes"}, "lambda": set[str]()}
"""Cloud -> features that SkyPilot supports there, according to `sky/clouds/*.py` of version 0.14.1.

spot: cheaper machines that the cloud may take away; a managed job then starts again on another machine. volumes:
network volumes, which stay when the machine ends.
"""


def task(
    path: str | Path,
    *,
    cloud: str | None = None,
    gpu: str | None = None,
    cpus: int = CPUS,
    spot: bool = True,
    volume: str | None = None,
    hours: float | None = None,
    own_python: bool = True,
) -> dict[str, Any]:
    """Return the SkyPilot task (a dict for YAML) for the file at `path`: a config, jobs, a search or notebooks.

    The file's `store:` must not be on the rented machine. `cloud`: aws, runpod, lambda, or None for the cheapest.
    `gpu`: a name such as "L4" or "A100:1", or None for a machine with at least `cpus` vCPUs. `volume`: name of a RunPod
    network volume, mounted at /volume. After `hours` every run stops with a checkpoint, and the task ends.
    `own_python=False`: install kit into the machine's Python. Raises `UserError`, also for an option that the cloud
    lacks.
    """
    supported = _supported(cloud)
    check_whole("cpus", cpus, 1)
    if spot and "spot" not in supported:
        raise UserError(f"cloud={cloud!r} has no spot machines; add --on-demand.")
    if volume and "volumes" not in supported:
        raise UserError(f"volume={volume!r} works only on runpod; use --cloud runpod, or a store instead of a volume.")
    kind, content = files.kind(path), read_yaml(path)
    write_files = ""
    if kind == "notebook":
        jobs = [(job.name, job.store, 1) for job in notebooks.plan_jobs(Path(path))[0]]
        notebook = Path(content["notebook"])
        content["notebook"] = notebook.name
        write_files = _writes(notebook.name, notebook.read_text())
    else:
        configs = configs_of(path)
        jobs = [(run.run_name or Path(path).stem, run.store, run.processes) for run in configs]
        space = content["sweep"]["space"] if kind == "sweep" else {}
        configs += [configs[0].replace(**{name: choice}) for name in trust.NAMES for choice in space.get(name, [])]
        for module, file in sorted({item for config in configs for item in trust.named_files(config).items()}):
            if file.name != f"{module}.py":
                raise UserError(
                    f"{path} names the module {module!r}, whose folder does not travel to the rented machine ({file}); "
                    f"put what it needs into one file beside {path}, and name that."
                )
            write_files += _writes(file.name, file.read_text())
        entries = content if isinstance(content, list) else [content, *content.get("jobs", [])]
        for key, source in ((key, entry.get(key)) for entry in entries for key in ("start_from", "teacher", "dataset")):
            scripted = str(source).partition(":")[0] == SCRIPTED
            if source is not None and not scripted and not _is_remote(str(source), volume):
                raise UserError(f"{path}: {key}={source!r} is not on the rented machine; give its URL in a store.")
    for name, store, _ in jobs:
        if not _is_remote(store or "", volume) or str(store).partition(":")[0].lower() in LOST:
            stores = "hf://you/runs, s3://bucket/runs or, with a volume, /volume/runs"
            lost = "is lost with the machine or read-only"
            raise UserError(f"{path}: store={store!r} of {name} {lost}; use one such as {stores}.")
    resources: dict[str, Any] = {"infra": cloud} if cloud else {}
    gpus = max(processes for _, _, processes in jobs)
    gpu = f"{gpu}:{gpus}" if gpu and gpus > 1 and ":" not in gpu else gpu
    resources |= {"accelerators": gpu} if gpu else {"cpus": f"{cpus}+"}
    if "spot" in supported:
        resources |= {"use_spot": True} if spot else {}
        resources["job_recovery"] = {"strategy": "EAGER_NEXT_REGION", "recover_on_exit_codes": [INTERRUPTED]}
    name = f"{folder_name(Path(path).stem)}.yaml"  # keep the file's name, because run names contain it
    path_line = OWN_PYTHON if own_python else ""
    secrets = {secret for _, store, _ in jobs for secret in SECRETS.get(str(store).partition(":")[0], ())}
    return {
        "name": jobs[0][0] if len(jobs) == 1 else Path(path).stem,
        "resources": resources,
        **({"volumes": {"/volume": volume}} if volume else {}),
        **({"secrets": dict.fromkeys(sorted(secrets))} if secrets else {}),
        "setup": _setup(EXTRAS[kind], own_python),
        "run": f"{path_line}{write_files}{_writes(name, dump_yaml(content))}{_command(name, hours)}\n",
    }


def _setup(extras: str, own_python: bool) -> str:
    """Return the shell commands that install kit."""
    package = f'"kit[{extras}] @ {kit.HOME}/archive/main.zip"\n'  # an archive needs no git
    if not own_python:
        return f"pip install -q {package}"
    make = "uv venv -q --allow-existing --python '>=3.11,<3.14' ~/kit-python\n"
    # the backend "auto" is a PyTorch that fits the machine's driver
    return f"{OWN_PYTHON}{make}uv pip install -q --python ~/kit-python --torch-backend auto {package}"


def _writes(name: str, text: str) -> str:
    """Return the shell command that writes the file `name`."""
    end = "END"
    while end in text:
        end += "_"
    return f"cat > {shlex.quote(name)} <<'{end}'\n{text.rstrip()}\n{end}\n"


def _is_remote(place: str, volume: str | None) -> bool:
    """Return whether `place` is a URL or a path on the mounted volume."""
    return "://" in place or (volume is not None and f"{place}/".startswith("/volume/"))


def _command(name: str, hours: float | None) -> str:
    """Return the shell command that runs the file `name`.

    After `hours` it is sent SIGINT (Ctrl-C), and the command exits with 0. Else its exit code is that of `kit batch`.
    """
    if hours is None:
        return f"kit batch {name}"
    if not 0 < hours < math.inf:
        raise UserError(f"hours={hours:g} must be a number above 0, such as 2.")
    limited = f"timeout --signal=INT {3600 * hours:.0f} kit batch {name}"  # exits with 124 when the time is over
    return f"{limited} || {{ code=$?; [ $code = 124 ] || exit $code; }}"


def _supported(cloud: str | None) -> set[str]:
    """Return the features of `cloud` in `PROVIDERS`; only spot if SkyPilot chooses the cloud. Raises `UserError`."""
    if cloud is not None and cloud not in PROVIDERS:
        raise UserError(f"cloud={cloud!r} is unknown; valid are {', '.join(PROVIDERS)}.")
    return {"spot"} if cloud is None else PROVIDERS[cloud]


def to_yaml(value: Any) -> str:
    """Format as YAML, with multi-line texts as blocks."""
    import yaml

    class Blocks(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Blocks.add_representer(str, text)
    return yaml.dump(value, Dumper=Blocks, sort_keys=False)


def launch(sky_task: dict[str, Any]) -> int:
    """Launch the task with SkyPilot, which asks before it spends money; return its exit code. Raises `UserError`."""
    sky = shutil.which("sky")
    if sky is None:
        raise UserError("sky is not on the PATH; install it separately: pipx install 'skypilot[aws,runpod,lambda]'.")
    secret_values(sky_task.get("secrets", ()))
    managed = "job_recovery" in sky_task["resources"]
    with tempfile.TemporaryDirectory(prefix="kit-sky-") as folder:
        path = Path(folder, "task.yaml")
        path.write_text(to_yaml(sky_task))
        secrets = [word for name in sky_task.get("secrets", {}) for word in ("--secret", name)]
        command = [sky, "jobs", "launch", str(path)] if managed else [sky, "launch", "--down", str(path)]
        return subprocess.run([*command, *secrets], check=False).returncode


def secret_values(names: Iterable[str], others: Mapping[str, str | None] = MappingProxyType({})) -> dict[str, str]:
    """Return values of environment variables, else from `others`. Raises `UserError` if one of `names` is missing."""
    values = {name: os.environ.get(name) or others.get(name) or "" for name in names}
    if missing := [name for name, value in values.items() if not value]:
        raise UserError(f"{missing[0]} is not set in this shell; the machine needs it to open the store.")
    return values


def configs_of(path: str | Path) -> list[RunConfig]:
    """Return the configs of a file's runs; for a search, the base config once per trial. Raises `UserError`."""
    kind = files.kind(path)
    if kind == "notebook":
        raise UserError(f"{path} holds notebooks, whose configs are unknown; plan with the config of one run instead.")
    if kind == "sweep":
        search = study.plan(path)[0]
        return [search.base] * search.trials
    jobs, _ = read_jobs(path, elsewhere=True)
    check(jobs, elsewhere=True)
    return [job.config for job in jobs]


def plan(
    config: RunConfig, speed: Speed, cloud: str | None = None, folder: str = CATALOGUE, runs: float = 1,
    machines: pd.DataFrame | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return a table of machines, with the hours and the price of `runs` runs of `config` in sequence.

    Without a GPU, the hours are computed from `speed`, measured on this machine, and scaled by the number of cores.
    With a GPU, the hours come from a run in `config.runs_dir` on the same kind of GPU, and are missing without such a
    run. Each machine is listed with its cheapest offer. `folder`: SkyPilot's catalogue; `machines`: a table with the
    same columns, used instead. Raises `UserError` if the catalogue is missing.
    """
    import pandas as pd

    machines = _catalogue(cloud, folder) if machines is None else machines
    machines = machines.sort_values("Price").drop_duplicates(["cloud", "InstanceType"])
    gpu, count = machines["AcceleratorName"].fillna(""), machines["AcceleratorCount"].fillna(0)
    measured = _hours_on_gpus(config)
    hours = [
        _hours(config, speed, float(vcpus) / 2)
        if not name
        else next((hours for words, hours in measured if {*name.split("-")} <= words and n >= config.processes), None)
        for name, n, vcpus in zip(gpu, count, machines["vCPUs"], strict=True)
    ]
    table = pd.DataFrame({
        "cloud": machines["cloud"], "machine": machines["InstanceType"],
        "GPU": gpu.where(count < 2, count.map("{:g} ".format) + gpu), "vCPUs": machines["vCPUs"],
        "$/h": machines["Price"], "$/h spot": machines["SpotPrice"],
        "hours": pd.Series(hours, machines.index, dtype=float) * runs,
    })  # fmt: skip
    table["$"] = table["hours"] * table["$/h"]
    table["$ spot"] = table["hours"] * table["$/h spot"]
    return table.sort_values(["$", "$/h"]).reset_index(drop=True)


def _catalogue(cloud: str | None, folder: str) -> pd.DataFrame:
    """Return SkyPilot's machines and prices."""
    import pandas as pd

    _supported(cloud)
    catalogues = []
    for name in [cloud] if cloud else PROVIDERS:
        path = Path(folder).expanduser() / str(name) / "vms.csv"
        if path.is_file():
            catalogues.append(pd.read_csv(path).assign(cloud=name))
    if not catalogues:
        raise UserError(f"{folder} holds no catalogue; SkyPilot fetches it: `sky gpus list --all` in its environment.")
    return pd.concat(catalogues, ignore_index=True).dropna(subset=["Price", "vCPUs"])


def _hours_on_gpus(config: RunConfig) -> list[tuple[set[str], float]]:
    """Return (words of the GPU's name, hours) of each GPU run of the same task and algorithm, the newest first.

    The words match SkyPilot's names, such as A100-80GB or RTX4090. The hours are those of `config` at the run's speed.
    """
    measured = []
    for run in local_runs(config.runs_dir):
        gpus = (provenance.read(run.path) or [{}])[-1].get("cards")
        same = (run.config.env, run.config.algo, run.config.processes) == (config.env, config.algo, config.processes)
        if not same or not gpus or run.config.device == "cpu":
            continue
        rates = [float(row["time/fps"]) for row in run.rows() if row.get("time/fps")]
        words = set(re.split(r"[ -]", gpus[0].replace("RTX ", "RTX")))
        measured += [(words, config.total_steps / rates[-1] / 3600)] if rates else []
    return measured


def _hours(config: RunConfig, speed: Speed, cores: float) -> float:
    """Estimate the hours of `config` on `cores` CPU cores, from the `speed` measured on this machine.

    Physics scales with the number of cores; updates take the same time.
    """
    share = 1 - speed.update_share
    return speed.seconds(config) * (1 - share + share * limits.usable_cores() / max(1.0, cores)) / 3600
