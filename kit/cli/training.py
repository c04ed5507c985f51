"""Commands that train: train, resume, batch, cloud."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import kit
from kit.cli.shared import TRUST, Add, print_value
from kit.config import MAY_CHANGE_ON_RESUME, RunConfig, dump_yaml
from kit.errors import UserError

if TYPE_CHECKING:
    from kit.scale.study import Sweep
    from kit.scale.work import Results


def add_commands(add: Add) -> None:
    """Add the commands to the parser."""
    train = add("train", "start a run and train it to the end", _train)
    train.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="RunConfig's fields as YAML; flags override it")
    warm_start = "start from the policy and config of another run, or from the policy in a Stable-Baselines3 zip"
    train.add_argument("--from", "--start-from", dest="start_from", metavar="RUN[@STEP]|MODEL.zip", help=warm_start)
    defaults = {name: "none" if value is None else str(value) for name, value in RunConfig().to_dict().items()}
    _add_fields(train, defaults)

    resume = add("resume", "continue a run from its newest checkpoint", _resume)
    help = "the run's directory, or the run's URL in a store; default: the latest unfinished run"
    resume.add_argument("run", nargs="?", metavar="RUN|URL", help=help)
    resume.add_argument(
        "--max-gb", type=float, default=8.0, metavar="N", help="largest download from a store, in GiB; default: 8"
    )
    _add_fields(resume, dict.fromkeys((*MAY_CHANGE_ON_RESUME, "env_options"), "as in the run"))

    does = "train many runs, search for hyperparameters or execute notebooks; the same command continues them"
    batch = add("batch", does, _batch, reports=True)
    batch.add_argument(
        "action", nargs="?", choices=("status", "retry", "collect"),
        help="status: print the state of all jobs and train nothing; retry: train, and execute failed notebooks again; "
        "collect: download results from the store and train nothing; default: train",
    )  # fmt: skip
    batch.add_argument(
        "jobs", metavar="JOBS.yaml", help="RunConfig's fields, jobs and seeds; or a search; or a notebook and a grid"
    )
    batch.add_argument("--on", metavar="ray[://HOST:PORT]", help="train on a Ray cluster; default: on this machine")
    batch.add_argument("--cpus", type=float, metavar="N", help="CPU cores per job on a cluster; default: 1")
    batch.add_argument("--gpus", type=float, metavar="N", help="GPUs per job on a cluster, such as 0.5; default: 0")
    batch.add_argument("--seeds", type=int, metavar="N", help="train each job N times, with seeds 0, 1, ...")
    batch.add_argument("--at-once", type=int, metavar="N", help="jobs side by side, at most; default: as many as fit")

    for sub in (train, resume, batch):
        sub.add_argument("--trust", action="store_true", help=TRUST)

    rent = add("cloud", "rent machines: through SkyPilot, on Hugging Face Jobs or on Colab", _cloud, reports=True)
    rent.add_argument(
        "action", choices=("plan", "task", "launch"),
        help="plan: compare prices and times; task: print what would be sent; launch: start it",
    )  # fmt: skip
    rent.add_argument("config", metavar="CONFIG.yaml", help="a file as for kit train or kit batch, with a store")
    rent.add_argument(
        "--cloud", help="aws, runpod, lambda, hf (Hugging Face Jobs) or colab; default: SkyPilot's cheapest"
    )
    rent.add_argument("--gpu", metavar="NAME", help="GPU, such as L4 or A100:1; for hf its machine, such as t4-small")
    rent.add_argument("--cpus", type=int, metavar="N", help="vCPUs if there is no GPU; default: 8")
    rent.add_argument("--on-demand", action="store_true", help="rent on-demand machines, not spot machines")
    rent.add_argument("--volume", metavar="NAME", help="a RunPod network volume, mounted at /volume; default: none")
    rent.add_argument("--hours", type=float, metavar="N", help="stop all runs with a checkpoint after this time")
    most = "with --cloud hf: stop before the machine has cost this much"
    rent.add_argument("--dollars", type=float, metavar="N", help=most)
    rent.add_argument("--rows", type=int, default=12, metavar="N", help="rows of the plan to print; default: 12")


def _add_fields(parser: argparse.ArgumentParser, defaults: Mapping[str, str]) -> None:
    """Add a flag for each field of RunConfig in `defaults` (name -> text), with hyphens or underscores."""
    for field in dataclasses.fields(RunConfig):
        if field.name in defaults:
            flags = dict.fromkeys((f"--{field.name.replace('_', '-')}", f"--{field.name}"))
            help = f"{field.metadata['help']}; default: {defaults[field.name]}".replace("%", "%%")
            parser.add_argument(*flags, dest=f"field_{field.name}", metavar="X", help=help, default=argparse.SUPPRESS)


def _train(options: argparse.Namespace) -> int:
    if (code := _run_as_rank(options)) is not None:
        return code
    config = RunConfig.load(options.config) if options.config else None
    fields = _config_fields(options)
    with _bar() as show:
        run = kit.train(config, start_from=options.start_from, trust=options.trust, on_progress=show, **fields)
    code = _print_ending(run)
    if code == 0 and config is None and options.start_from is None and "total_steps" not in fields:
        _note_usual_steps(run)
    return code


def _note_usual_steps(run: Any) -> None:
    """Print the usual number of steps of the run's task if the run was trained for fewer."""
    from kit.envs import registry

    usual = getattr(registry.find(run.config.env), "train_steps", None) or 0
    if usual > run.config.total_steps:
        print(f"{run.config.env} usually needs {usual:,} steps: kit resume {run.path} --total-steps {usual} goes on.")


def _resume(options: argparse.Namespace) -> int:
    if (code := _run_as_rank(options)) is not None:
        return code
    fields = _config_fields(options)
    with _bar() as show:
        run = kit.resume(options.run, on_progress=show, max_gb=options.max_gb, trust=options.trust, **fields)
    return _print_ending(run)


def _run_as_rank(options: argparse.Namespace) -> int | None:
    """If torchrun started this process as a rank above 0, train and return the exit code; else return None.

    As rank 0, set the flag --processes to the number of processes.
    """
    from kit.trainers.distributed.group import from_torchrun

    group = from_torchrun()
    if group is None:
        return None
    if group.rank == 0:
        options.field_processes = str(group.size)
        return None
    from kit.runs.ranks import train_rank

    return train_rank(group)


def _config_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of RunConfig that flags have set: name -> parsed value."""
    texts = {n.removeprefix("field_"): text for n, text in vars(options).items() if n.startswith("field_")}
    return {name: RunConfig.from_text(name, text) for name, text in texts.items()}


@contextmanager
def _bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that shows a run's status as a progress bar; the first status opens the bar."""
    from kit.machine.progress import percent, progress_bar

    bar: Any = None
    with ExitStack() as closing:

        def show(status: dict[str, Any]) -> None:
            nonlocal bar
            step, total = min(status["step"], status["total_steps"]), status["total_steps"]
            if bar is None:
                bar = closing.enter_context(progress_bar(total, step, unit="step", unit_scale=True))
            rate = "" if status["success_rate"] is None else f", success {percent(status['success_rate'])}"
            bar.set_description_str(f"{status['phase']}{rate}", refresh=False)
            bar.update(max(0, step - bar.n))

        yield show


def _print_ending(run: Any) -> int:
    """Print how a session ended, and return its exit code."""
    from kit.runs.status import exit_code

    status = run.status()
    print(f"{run.path}: {status['message']}")
    return exit_code(status["state"])


def _batch(options: argparse.Namespace) -> int:
    from kit.runs.status import INTERRUPTED
    from kit.scale import files

    resources = {name: getattr(options, name) for name in ("at_once", "on", "cpus", "gpus")}
    if options.action in ("status", "collect"):
        return _print_jobs(options, files.standing(options.jobs, options.action == "collect", options.seeds))
    if options.action == "retry":
        files.forget_failures(options.jobs)
    try:
        results = files.do(options.jobs, options.seeds, options.trust, **resources)
    except KeyboardInterrupt:
        print(f"kit: interrupted; `kit batch {options.jobs}` continues", file=sys.stderr)
        return INTERRUPTED
    return _print_jobs(options, results)


def _print_jobs(options: argparse.Namespace, results: Results | Sweep) -> int:
    """Print the state of the jobs, or of a search's trials, and return the exit code."""
    from kit.machine.progress import percent
    from kit.runs.status import DONE, FAILED, INTERRUPTED
    from kit.scale.work import Results

    if not isinstance(results, Results):
        best = "" if results.best is None else dump_yaml(results.best.non_defaults())
        text = results.table().to_string(index=False, na_rep="")
        print_value(options, results.rows(), text + (f"\n\n# the best, for kit train FILE\n{best}" if best else ""))
        return FAILED if results.best is None else DONE
    lines = []
    for row in results:
        rate = "" if row["success_rate"] is None else f"  success {percent(row['success_rate'])}"
        score = "" if row["mean_return"] is None else f"  return {row['mean_return']:,.2f}"
        lines.append(f"{row['name']:40} {row['state']:12} {row['step']:>11,} of {row['total_steps']:,}{score}{rate}")
        lines += [f"    {row['message']}"] if row["state"] in ("failed", "waiting") and row["message"] else []
    print_value(options, results, "\n".join(lines))
    return FAILED if results.of("failed") else DONE if results.of("finished") == len(results) else INTERRUPTED


def _cloud(options: argparse.Namespace) -> int:
    from kit.scale import cloud, hf_jobs

    if options.cloud in ("hf", "colab"):
        _refuse_options_of_skypilot(options)
    if options.cloud == "colab":
        return _on_colab(options)
    if options.action == "plan":
        from kit.measure.auto import resolve
        from kit.measure.speed import probe

        requested = cloud.configs_of(options.config)
        config = resolve(requested[0].replace(device="cpu"))
        runs = sum(run.total_steps for run in requested) / config.total_steps
        machines = hf_jobs.catalogue() if options.cloud == "hf" else None
        table = cloud.plan(config, probe(config), options.cloud, runs=runs, machines=machines)
        text = table.head(options.rows).round(3).to_string(index=False, na_rep="")
        count = "one run" if len(requested) == 1 else f"{len(requested)} runs, one after the other"
        footnote = cloud.FOOTNOTE.format(count, config.runs_dir)
        rows = json.loads(table.to_json(orient="records"))  # null for NaN, which JSON does not have
        return print_value(options, rows, f"{text}\n\n{footnote}")
    if options.cloud == "hf":
        return _hf_job(options)
    if options.dollars is not None:
        raise UserError(f"dollars={options.dollars:g} works with --cloud hf, whose prices are fixed; give --hours.")
    task = cloud.task(
        options.config, cloud=options.cloud, gpu=options.gpu, spot=not options.on_demand, volume=options.volume,
        cpus=cloud.CPUS if options.cpus is None else options.cpus, hours=options.hours,
    )  # fmt: skip
    if options.action == "launch":
        return cloud.launch(task)
    return print_value(options, task, cloud.to_yaml(task).rstrip())


def _refuse_options_of_skypilot(options: argparse.Namespace) -> None:
    """Raise `UserError` for an option that Hugging Face Jobs and Colab do not have."""
    where = f"has no effect with --cloud {options.cloud}"
    if options.volume is not None:
        raise UserError(f"volume={options.volume!r} works only on runpod; use a store instead.")
    if options.on_demand:
        raise UserError(f"--on-demand {where}, which has no spot machines; leave it out.")
    if options.cpus is not None:
        raise UserError(f"cpus={options.cpus} {where}, where --gpu names the machine; leave it out.")


def _on_colab(options: argparse.Namespace) -> int:
    """Print what would run on a Colab machine, or run it there."""
    from kit.scale import cloud, colab

    if options.action == "plan" or options.dollars is not None:
        raise UserError("cloud='colab' costs compute units, not dollars: `colab usage` shows yours. Give --hours.")
    task = cloud.task(options.config, spot=False, hours=options.hours, own_python=False)
    if options.action == "launch":
        return colab.launch(task, options.gpu, options.hours)
    commands = [["colab", *words] for words in colab.commands(task, "FOLDER", options.gpu, options.hours)]
    script = colab.script(task)
    lines = [*map(shlex.join, commands), "", "# FOLDER/job.py", script.rstrip()]
    return print_value(options, {"commands": commands, "script": script}, "\n".join(lines))


def _hf_job(options: argparse.Namespace) -> int:
    """Print or start a job on Hugging Face Jobs."""
    from kit.scale import cloud, hf_jobs

    if options.dollars is None or options.gpu is None or options.hours is not None:
        raise UserError("cloud='hf' needs --gpu (a machine of `kit cloud plan --cloud hf`) and --dollars, not --hours.")
    job = hf_jobs.job(options.config, options.gpu, options.dollars)
    if options.action == "launch":
        page, minutes = hf_jobs.launch(job), job.timeout_s / 60
        print(f"{page}: ends after {minutes:.0f} minutes at most, for {options.dollars:g} dollars")
        return 0
    return print_value(options, job.to_dict(), cloud.to_yaml(job.to_dict()).rstrip())
