"""Benchmark of the Go1 task's reward: random actions with several noise levels, a scripted trot, standing. By hand:

    python tests/bench/walk.py
    python tests/bench/walk.py RUN...    # instead: success rate and errors of every checkpoint of these runs
"""

from __future__ import annotations

import argparse
import math

import torch

import kit
from kit.envs import make_task
from kit.envs.vec import TensorEnv
from kit.runs.evaluation import Evaluator
from kit.tasks.joystick.task import ACTION_SCALE_RAD, CONTROL_DT_S, Joystick

ROBOTS, STEPS = 64, 150
NOISES = (0.0, 0.1, 0.2, 0.37, 0.6)
EPISODES = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    asked = parser.parse_args()
    if asked.runs:
        for name in asked.runs:
            tracking(kit.Run(name))
        return
    env, task = robots(ROBOTS)
    print("| noise | sum | paid | falls |\n|---|---:|---:|---:|")
    for noise in NOISES:
        env.reset(seed=0)
        torch.manual_seed(0)
        total, paid, falls = noisy(env, task, noise)
        print(f"| {noise} | {total:.2f} | {paid:.2f} | {falls} |")
    env, task = robots(1)
    print("\n| speed of a trot | sum of its reward terms | sum for standing |\n|---|---:|---:|")
    for stride_rad, lift_rad, hz in ((0.51, 0.60, 1.8), (0.49, 0.41, 1.9)):
        speed = trot(env, task, stride_rad, lift_rad, hz, 0.0)[0]
        own, still = trot(env, task, stride_rad, lift_rad, hz, speed)[1], trot(env, task, 0.0, 0.0, hz, speed)[1]
        print(f"| {speed:.2f} m/s | {own:.2f} | {still:.2f} |")


def robots(n: int) -> tuple[TensorEnv, Joystick]:
    task = make_task("Go1Joystick")
    assert isinstance(task, Joystick)
    return TensorEnv(task, n), task


def noisy(env: TensorEnv, task: Joystick, noise: float) -> tuple[float, float, int]:
    """Return per step the sum of reward terms and the reward (full tracking is 1), and the falls."""
    total, paid, falls = 0.0, 0.0, 0
    for _ in range(STEPS):
        _, reward, terminated, _, info = env.step(torch.randn(ROBOTS, 12) * noise)
        total += terms(info) / STEPS
        paid += float(reward.mean()) / CONTROL_DT_S / STEPS
        falls += int(terminated.sum())
    return total, paid, falls


def trot(
    env: TensorEnv, task: Joystick, stride_rad: float, lift_rad: float, hz: float, asked: float
) -> tuple[float, float]:
    """Return forward speed, m/s, and sum of reward terms per step of an open-loop trot (diagonal legs swing together).

    The command is `asked` m/s forward. The first 1.5 s are not counted.
    """
    env.reset(seed=0)
    task.sim.reset(torch.tensor([True]), qpos=task.constant(task.model.key("home").qpos).unsqueeze(0))
    task.measure()
    speed, paid, counted = 0.0, 0.0, 0
    for step in range(STEPS + 75):
        task._timers.fill_(math.inf)
        task.command.copy_(torch.tensor([asked, 0.0, 0.0]))
        phase = 2 * math.pi * hz * step * CONTROL_DT_S + torch.tensor([0.0, math.pi, math.pi, 0.0])
        lift = lift_rad * phase.sin().clamp(min=0)
        legs = torch.stack([torch.zeros(4), stride_rad * phase.cos() + lift / 2, -lift], 1)
        _, _, _, _, info = env.step(legs.flatten().unsqueeze(0) / ACTION_SCALE_RAD)
        if step >= 75:
            speed, paid, counted = speed + float(task.sensor("linvel_b")[:, 0].mean()), paid + terms(info), counted + 1
    return speed / counted, paid / counted


def terms(info: dict[str, torch.Tensor]) -> float:
    return sum(float(value.mean()) for name, value in info.items() if name.startswith("reward/")) / CONTROL_DT_S


def tracking(run: kit.Run) -> None:
    evaluator = Evaluator(run.config.replace(device="cpu"), EPISODES)
    for found in run.checkpoints():
        reached = evaluator(run.policy(found.step).as_actor())
        assert reached is not None
        figures = ("success_rate", "velocity_error", "turning_error", "falls_per_minute")
        print(f"{run.name} {found.step:>11,}", *(f"{name} {reached[name]:.2f}" for name in figures), sep="  ")


if __name__ == "__main__":
    main()
