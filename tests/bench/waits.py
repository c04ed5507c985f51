"""Count, on a pretended GPU, how often the CPU waits for the GPU and how many kernels torch launches per env step:

    python tests/bench/waits.py                         # a table of every algorithm and kind of task, minutes
    python tests/bench/waits.py Go1Joystick:PPO --lines # one row, and which lines of kit wait and launch

A wait makes the GPU idle until the CPU has launched more work. A kernel costs 6 to 12 us of Python each; what is
replayed from a CUDA graph is not counted. Needs no GPU (tests/card.py); a real GPU runs the same code.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests import card  # noqa: E402

STEPS = 8
"""Env steps of an iteration, and of a rollout."""


@dataclass(frozen=True)
class Case:
    """What to train for an iteration."""

    env: str
    algo: str
    env_options: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    encoder: str = "auto"
    teacher: str = ""

    @property
    def name(self) -> str:
        options = [*self.env_options.values(), *([f"frozen {self.encoder}"] if self.encoder != "auto" else [])]
        return f"{self.env}:{self.algo}" + "".join(f":{option}" for option in options)


@dataclass(frozen=True)
class Row:
    """Counts of an iteration after two others, which record the CUDA graphs, and of one env step."""

    case: Case
    iteration: card.Counts
    step: card.Counts


FROZEN = {"policy_kwargs": {"features_extractor_kwargs": {"frozen": True}}}
CASES = (
    Case("Mission", "PPO"), Case("Mission", "PPO", {"side": "defenders"}), Case("Ant", "PPO"), Case("Ant", "A2C"),
    Case("Ant", "RecurrentPPO"), Case("Ant", "SAC"), Case("Ant", "TD3"), Case("Ant", "CrossQ"), Case("Reach", "PPO"),
    Case("Go1Joystick", "PPO"), Case("G1Joystick", "PPO"), Case("G1Legs", "PPO"), Case("Push", "SAC"),
    Case("PickAndPlace", "SAC"), Case("Slide", "SAC"), Case("Dishwashing", "SAC"), Case("ReachVision", "PPO"),
    Case("ReachVision", "SAC"), Case("DishwashingVideo", "PPO"),
    Case("DishwashingVideo", "PPO", overrides=FROZEN, encoder="r3d18"),
    Case("DishwashingVideo", "Distill", teacher="scripted"),
)  # fmt: skip


def count(case: Case, n_envs: int = 8) -> Row:
    """Train `case` for three iterations on the pretended GPU, which must be installed, and count the third."""
    from kit.envs import make_vec
    from kit.runs.teacher import make_teacher
    from kit.trainers import make_trainer
    from tests.runs.crash import create
    from tests.trainers.iteration import one_iteration

    off_policy = case.algo in ("SAC", "TD3", "CrossQ")
    steps = {"train_freq": STEPS, "learning_starts": 1, "batch_size": 16} if off_policy else {"n_steps": STEPS}
    with tempfile.TemporaryDirectory() as folder:
        run = create(
            Path(folder), "run", case.algo, {**steps, **case.overrides}, env=case.env, env_options=case.env_options,
            n_envs=n_envs, device="cuda", encoder=case.encoder, **({"teacher": case.teacher} if case.teacher else {}),
        )  # fmt: skip
        env = make_vec(case.env, n_envs, "cuda", env_options=case.env_options)
        trainer: Any = make_trainer(run.config, env)
        if case.teacher:
            trainer.set_teacher(make_teacher(run.config, env, None))
        _, callback = trainer._setup_learn(10**9, None, True)
        trainer._log_now = False
        for _ in range(2):
            one_iteration(trainer, callback)
        with card.counting(lines=True) as iteration:
            one_iteration(trainer, callback)
        action = torch.as_tensor(env.action_space.sample(), device="cuda")
        actions = action.expand(n_envs, *env.action_space.shape).clone()
        with card.counting(lines=True) as step:
            env.step(actions)
        env.close()
    return Row(case, iteration, step)


def table(rows: list[Row]) -> Iterator[str]:
    yield f"| task and algorithm | waits per iteration of {STEPS} env steps | per env step: waits | kernels |"
    yield "|---|---:|---:|---:|"
    for row in rows:
        numbers = row.iteration.waits.total(), row.step.waits.total(), row.step.kernels.total()
        yield f"| {row.case.name} | " + " | ".join(map(str, numbers)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows by name, such as Ant:PPO; default: all")
    parser.add_argument("--lines", action="store_true", help="print the lines of kit that wait and launch kernels")
    args = parser.parse_args()
    card.install()
    rows = []
    for case in CASES:
        if not args.names or case.name in args.names:
            rows.append(row := count(case))
            print(case.name, flush=True)
            for title, counts in (("iteration", row.iteration), ("env step", row.step)) if args.lines else ():
                for (operation, line), n in counts.waits.most_common():
                    print(f"  {title}: waits {n} x {operation} in {line}")
                for line, n in counts.kernels.most_common(25):
                    print(f"  {title}: kernels {n} in {line}")
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
