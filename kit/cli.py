"""`kit ...`: a thin door to the functions of the library.

Exit codes: 0 done, 2 the request is wrong (one line on stderr), 75 interrupted but resumable, 1 anything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig
from kit.errors import UserError

WRONG_REQUEST = 2


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit."""
    parser = _parser()
    options = parser.parse_args(arguments)
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


# -- commands ------------------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    from kit.machine import verify

    report = verify()
    _print(report.to_dict() if options.json else str(report), options.json)
    return 0 if report.ok else 1


def _train(options: argparse.Namespace) -> int:
    from kit.runs.api import train

    base = RunConfig.load(options.config) if options.config else RunConfig()
    with _Bar() as bar:
        config = base.replace(**_given(options))
        run = train(config, start_from=options.start_from, trust=options.trust, on_progress=bar)
    return _ending(run)


def _resume(options: argparse.Namespace) -> int:
    from kit.runs.api import resume

    changes = _given(options)
    runs_dir = changes.pop("runs_dir", "runs")
    with _Bar() as bar:
        run = resume(options.run, runs_dir=runs_dir, on_progress=bar, max_gb=options.max_gb, **changes)
    return _ending(run)


def _runs(options: argparse.Namespace) -> int:
    from kit.runs.api import list_runs

    rows = list_runs(options.where).to_dicts()
    if options.json:
        _print(rows, True)
    elif not rows:
        print(f"no runs in {options.where}; `kit train` starts one")
    for row in [] if options.json else rows:
        rate = "" if row["success_rate"] is None else f"  success {row['success_rate']:.0%}"
        share = row["step"] / row["total_steps"] if row["total_steps"] else 0
        print(f"{row['name']:40} {row['state']:12} {row['step']:>11,} of {row['total_steps']:,} ({share:.0%}){rate}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from kit.runs.rollouts import evaluate

    result = evaluate(options.run, options.episodes, options.step)
    if options.json:
        _print(result, True)
        return 0
    rate = "" if result["success_rate"] is None else f", success {result['success_rate']:.1%}"
    print(
        f"{result['episodes']} episodes: return {result['mean_return']:.2f} ± {result['std_return']:.2f}"
        f"{rate}, length {result['mean_length']:.1f} steps"
    )
    return 0


def _video(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from kit.runs.rollouts import record

    cameras = tuple(options.cameras.split(",")) if options.cameras else None
    with tqdm(unit="frame", desc="filming") as bar:

        def on_frame(done: int, at_most: int) -> None:
            bar.total = at_most
            bar.update(done - bar.n)

        path = record(options.run, options.step, cameras, options.episodes, options.size, options.output, on_frame)
    print(path)
    return 0


def _fingerprint(options: argparse.Namespace) -> int:
    from kit.format.checkpoint import Damaged
    from kit.runs.fingerprint import fingerprint
    from kit.runs.run import Run

    try:
        print(fingerprint(Run(options.run), options.step))
    except Damaged as damage:
        raise UserError(f"{options.run} has a damaged checkpoint ({damage}); name another with --step.") from None
    return 0


def _bench(options: argparse.Namespace) -> int:
    from kit.measure.bench import bench

    report = bench(options.env)
    _print(report.to_dict() if options.json else str(report), options.json)
    return 0


# -- the parser ----------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, like every other wrong request; `--help` has the usage."""
        self.exit(WRONG_REQUEST, f"kit: {message}; see {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
    from kit import __version__

    parser = _Parser(prog="kit", description="Train robot policies, and never lose a run.")
    parser.add_argument("--version", action="version", version=f"kit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, does: str, command: Callable[[argparse.Namespace], int], reports: bool) -> _Parser:
        sub = commands.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".")
        sub.set_defaults(command=command)
        if reports:
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    add("verify", "say what this machine has and what is missing", _verify, True)

    train = add("train", "start a run and train it here until it is done", _train, False)
    train.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="RunConfig's fields as YAML; options below win")
    train.add_argument("--start-from", metavar="MODEL.zip", help="a Stable-Baselines3 zip to begin with")
    train.add_argument("--trust", action="store_true", help="open that zip, which can run code")
    _add_fields(train, [f.name for f in dataclasses.fields(RunConfig)])

    resume = add("resume", "go on with a run", _resume, False)
    resume.add_argument("run", nargs="?", metavar="RUN|URL", help="default: the latest unfinished run")
    resume.add_argument("--max-gb", type=float, default=8.0, metavar="N", help="fetch at most so many GiB from a store")
    _add_fields(resume, MAY_CHANGE_ON_RESUME)

    runs = add("runs", "list runs", _runs, True)
    runs.add_argument("where", nargs="?", default="runs", metavar="DIR|URL", help="default: runs")

    evaluate = add("evaluate", "play episodes and report returns and success", _evaluate, True)
    video = add("video", "film a policy", _video, False)
    fingerprint = add("fingerprint", "print one SHA-256 of everything that decides a run's future", _fingerprint, False)
    for sub in (evaluate, video, fingerprint):
        sub.add_argument("run", metavar="RUN")
    for sub in (evaluate, video):
        sub.add_argument("--step", type=_step, help="a checkpoint's step, best or latest; default: best")
    fingerprint.add_argument("--step", type=int, help="a checkpoint's step; default: the latest")
    evaluate.add_argument("--episodes", type=int, default=100, help="default: 100")
    video.add_argument("--episodes", type=int, default=3, help="default: 3")
    video.add_argument("--cameras", help="comma-separated, shown side by side; default: the task's first")
    video.add_argument("--size", type=int, default=320, help="pixels a side; default: 320")
    video.add_argument("--output", type=Path, help="default: videos/step_<step>.mp4 in the run")

    bench = add("bench", "measure this machine in under a minute: physics, env, PPO, pictures", _bench, True)
    bench.add_argument("--env", default="Ant", help="default: Ant")
    return parser


def _add_fields(parser: argparse.ArgumentParser, names: list[str] | tuple[str, ...]) -> None:
    for field in dataclasses.fields(RunConfig):
        if field.name in names:
            flags = list(dict.fromkeys((f"--{field.name.replace('_', '-')}", f"--{field.name}")))
            shown = "" if field.default is dataclasses.MISSING else f" (default: {field.default})"
            help = field.metadata["help"].replace("%", "%%") + shown
            parser.add_argument(*flags, dest=f"field_{field.name}", type=_reader(field.name), metavar="X", help=help)


def _reader(name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if name in ("run_name", "session_limit", "store", "runs_dir", "env", "overrides"):
            return text
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return text

    return read


def _step(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _given(options: argparse.Namespace) -> dict[str, Any]:
    fields = {name[6:]: value for name, value in vars(options).items() if name.startswith("field_")}
    given = {name: value for name, value in fields.items() if value is not None}
    if "overrides" in given:
        given["overrides"] = _overrides(given["overrides"])
    return given


def _overrides(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"overrides={text!r} is not JSON ({error}); write '{{\"gamma\": 0.98}}'.") from None
    if not isinstance(value, dict):
        raise UserError(f"overrides={text!r} is not a JSON mapping; write '{{\"gamma\": 0.98}}'.")
    return value


# -- what is printed -----------------------------------------------------------------------------------------------


class _Bar:
    """A progress bar that follows a run's status; it appears with the first one."""

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        self._bar: Any = None
        return self._show

    def _show(self, status: dict[str, Any]) -> None:
        from tqdm import tqdm

        step = min(status["step"], status["total_steps"])
        if self._bar is None:
            total = status["total_steps"]
            self._bar = tqdm(total=total, initial=step, unit="step", unit_scale=True, dynamic_ncols=True)
        rate = "" if status["success_rate"] is None else f", success {status['success_rate']:.0%}"
        self._bar.set_description_str(f"{status['phase']}{rate}", refresh=False)
        self._bar.update(max(0, step - self._bar.n))

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _ending(run: Any) -> int:
    from kit.runs.session import DONE, FAILED, INTERRUPTED

    now = run.status()
    print(f"{run.path}: {now['message']}")
    return {"finished": DONE, "interrupted": INTERRUPTED}.get(now["state"], FAILED)


def _print(value: Any, as_json: bool) -> None:
    print(json.dumps(value, indent=2) if as_json else value)
