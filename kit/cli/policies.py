"""Commands about policies: evaluate, video, fingerprint, view, export, push, record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import kit
from kit.cli.shared import RUN, TRUST, Add, print_value
from kit.config import SCRIPTED, RunConfig
from kit.errors import UserError, check_whole

STEP = "the checkpoint to use: a step, best or latest; default: best"
HEADLINE = ("episodes", "mean_return", "std_return", "success_rate", "mean_length")
"""Metrics in the first line of `kit evaluate`; every task has them."""


def add_commands(add: Add) -> None:
    """Add the commands to the parser."""
    evaluate = add("evaluate", "play episodes and report return and success rate", _evaluate, reports=True)
    video = add("video", "record a video of a policy", _video)
    fingerprint = add("fingerprint", "print a SHA-256 of the complete training state of a checkpoint", _fingerprint)
    view = add("view", "show a policy live in the browser, in 3-D; steer robots, record demonstrations", _view)
    view.add_argument("run", metavar="RUN", nargs="?", help=f"{RUN}; default: act in --env by hand")
    export = add("export", "write a policy for use without kit, with a description of its inputs and outputs", _export)
    push = add("push", "publish a policy on the Hub or in a folder: model card, scores, video, zip, ONNX", _push)
    record = add("record", "record episodes of a policy as a dataset in Minari's format", _record)
    record.add_argument("source", metavar="RUN|scripted[:NAME]", help="a run, or a scripted policy of the task --env")
    record.add_argument("output", metavar="FOLDER", help="the folder to write, which must not exist")
    for sub in (evaluate, video):
        changes = "changes of the run's env_options, such as another friction"
        sub.add_argument("--env-options", default="{}", metavar="JSON", help=changes)
    for sub, use in ((record, "of a scripted policy"), (view, "without RUN")):
        sub.add_argument("--env", help=f"the task {use}; default: Reach")
        sub.add_argument("--env-options", default="", metavar="JSON", help="options of that task; default: none")
    record.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episodes; default: 0")
    for sub in (evaluate, video, fingerprint, export, push):
        sub.add_argument("run", metavar="RUN", help=RUN)
    for sub in (evaluate, video, view, export, push, record):
        sub.add_argument("--step", type=_step, help=STEP)
    fingerprint.add_argument("--step", type=int, help="the checkpoint to use: a step; default: the latest")
    for sub, count in ((evaluate, 100), (video, 3), (push, 100), (record, 100)):
        sub.add_argument("--episodes", type=int, default=count, metavar="N", help=f"episodes to play; default: {count}")
    for sub in (evaluate, video, view, export, push, record):
        sub.add_argument("--trust", action="store_true", help=TRUST)
    where = "the model repository, private if it is new; or a folder, also drive:FOLDER"
    push.add_argument("url", metavar="hf://YOU/MODEL|FOLDER", help=where)
    view.add_argument("--port", type=int, default=8080, metavar="N", help="port; default: 8080, or the next free one")
    view.add_argument("--n-envs", type=int, default=1, metavar="N", help="envs to show; default: 1")
    export.add_argument("--to", default="onnx", help="format: onnx, torchscript, sb3 or safetensors; default: onnx")
    export.add_argument("--output", type=Path, help="path to write; default: exports/step_<step> in the run")
    video.add_argument("--cameras", help="cameras, comma-separated, shown side by side; default: the task's first")
    video.add_argument("--failures", action="store_true", help="record the worst of the first 50 episodes")
    divergence = "record the second before the physics diverged, instead of episodes"
    video.add_argument("--divergence", action="store_true", help=divergence)
    video.add_argument("--size", type=int, default=320, metavar="N", help="height and width in pixels; default: 320")
    video.add_argument("--output", type=Path, help="path to write; default: videos/step_<step>.mp4 in the run")


def _step(text: str) -> int | str:
    if text.isdecimal() or text in ("best", "latest"):
        return int(text) if text.isdecimal() else text
    raise argparse.ArgumentTypeError(f"step={text!r} is not a step; give a number such as 100000, best or latest")


def _evaluate(options: argparse.Namespace) -> int:
    run, changes = kit.Run(options.run), RunConfig.from_text("env_options", options.env_options)
    scores = kit.evaluate(run, options.episodes, options.step, trust=options.trust, env_options=changes)
    rate = "" if scores["success_rate"] is None else f", success {scores['success_rate']:.1%}"
    line = f"{scores['episodes']} episodes: return {scores['mean_return']:.2f} ± {scores['std_return']:.2f}{rate}"
    others = [f"{name:32} {value:10.3f}" for name, value in scores.items() if name not in HEADLINE]
    return print_value(options, scores, "\n".join([f"{line}, length {scores['mean_length']:.1f} steps", *others]))


def _video(options: argparse.Namespace) -> int:
    from kit.machine.progress import progress_bar
    from kit.runs.run import opened

    check_whole("episodes", options.episodes, 1)
    cameras = tuple(options.cameras.split(",")) if options.cameras else None
    run, episodes = opened(options.run, options.trust), options.episodes

    from kit.runs.video import check_film, failures_first, record  # imports torch, which takes seconds

    check_film(options.output, options.size)
    with progress_bar(unit="frame", desc="recording") as bar:

        def on_frame(done: int, at_most: int) -> None:
            bar.total = at_most
            bar.update(done - bar.n)

        if options.divergence:
            from kit.runs.divergence import record_divergence

            camera = cameras[0] if cameras else None
            print(record_divergence(run, options.size, options.output, camera, on_frame))
            return 0
        changes = RunConfig.from_text("env_options", options.env_options)
        if options.failures:
            played, text = failures_first(run, options.step, env_options=changes)
            print(text, file=sys.stderr)
            episodes = played[:episodes]
        path = record(
            run, options.step, cameras, episodes, options.size, options.output, on_frame, env_options=changes
        )  # fmt: skip
    print(path)
    return 0


def _fingerprint(options: argparse.Namespace) -> int:
    from kit.format.checkpoint import Damaged
    from kit.runs.fingerprint import fingerprint

    try:
        print(fingerprint(kit.Run(options.run), options.step))
    except Damaged as damage:
        raise UserError(f"{options.run} has a damaged checkpoint ({damage}); name another with --step.") from None
    return 0


def _task(options: argparse.Namespace, run: str | None) -> tuple[str, Any]:
    """Return --env, by default Reach, and --env-options. Raises `UserError` if they are given beside a `run`."""
    for flag, value in (("--env", options.env), ("--env-options", options.env_options)):
        if run and value:
            raise UserError(f"{flag} {value} has no effect on {run}, a run, which plays in its own env; leave it out.")
    return options.env or "Reach", RunConfig.from_text("env_options", options.env_options)


def _view(options: argparse.Namespace) -> int:
    env, env_options = _task(options, options.run)
    run = kit.Run(options.run) if options.run else None
    viewer = kit.ui.view(
        run, options.step, options.port, options.trust, env=env, env_options=env_options,
        n_envs=options.n_envs,
    )  # fmt: skip
    print(f"{viewer}; Ctrl-C ends it. From another machine: ssh -L {viewer.port}:localhost:{viewer.port} ...")
    try:
        viewer.wait()
    except KeyboardInterrupt:
        viewer.close()
    return 0


def _export(options: argparse.Namespace) -> int:
    run = kit.Run(options.run)
    print(kit.export(run, options.to, options.step, options.output, options.trust))
    return 0


def _push(options: argparse.Namespace) -> int:
    run = kit.Run(options.run)

    from kit.runs.publish import push  # imports torch, which takes seconds

    print(push(run, options.url, options.step, options.episodes, options.trust))
    return 0


def _record(options: argparse.Namespace) -> int:
    from kit.machine.progress import progress_bar

    env, env_options = _task(options, None if options.source.partition(":")[0] == SCRIPTED else options.source)
    with progress_bar(unit="episode", desc="recording") as bar:

        def on_progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        path = kit.record(
            options.source, options.output, env=env, env_options=env_options, episodes=options.episodes,
            seed=options.seed, step=options.step, trust=options.trust, on_progress=on_progress,
        )  # fmt: skip
    print(path)
    return 0
