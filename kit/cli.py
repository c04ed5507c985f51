"""The command line `kit`: each subcommand calls one function of the library.

Exit codes: 0 done, 2 wrong request (one line on stderr), 75 interrupted and resumable, 1 anything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import kit
from kit.config import MAY_CHANGE_ON_RESUME, RunConfig, dump_yaml
from kit.errors import UserError

if TYPE_CHECKING:
    from kit.scale.study import Sweep
    from kit.scale.work import Results

WRONG_REQUEST = 2
HEADLINE = ("episodes", "mean_return", "std_return", "success_rate", "mean_length")
"""Metrics in the first line of `kit evaluate`; every task has them."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command in `arguments` (default: sys.argv), and exit."""
    options = _parser().parse_args(arguments)
    try:
        code = options.command(options)
    except UserError as error:
        print(f"kit: {error}", file=sys.stderr)
        code = WRONG_REQUEST
    except BrokenPipeError:
        code = 0
    except KeyboardInterrupt:  # not during training: `kit.train` and `kit.resume` handle it
        print("kit: interrupted", file=sys.stderr)
        code = 1
    sys.exit(code)


def _verify(options: argparse.Namespace) -> int:
    report = kit.verify()
    _print(options, report.to_dict(), str(report))
    return 0 if report.ok else 1


def _check(options: argparse.Namespace) -> int:
    from kit.trust import permit

    env_options = RunConfig.from_text("env_options", options.env_options)
    permit(RunConfig(env=options.env), trust=True)  # typing the name is consent
    kit.check_task(options.env, env_options, options.steps, say=lambda line: print(f"ok  {line}", flush=True))
    return 0


def _encoders(options: argparse.Namespace) -> int:
    from kit.encoders import ENCODERS

    rows = {n: {"does": info.does, "costs": info.costs, "use_when": info.use_when} for n, info in ENCODERS.items()}
    lines = [f"{n:<14}{r['does']}\n{'':14}costs {r['costs']}; use it when {r['use_when']}" for n, r in rows.items()]
    return _print(options, rows, "\n".join([*lines, "", COSTS]))


COSTS = "costs: multiply-adds for three cameras with 4 frames of 64×64 each, and number of parameters"


def _train(options: argparse.Namespace) -> int:
    if (code := _run_as_rank(options)) is not None:
        return code
    config = RunConfig.load(options.config) if options.config else None
    fields = _config_fields(options)
    with _bar() as show:
        run = kit.train(config, start_from=options.start_from, trust=options.trust, on_progress=show, **fields)
    return _print_ending(run)


def _resume(options: argparse.Namespace) -> int:
    if (code := _run_as_rank(options)) is not None:
        return code
    fields = _config_fields(options)
    with _bar() as show:
        run = kit.resume(options.run, on_progress=show, max_gb=options.max_gb, trust=options.trust, **fields)
    return _print_ending(run)


def _run_as_rank(options: argparse.Namespace) -> int | None:
    """If torchrun started this process with a rank above 0, train and return the exit code; else return None."""
    from kit.trainers.distributed.group import from_torchrun

    group = from_torchrun()
    if group is None:
        return None
    if group.rank == 0:
        options.field_processes = str(group.size)
        return None
    from kit.runs.ranks import train_rank

    return train_rank(group)


def _runs(options: argparse.Namespace) -> int:
    from kit.runs.finding import RunList, family, list_runs

    runs, lines, depth = list_runs(options.where), [], dict[str, int]()
    if options.tree and isinstance(runs, RunList):
        runs = family(runs)
    rows = runs.to_dicts()
    for run, row in zip(runs, rows, strict=True):
        name, rate, size = row["name"], "", ""
        if row["success_rate"] is not None:
            rate = f"  success {row['success_rate']:.0%}"
        if isinstance(run, kit.Run):
            size = f"  {run.size_bytes / 1e6:,.1f} MB, {run.copies()}"
            if options.tree and run.parent and run.parent[0] in depth:
                depth[row["name"]] = depth[run.parent[0]] + 1
                name = f"{'  ' * depth[row['name']]}{name} (from step {run.parent[1]:,})"
        depth.setdefault(row["name"], 0)
        progress = f"{row['step']:>11,} of {row['total_steps']:,} ({row['step'] / max(1, row['total_steps']):.0%})"
        lines.append(f"{name:40} {row['state']:12} {progress}{rate}{size}")
    return _print(options, rows, "\n".join(lines) or f"no runs in {options.where}; `kit train` starts one")


def _evaluate(options: argparse.Namespace) -> int:
    scores = kit.evaluate(options.run, options.episodes, options.step, trust=options.trust)
    rate = "" if scores["success_rate"] is None else f", success {scores['success_rate']:.1%}"
    line = f"{scores['episodes']} episodes: return {scores['mean_return']:.2f} ± {scores['std_return']:.2f}{rate}"
    others = [f"{name:32} {value:10.3f}" for name, value in scores.items() if name not in HEADLINE]
    return _print(options, scores, "\n".join([f"{line}, length {scores['mean_length']:.1f} steps", *others]))


def _video(options: argparse.Namespace) -> int:
    from kit.machine.progress import progress_bar
    from kit.runs.run import opened
    from kit.runs.video import failures_first, record

    cameras = tuple(options.cameras.split(",")) if options.cameras else None
    run, episodes = opened(options.run, options.trust), options.episodes
    with progress_bar(unit="frame", desc="recording") as bar:

        def on_frame(done: int, at_most: int) -> None:
            bar.total = at_most
            bar.update(done - bar.n)

        if options.failures:
            played, text = failures_first(run, options.step)
            print(text, file=sys.stderr)
            episodes = played[:episodes]
        path = record(run, options.step, cameras, episodes, options.size, options.output, on_frame)
    print(path)
    return 0


def _record(options: argparse.Namespace) -> int:
    from kit.machine.progress import progress_bar

    env_options = RunConfig.from_text("env_options", options.env_options)
    with progress_bar(unit="episode", desc="recording") as bar:

        def on_progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        path = kit.record(
            options.source, options.output, env=options.env, env_options=env_options, episodes=options.episodes,
            seed=options.seed, step=options.step, trust=options.trust, on_progress=on_progress,
        )  # fmt: skip
    print(path)
    return 0


def _view(options: argparse.Namespace) -> int:
    env_options = RunConfig.from_text("env_options", options.env_options)
    viewer = kit.ui.view(
        options.run, options.step, options.port, options.trust, env=options.env, env_options=env_options,
        n_envs=options.n_envs,
    )  # fmt: skip
    print(f"{viewer}; Ctrl-C ends it. From another machine: ssh -L {viewer.port}:localhost:{viewer.port} ...")
    try:
        viewer.wait()
    except KeyboardInterrupt:
        viewer.close()
    return 0


def _export(options: argparse.Namespace) -> int:
    print(kit.export(options.run, options.to, options.step, options.output, options.trust))
    return 0


def _push(options: argparse.Namespace) -> int:
    from kit.runs.publish import push

    print(push(options.run, options.url, options.step, options.episodes, options.trust))
    return 0


def _fingerprint(options: argparse.Namespace) -> int:
    from kit.format.checkpoint import Damaged
    from kit.runs.fingerprint import fingerprint

    try:
        print(fingerprint(kit.Run(options.run), options.step))
    except Damaged as damage:
        raise UserError(f"{options.run} has a damaged checkpoint ({damage}); name another with --step.") from None
    return 0


def _bench(options: argparse.Namespace) -> int:
    from kit.measure.speed import bench

    machine, speed = kit.machine.describe().title, bench(options.env)
    value = {"machine": machine, **dataclasses.asdict(speed), "update_share": speed.update_share}
    return _print(options, value, f"{machine}\n{speed}")


def _batch(options: argparse.Namespace) -> int:
    from kit.runs.status import INTERRUPTED
    from kit.scale import files

    resources = {name: getattr(options, name) for name in ("at_once", "on", "cpus", "gpus")}
    if options.action in ("status", "collect"):
        return _print_jobs(options, files.standing(options.jobs, fetch=options.action == "collect"))
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
    from kit.runs.status import DONE, FAILED, INTERRUPTED
    from kit.scale.work import Results

    if not isinstance(results, Results):
        best = "" if results.best is None else dump_yaml(results.best.non_defaults())
        text = results.table().to_string(index=False, na_rep="")
        _print(options, results.rows(), text + (f"\n\n# the best, for kit train FILE\n{best}" if best else ""))
        return FAILED if results.best is None else DONE
    lines = []
    for row in results:
        rate = "" if row["success_rate"] is None else f"  success {row['success_rate']:.0%}"
        score = "" if row["mean_return"] is None else f"  return {row['mean_return']:,.2f}"
        lines.append(f"{row['name']:40} {row['state']:12} {row['step']:>11,} of {row['total_steps']:,}{score}{rate}")
        lines += [f"    {row['message']}"] if row["state"] in ("failed", "waiting") and row["message"] else []
    _print(options, results, "\n".join(lines))
    return FAILED if results.of("failed") else DONE if results.of("finished") == len(results) else INTERRUPTED


def _cloud(options: argparse.Namespace) -> int:
    from kit.scale import cloud

    if options.action == "plan":
        from kit.measure.auto import resolve
        from kit.measure.speed import probe

        requested = cloud.configs_of(options.config)
        config = resolve(requested[0].replace(device="cpu"))
        runs = sum(run.total_steps for run in requested) / config.total_steps
        table = cloud.plan(config, probe(config), options.cloud, runs=runs)
        text = table.head(options.rows).round(3).to_string(index=False, na_rep="")
        count = "one run" if len(requested) == 1 else f"{len(requested)} runs, one after the other"
        return _print(options, table.to_dict("records"), f"{text}\n\n{cloud.FOOTNOTE.format(count, config.runs_dir)}")
    task = cloud.task(
        options.config, cloud=options.cloud, gpu=options.gpu, cpus=options.cpus, spot=not options.on_demand,
        volume=options.volume,
    )  # fmt: skip
    if options.action == "launch":
        return cloud.launch(task)
    return _print(options, task, cloud.to_yaml(task).rstrip())


CONTROLS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "pause": ("pause a run; it stays in memory", lambda now: now["state"] == "paused"),
    "unpause": ("continue a paused run", lambda now: now["state"] == "running"),
    "stop": ("write a checkpoint and stop a run; `kit resume` continues it", lambda now: False),
    "checkpoint": ("write a checkpoint of a run at the end of this iteration", lambda now: True),
}
"""Command for a running training -> (help text, function of a status: whether the command has taken effect)."""


def _control(options: argparse.Namespace) -> int:
    run = kit.Run(options.run)
    if not run.is_working():
        raise UserError(f"{run.path} is not running ({run.status()['state']}); `kit resume` continues it.")
    before, (_, done) = run.status()["checkpoint"], CONTROLS[options.control]
    getattr(run, options.control)()

    def finished(status: dict[str, Any]) -> bool:
        written = options.control != "checkpoint" or status["checkpoint"] != before
        return (done(status) and written) or not run.is_working(status)

    now = run.wait(600, until=finished)
    saved = f", step {now['checkpoint']['step']:,} is saved" if now["checkpoint"] else ""
    print(f"{run.path}: {now['state']} at step {now['step']:,}{saved}")
    return 0


def _rm(options: argparse.Namespace) -> int:
    from kit.runs.api import remove

    run = kit.Run(options.run)
    if not options.yes:
        if not sys.stdin.isatty():
            raise UserError(f"removing {run.path} needs a confirmation, and this is not a terminal; add --yes.")
        now = run.status()
        print(f"{run.path}: {now['state']} at step {now['step']:,}, {run.size_bytes / 1e6:,.1f} MB, {run.copies()}")
        if input("Remove it from this machine? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    remove(run, sure=options.yes)
    print(f"removed {run.path}")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2, as for a `UserError`."""
        self.exit(WRONG_REQUEST, f"kit: {message}; see {self.prog} --help.\n")


RUN = "the run's directory, such as runs/my-run"
STEP = "the checkpoint to use: a step, best or latest; default: best"
TRUST = "import modules that a run or a file names, and open a model zip, although both can run code"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kit", description="Train robot policies, and never lose a run.")
    parser.add_argument("--version", action="version", version=f"kit {kit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, does: str, command: Callable[[argparse.Namespace], int], reports: bool = False) -> _Parser:
        sub = commands.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".")
        sub.set_defaults(command=command)
        if reports:
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    add("verify", "check this machine: what is installed, and what is missing for training", _verify, reports=True)

    add("encoders", "list the encoders for images and clips: cost, and when to use which", _encoders, reports=True)

    check = add("check", "check a task or env of your own with random actions, before you train on it", _check)
    check.add_argument("env", metavar="ENV", help="module:Class of your task or Gymnasium env, or an env's id")
    check.add_argument("--env-options", default="", metavar="JSON", help="options of the env; default: none")
    check.add_argument("--steps", type=int, default=500, metavar="N", help="steps of random actions; default: 500")

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
        help="status: print the state of all jobs and train nothing; retry: train failed jobs again; "
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

    rent = add("cloud", "rent machines through SkyPilot", _cloud, reports=True)
    rent.add_argument(
        "action", choices=("plan", "task", "launch"),
        help="plan: compare prices and times; task: print SkyPilot's task; launch: start it",
    )  # fmt: skip
    rent.add_argument("config", metavar="CONFIG.yaml", help="a file as for kit train or kit batch, with a store")
    rent.add_argument("--cloud", help="aws, runpod or lambda; default: the cheapest")
    rent.add_argument("--gpu", metavar="NAME", help="GPU, such as L4 or A100:1; default: none")
    rent.add_argument("--cpus", type=int, default=8, metavar="N", help="vCPUs if there is no GPU; default: 8")
    rent.add_argument("--on-demand", action="store_true", help="rent on-demand machines, not spot machines")
    rent.add_argument("--volume", metavar="NAME", help="a RunPod network volume, mounted at /volume; default: none")
    rent.add_argument("--rows", type=int, default=12, metavar="N", help="rows of the plan to print; default: 12")

    runs = add("runs", "list runs", _runs, reports=True)
    runs.add_argument(
        "where", nargs="?", default="runs", metavar="DIR|URL", help="a folder of runs, or a store's URL; default: runs"
    )
    runs.add_argument("--tree", action="store_true", help="list a run below the run whose policy it started from")

    for name, (does, _) in CONTROLS.items():
        control = add(name, does, _control)
        control.set_defaults(control=name)
        control.add_argument("run", metavar="RUN", help=RUN)
    rm = add("rm", "remove a run from this machine; copies in stores stay", _rm)
    rm.add_argument("run", metavar="RUN", help=RUN)
    rm.add_argument("--yes", action="store_true", help="do not ask, even if this is the only copy of an unfinished run")

    evaluate = add("evaluate", "play episodes and report return and success rate", _evaluate, reports=True)
    video = add("video", "record a video of a policy", _video)
    fingerprint = add("fingerprint", "print a SHA-256 of the complete training state of a checkpoint", _fingerprint)
    view = add("view", "show a policy live in the browser, in 3-D; steer robots, record demonstrations", _view)
    view.add_argument("run", metavar="RUN", nargs="?", help=f"{RUN}; default: act in --env by hand")
    export = add("export", "write a policy for use without kit, with a description of its inputs and outputs", _export)
    push = add("push", "publish a policy on the Hugging Face Hub, with model card, scores, video, zip and ONNX", _push)
    record = add("record", "record episodes of a policy as a dataset in Minari's format", _record)
    record.add_argument("source", metavar="RUN|scripted[:NAME]", help="a run, or a scripted policy of the task --env")
    record.add_argument("output", metavar="FOLDER", help="the folder to write, which must not exist")
    for sub, use in ((record, "of a scripted policy"), (view, "without RUN")):
        sub.add_argument("--env", default="Reach", help=f"the task {use}; default: Reach")
        sub.add_argument("--env-options", default="", metavar="JSON", help="options of that task; default: none")
    record.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episodes; default: 0")
    for sub in (evaluate, video, fingerprint, export, push):
        sub.add_argument("run", metavar="RUN", help=RUN)
    for sub in (evaluate, video, view, export, push, record):
        sub.add_argument("--step", type=_step, help=STEP)
    fingerprint.add_argument("--step", type=int, help="the checkpoint to use: a step; default: the latest")
    for sub, count in ((evaluate, 100), (video, 3), (push, 100), (record, 100)):
        sub.add_argument("--episodes", type=int, default=count, metavar="N", help=f"episodes to play; default: {count}")
    for sub in (train, resume, batch, evaluate, video, view, export, push, record):
        sub.add_argument("--trust", action="store_true", help=TRUST)
    push.add_argument("url", metavar="hf://YOU/MODEL", help="the model repository; a new one is private")
    view.add_argument("--port", type=int, default=8080, metavar="N", help="port; default: 8080, or the next free one")
    view.add_argument("--n-envs", type=int, default=1, metavar="N", help="envs to show; default: 1")
    export.add_argument("--to", default="onnx", help="format: onnx, torchscript, sb3 or safetensors; default: onnx")
    export.add_argument("--output", type=Path, help="path to write; default: exports/step_<step> in the run")
    video.add_argument("--cameras", help="cameras, comma-separated, shown side by side; default: the task's first")
    video.add_argument("--failures", action="store_true", help="record the worst of the first 50 episodes")
    video.add_argument("--size", type=int, default=320, metavar="N", help="height and width in pixels; default: 320")
    video.add_argument("--output", type=Path, help="path to write; default: videos/step_<step>.mp4 in the run")

    bench = add("bench", "measure the speed of physics, env, PPO and images on this machine, in a minute", _bench, True)
    bench.add_argument("--env", default="Ant", help="the task to measure; default: Ant")
    return parser


def _add_fields(parser: argparse.ArgumentParser, defaults: Mapping[str, str]) -> None:
    """Add a flag for each field of RunConfig in `defaults` (name -> text), with hyphens or underscores."""
    for field in dataclasses.fields(RunConfig):
        if field.name in defaults:
            flags = dict.fromkeys((f"--{field.name.replace('_', '-')}", f"--{field.name}"))
            help = f"{field.metadata['help']}; default: {defaults[field.name]}".replace("%", "%%")
            parser.add_argument(*flags, dest=f"field_{field.name}", metavar="X", help=help, default=argparse.SUPPRESS)


def _config_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of RunConfig that flags have set: name -> parsed value."""
    texts = {name[6:]: text for name, text in vars(options).items() if name.startswith("field_")}
    return {name: RunConfig.from_text(name, text) for name, text in texts.items()}


def _step(text: str) -> int | str:
    if text.isdecimal() or text in ("best", "latest"):
        return int(text) if text.isdecimal() else text
    raise argparse.ArgumentTypeError(f"step={text!r} is not a step; give a number such as 100000, best or latest")


@contextmanager
def _bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that shows a run's status as a progress bar; the first status opens the bar."""
    from kit.machine.progress import progress_bar

    bar: Any = None
    with ExitStack() as closing:

        def show(status: dict[str, Any]) -> None:
            nonlocal bar
            step, total = min(status["step"], status["total_steps"]), status["total_steps"]
            if bar is None:
                bar = closing.enter_context(progress_bar(total, step, unit="step", unit_scale=True))
            rate = "" if status["success_rate"] is None else f", success {status['success_rate']:.0%}"
            bar.set_description_str(f"{status['phase']}{rate}", refresh=False)
            bar.update(max(0, step - bar.n))

        yield show


def _print(options: argparse.Namespace, value: Any, text: str) -> int:
    print(json.dumps(value, indent=2) if options.json else text)
    return 0


def _print_ending(run: Any) -> int:
    """Print how a session ended, and return its exit code."""
    from kit.runs.status import exit_code

    now = run.status()
    print(f"{run.path}: {now['message']}")
    return exit_code(now["state"])
