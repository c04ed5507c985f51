"""`kit ...`: a thin door to the functions of the library.

Exit codes: 0 done, 2 the request is wrong (one line on stderr), 75 interrupted but resumable, 1 anything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import kit
from kit.config import MAY_CHANGE_ON_RESUME, RunConfig
from kit.errors import UserError

if TYPE_CHECKING:
    from kit.scale.sweep import Sweep
    from kit.scale.work import Results

WRONG_REQUEST = 2
SAID_FIRST = ("episodes", "mean_return", "std_return", "success_rate", "mean_length")
"""What `kit evaluate` says of every task, in one line."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit."""
    options = _parser().parse_args(arguments)
    try:
        code = options.command(options)
    except UserError as error:
        print(f"kit: {error}", file=sys.stderr)
        code = WRONG_REQUEST
    except BrokenPipeError:
        code = 0
    except KeyboardInterrupt:  # outside a session, which has its own way to end
        print("kit: interrupted", file=sys.stderr)
        code = 1
    sys.exit(code)


def _verify(options: argparse.Namespace) -> int:
    report = kit.verify()
    _print(options, report.to_dict(), str(report))
    return 0 if report.ok else 1


def _encoders(options: argparse.Namespace) -> int:
    from kit.encoders import ENCODERS

    rows = {n: {"does": info.does, "costs": info.costs, "use_when": info.use_when} for n, info in ENCODERS.items()}
    lines = [f"{n:<14}{r['does']}\n{'':14}costs {r['costs']}; use it when {r['use_when']}" for n, r in rows.items()]
    return _print(options, rows, "\n".join([*lines, "", COSTS]))


COSTS = "costs: multiply-adds to see three cameras with 4 frames of 64×64 each, and parameters"


def _train(options: argparse.Namespace) -> int:
    if (code := _as_rank(options)) is not None:
        return code
    config = RunConfig.load(options.config) if options.config else None
    with _bar() as show:
        run = kit.train(config, start_from=options.start_from, trust=options.trust, on_progress=show, **_given(options))
    return _ending(run)


def _resume(options: argparse.Namespace) -> int:
    if (code := _as_rank(options)) is not None:
        return code
    with _bar() as show:
        run = kit.resume(options.run, on_progress=show, max_gb=options.max_gb, trust=options.trust, **_given(options))
    return _ending(run)


def _as_rank(options: argparse.Namespace) -> int | None:
    """The exit code of a rank above 0 that torchrun has started; None in any other process."""
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

    found, lines, depth = list_runs(options.where), [], dict[str, int]()
    if options.tree and isinstance(found, RunList):
        found = family(found)
    rows = found.to_dicts()
    for run, row in zip(found, rows, strict=True):
        name, rate, kept = row["name"], "", ""
        if row["success_rate"] is not None:
            rate = f"  success {row['success_rate']:.0%}"
        if isinstance(run, kit.Run):
            kept = f"  {run.size_bytes / 1e6:,.1f} MB, {run.copies()}"
            if options.tree and run.parent and run.parent[0] in depth:
                depth[row["name"]] = depth[run.parent[0]] + 1
                name = f"{'  ' * depth[row['name']]}{name} (from step {run.parent[1]:,})"
        depth.setdefault(row["name"], 0)
        of = f"{row['step']:>11,} of {row['total_steps']:,} ({row['step'] / max(1, row['total_steps']):.0%})"
        lines.append(f"{name:40} {row['state']:12} {of}{rate}{kept}")
    return _print(options, rows, "\n".join(lines) or f"no runs in {options.where}; `kit train` starts one")


def _evaluate(options: argparse.Namespace) -> int:
    found = kit.evaluate(options.run, options.episodes, options.step, trust=options.trust)
    rate = "" if found["success_rate"] is None else f", success {found['success_rate']:.1%}"
    line = f"{found['episodes']} episodes: return {found['mean_return']:.2f} ± {found['std_return']:.2f}{rate}"
    own = [f"{name:32} {value:10.3f}" for name, value in found.items() if name not in SAID_FIRST]
    return _print(options, found, "\n".join([f"{line}, length {found['mean_length']:.1f} steps", *own]))


def _video(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from kit.runs.run import opened
    from kit.runs.video import failures_first, record

    cameras = tuple(options.cameras.split(",")) if options.cameras else None
    run, which = opened(options.run, options.trust), options.episodes
    with tqdm(unit="frame", desc="filming") as bar:

        def on_frame(done: int, at_most: int) -> None:
            bar.total = at_most
            bar.update(done - bar.n)

        which = failures_first(run, options.step)[:which] if options.failures else which
        path = record(run, options.step, cameras, which, options.size, options.output, on_frame)
    print(path)
    return 0


def _view(options: argparse.Namespace) -> int:
    shown = kit.ui.view(options.run, options.step, options.port, options.trust)
    print(f"{shown}; Ctrl-C ends it. From another machine: ssh -L {shown.port}:localhost:{shown.port} ...")
    try:
        shown.wait()
    except KeyboardInterrupt:
        shown.close()
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

    machine, found = kit.machine.describe().title, bench(options.env)
    value = {"machine": machine, **dataclasses.asdict(found), "update_share": found.update_share}
    return _print(options, value, f"{machine}\n{found}")


def _batch(options: argparse.Namespace) -> int:
    from kit.runs.status import INTERRUPTED
    from kit.scale import files

    where = {name: getattr(options, name) for name in ("at_once", "on", "cpus", "gpus")}
    if options.action in ("status", "collect"):
        return _table(options, files.standing(options.jobs, fetch=options.action == "collect"))
    if options.action == "retry":
        files.forget_failures(options.jobs)
    try:
        found = files.do(options.jobs, options.seeds, options.trust, **where)
    except KeyboardInterrupt:
        print(f"kit: interrupted; `kit batch {options.jobs}` goes on", file=sys.stderr)
        return INTERRUPTED
    return _table(options, found)


def _table(options: argparse.Namespace, found: Results | Sweep) -> int:
    """Print how the jobs of a file stand."""
    from kit.runs.status import DONE, FAILED, INTERRUPTED
    from kit.scale.work import Results

    if not isinstance(found, Results):
        import yaml

        best = "" if found.best is None else yaml.safe_dump(found.best.non_defaults(), sort_keys=False)
        text = found.table().to_string(index=False, na_rep="")
        _print(options, found.rows(), text + (f"\n\n# the best, for kit train FILE\n{best}" if best else ""))
        return FAILED if found.best is None else DONE
    lines = []
    for row in found:
        rate = "" if row["success_rate"] is None else f"  success {row['success_rate']:.0%}"
        reached = "" if row["mean_return"] is None else f"  return {row['mean_return']:,.2f}"
        lines.append(f"{row['name']:40} {row['state']:12} {row['step']:>11,} of {row['total_steps']:,}{reached}{rate}")
        lines += [f"    {row['message']}"] if row["state"] in ("failed", "waiting") and row["message"] else []
    _print(options, found, "\n".join(lines))
    return FAILED if found.of("failed") else DONE if found.of("finished") == len(found) else INTERRUPTED


def _cloud(options: argparse.Namespace) -> int:
    from kit.scale import cloud

    if options.action == "plan":
        from kit.measure.auto import resolve
        from kit.measure.speed import probe

        asked = cloud.asked(options.config)
        config = resolve(asked[0].replace(device="cpu"))
        runs = sum(run.total_steps for run in asked) / config.total_steps
        found = cloud.plan(config, probe(config), options.cloud, runs=runs)
        text = found.head(options.rows).round(3).to_string(index=False, na_rep="")
        said = "one run" if len(asked) == 1 else f"{len(asked)} runs, one after the other"
        return _print(options, found.to_dict("records"), f"{text}\n\n{cloud.SAID.format(said, config.runs_dir)}")
    given = cloud.task(
        options.config, cloud=options.cloud, gpu=options.gpu, cpus=options.cpus, spot=not options.on_demand,
        volume=options.volume,
    )  # fmt: skip
    if options.action == "launch":
        return cloud.launch(given)
    return _print(options, given, cloud.to_yaml(given).rstrip())


ASKED: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "pause": ("stand still and keep everything in memory", lambda now: now["state"] == "paused"),
    "unpause": ("go on after a pause", lambda now: now["state"] == "running"),
    "stop": ("write a checkpoint and end; `kit resume` goes on from there", lambda now: False),
    "checkpoint": ("write a checkpoint at the end of this iteration", lambda now: True),
}
"""What can be asked of a run at work, and how to see that it was done."""


def _ask(options: argparse.Namespace) -> int:
    run = kit.Run(options.run)
    if not run.is_working():
        raise UserError(f"{run.path} is not at work ({run.status()['state']}); `kit resume` goes on with it.")
    before, (_, done) = run.status()["checkpoint"], ASKED[options.asked]
    getattr(run, options.asked)()

    def over(now: dict[str, Any]) -> bool:
        written = options.asked != "checkpoint" or now["checkpoint"] != before
        return (done(now) and written) or not run.is_working(now)

    now = run.wait(600, until=over)
    saved = f", step {now['checkpoint']['step']:,} is saved" if now["checkpoint"] else ""
    print(f"{run.path}: {now['state']} at step {now['step']:,}{saved}")
    return 0


def _rm(options: argparse.Namespace) -> int:
    from kit.runs.api import remove

    run = kit.Run(options.run)
    if not options.yes:
        if not sys.stdin.isatty():
            raise UserError(f"{run.path} would be removed; say --yes where nobody can be asked.")
        now = run.status()
        print(f"{run.path}: {now['state']} at step {now['step']:,}, {run.size_bytes / 1e6:,.1f} MB, {run.copies()}")
        if input("Remove it from this machine? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    remove(run, sure=options.yes)
    print(f"removed {run.path}")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # in one line, like every other wrong request
        self.exit(WRONG_REQUEST, f"kit: {message}; see {self.prog} --help.\n")


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

    add("verify", "say what this machine has and what is missing", _verify, reports=True)

    add("encoders", "how pictures can become features: what each way costs, when to use it", _encoders, reports=True)

    train = add("train", "start a run and train it here until it is done", _train)
    train.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="RunConfig's fields as YAML; options below win")
    begin = "begin with the policy of another run and its config, or with that of a Stable-Baselines3 zip"
    train.add_argument("--from", "--start-from", dest="start_from", metavar="RUN[@STEP]|MODEL.zip", help=begin)
    _add_fields(train, [field.name for field in dataclasses.fields(RunConfig)])

    resume = add("resume", "go on with a run", _resume)
    resume.add_argument("run", nargs="?", metavar="RUN|URL", help="default: the latest unfinished run")
    resume.add_argument("--max-gb", type=float, default=8.0, metavar="N", help="fetch at most so many GiB from a store")
    _add_fields(resume, (*MAY_CHANGE_ON_RESUME, "env_options"))

    does = "train several runs side by side, or search for hyperparameters; called again, go on"
    batch = add("batch", does, _batch, reports=True)
    batch.add_argument(
        "action", nargs="?", choices=("status", "retry", "collect"),
        help="instead of going on: say how all stand; begin what failed again; bring results here from the store",
    )  # fmt: skip
    batch.add_argument(
        "jobs", metavar="JOBS.yaml", help="RunConfig's fields, jobs, seeds; a sweep; or a notebook and a grid"
    )
    batch.add_argument("--on", metavar="ray[://HOST:PORT]", help="a Ray cluster; default: this machine")
    batch.add_argument("--cpus", type=float, help="cores for each job on a cluster; default: 1")
    batch.add_argument("--gpus", type=float, help="cards, or a part of one, for each job on a cluster; default: 0")
    batch.add_argument("--seeds", type=int, help="each job so many times, with seeds 0, 1, ...")
    batch.add_argument("--at-once", type=int, metavar="N", help="at most so many at a time; default: what fits")

    rent = add("cloud", "rent machines through SkyPilot: prices, a task, or its launch", _cloud, reports=True)
    rent.add_argument("action", choices=("plan", "task", "launch"))
    rent.add_argument("config", metavar="CONFIG.yaml", help="as for kit train or kit batch, with a store")
    rent.add_argument("--cloud", help="aws, runpod or lambda; default: whichever is cheapest")
    rent.add_argument("--gpu", metavar="NAME", help="such as L4 or A100:1; default: none")
    rent.add_argument("--cpus", type=int, default=8, help="vCPUs of a machine without a card; default: 8")
    rent.add_argument("--on-demand", action="store_true", help="no spot machines")
    rent.add_argument("--volume", metavar="NAME", help="of RunPod, mounted at /volume")
    rent.add_argument("--rows", type=int, default=12, help="of a plan; default: 12")

    runs = add("runs", "list runs", _runs, reports=True)
    runs.add_argument("where", nargs="?", default="runs", metavar="DIR|URL", help="default: runs")
    runs.add_argument("--tree", action="store_true", help="branches under the runs that they began with")

    for name, (does, _) in ASKED.items():
        asked = add(name, does, _ask)
        asked.set_defaults(asked=name)
        asked.add_argument("run", metavar="RUN")
    rm = add("rm", "remove a run from this machine; copies in stores stay", _rm)
    rm.add_argument("run", metavar="RUN")
    rm.add_argument("--yes", action="store_true", help="do not ask, also if nothing else holds an unfinished run")

    evaluate = add("evaluate", "play episodes and report returns and success", _evaluate, reports=True)
    video = add("video", "film a policy", _video)
    fingerprint = add("fingerprint", "print one SHA-256 of everything that decides a run's future", _fingerprint)
    view = add("view", "a policy live in the browser, in 3-D; robots that walk with a joystick", _view)
    view.add_argument("--step", type=_step, help="a checkpoint's step, best or latest; default: best")
    view.add_argument("--port", type=int, default=8080, help="default: 8080, or the next that is free")
    export = add("export", "write a policy for use without kit, and what its numbers mean", _export)
    push = add("push", "put a policy on the Hugging Face Hub as a model: card, scores, film, SB3 zip, ONNX", _push)
    for sub in (evaluate, video, fingerprint, view, export, push):
        sub.add_argument("run", metavar="RUN")
    push.add_argument("url", metavar="hf://YOU/MODEL", help="made, and private, if it is not there")
    export.add_argument("--to", default="onnx", help="onnx, torchscript, sb3 or safetensors; default: onnx")
    export.add_argument("--step", type=_step, help="a checkpoint's step, best or latest; default: best")
    export.add_argument("--output", type=Path, help="default: exports/step_<step> in the run")
    for sub, count in ((evaluate, 100), (video, 3), (push, 100)):
        sub.add_argument("--step", type=_step, help="a checkpoint's step, best or latest; default: best")
        sub.add_argument("--episodes", type=int, default=count, help=f"default: {count}")
    trust = "import the module that a run, or a file, names as its env or algo; with a zip, open it: both can run code"
    for sub in (train, resume, batch, evaluate, video, view, export, push):
        sub.add_argument("--trust", action="store_true", help=trust)
    fingerprint.add_argument("--step", type=int, help="a checkpoint's step; default: the latest")
    video.add_argument("--cameras", help="comma-separated, shown side by side; default: the task's first")
    video.add_argument("--failures", action="store_true", help="of the first 50 episodes those that fail, or nearly")
    video.add_argument("--size", type=int, default=320, help="pixels a side; default: 320")
    video.add_argument("--output", type=Path, help="default: videos/step_<step>.mp4 in the run")

    bench = add("bench", "measure this machine in under a minute: physics, env, PPO, pictures", _bench, reports=True)
    bench.add_argument("--env", default="Ant", help="default: Ant")
    return parser


def _add_fields(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    for field in dataclasses.fields(RunConfig):
        if field.name in names:
            flags = dict.fromkeys((f"--{field.name.replace('_', '-')}", f"--{field.name}"))
            help = f"{field.metadata['help']} (default: {getattr(RunConfig(), field.name)})".replace("%", "%%")
            parser.add_argument(*flags, dest=f"field_{field.name}", metavar="X", help=help, default=argparse.SUPPRESS)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of RunConfig among `options`."""
    given = {name[6:]: text for name, text in vars(options).items() if name.startswith("field_")}
    return {name: RunConfig.from_text(name, text) for name, text in given.items()}


def _step(text: str) -> int | str:
    if text.isdecimal() or text in ("best", "latest"):
        return int(text) if text.isdecimal() else text
    raise argparse.ArgumentTypeError(f"step={text!r} is not a step; give a number such as 100000, best or latest")


@contextmanager
def _bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar that follows a run's status; it appears with the first one."""
    from tqdm import tqdm

    bar: Any = None
    with ExitStack() as closing:

        def show(status: dict[str, Any]) -> None:
            nonlocal bar
            step, total = min(status["step"], status["total_steps"]), status["total_steps"]
            if bar is None:
                bar = tqdm(total=total, initial=step, unit="step", unit_scale=True, dynamic_ncols=True)
                closing.enter_context(bar)
            rate = "" if status["success_rate"] is None else f", success {status['success_rate']:.0%}"
            bar.set_description_str(f"{status['phase']}{rate}", refresh=False)
            bar.update(max(0, step - bar.n))

        yield show


def _print(options: argparse.Namespace, value: Any, text: str) -> int:
    print(json.dumps(value, indent=2) if options.json else text)
    return 0


def _ending(run: Any) -> int:
    from kit.runs.status import exit_code

    now = run.status()
    print(f"{run.path}: {now['message']}")
    return exit_code(now["state"])
