"""Benchmark of vision: rendered images/s, replay of clips, PPO from images, success of trained runs. Run by hand:

    python tests/bench/vision.py                    # speeds; MUJOCO_GL=egl (the default here) or osmesa
    python tests/bench/vision.py --score runs/a …   # success with images, with black images, with random actions

The baseline, "usual", is a Gymnasium env that steps MuJoCo and renders with mujoco.Renderer (OpenGL, here in software,
shadows and multisampling off), with SB3's DummyVecEnv, VecFrameStack, and PPO with CombinedExtractor's NatureCNNs.
Model, cameras, reward, hyperparameters and threads are the same.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium
import mujoco
import numpy as np
import psutil
import torch
from gymnasium import spaces

from kit.config import RunConfig
from kit.envs import make_vec
from kit.measure.auto import resolve
from kit.runs.evaluation import Evaluator
from kit.runs.run import Run
from kit.sim.render import POSES, Renderer
from kit.tasks.reach.model import ARM, FINGER_OPEN_M, GOAL, HAND, REST, build_model, goal_bank
from kit.tasks.reach.task import PROGRESS_PER_M, START_NOISE_RAD, SUCCESS_BONUS, SUCCESS_M
from kit.tasks.reach.vision import EYES
from kit.trainers import make_trainer
from kit.trainers.replay import Replay

SIZE, FRAMES, WORLDS = 64, 4, 16


class UsualReach(gymnasium.Env):
    """ReachVision as an ordinary Gymnasium env that renders with mujoco.Renderer."""

    def __init__(self) -> None:
        self.model = build_model(0.06)
        self.model.vis.quality.offsamples = 0
        self.data = mujoco.MjData(self.model)
        self.renderer = mujoco.Renderer(self.model, SIZE, SIZE)
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        eye = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        joints = spaces.Box(-np.inf, np.inf, (15,), np.float32)
        self.observation_space = spaces.Dict({**dict.fromkeys(EYES, eye), "joints": joints})
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:7] = REST + START_NOISE_RAD * self.np_random.uniform(-1, 1, 7)
        self.data.qpos[7:9] = self.data.ctrl[7:9] = FINGER_OPEN_M
        self.data.mocap_pos[0] = goal_bank()[self.np_random.integers(1024)]
        mujoco.mj_forward(self.model, self.data)
        self.steps, self.distance = 0, self._distance()
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.data.ctrl[: len(ARM)] = action
        mujoco.mj_step(self.model, self.data, 25)
        before, self.distance, self.steps = self.distance, self._distance(), self.steps + 1
        there = self.distance < SUCCESS_M
        reward = PROGRESS_PER_M * (before - self.distance) + SUCCESS_BONUS * there
        return self._see(), reward, there, self.steps >= 100, {"is_success": there}

    def _distance(self) -> float:
        return float(np.linalg.norm(self.data.site(HAND).xpos - self.data.body(GOAL).xpos))

    def _see(self) -> dict[str, np.ndarray]:
        seen = {"joints": np.concatenate([self.data.qpos[:7], self.data.qvel[:7], [1.0]]).astype(np.float32)}
        for name in EYES:
            self.renderer.update_scene(self.data, name)
            seen[name] = self.renderer.render().copy()
        return seen


def pictures(turns: int) -> None:
    """Print images/s of each renderer: the best of its turns, because other programs may slow down some turns."""
    env: Any = make_vec("ReachVision", WORLDS)
    poses = {name: env.task.sim.field(name) for name in POSES}
    one, two, plain = (Renderer(env.task.model, WORLDS, EYES, SIZE, SIZE, threads=threads) for threads in (1, 2, 1))
    plain._static = plain._culling = None
    usual = UsualReach()
    usual.reset(seed=0)
    contenders: dict[str, tuple[int, Callable[[], object]]] = {
        "kit, 1 thread": (WORLDS * len(EYES), lambda: one.render(poses)),
        "kit, 2 threads": (WORLDS * len(EYES), lambda: two.render(poses)),
        "everything drawn anew by MuJoCo Warp, 1 thread": (WORLDS * len(EYES), lambda: plain.render(poses)),
        f"mujoco.Renderer, {os.environ['MUJOCO_GL']}, 1 thread": (len(EYES), usual._see),
    }
    best = dict.fromkeys(contenders, 0.0)
    for turn in range(turns + 1):
        env.step(2 * torch.rand(WORLDS, len(ARM)) - 1)
        for name, (count, draw) in contenders.items():
            started = time.perf_counter()
            draw()
            best[name] = max(best[name], count / (time.perf_counter() - started)) if turn else 0.0
    print(f"| pictures/s, {SIZE}×{SIZE}, Fetch, {len(EYES)} cameras, {WORLDS} worlds | |\n|---|---:|")
    for name, rate in best.items():
        print(f"| {name} | {rate:,.0f} |")


def replay(clips: int = 100_000, worlds: int = 8, frames: int = 8) -> None:
    """Print the memory of a replay of `clips` clips, and the sampling speed in clips/s (two clips per transition)."""
    torch.set_num_threads(1)
    before, kept = (
        psutil.Process().memory_info().rss,
        Replay(clips // worlds, worlds, torch.device("cpu"), {"": frames}),
    )
    stack = torch.randint(0, 255, (worlds, frames, 3, SIZE, SIZE), dtype=torch.uint8)
    action, zero, no = torch.zeros(worlds, 7), torch.zeros(worlds), torch.zeros(worlds, dtype=torch.bool)
    for step in range(clips // worlds):
        kept.add(stack, action, zero, stack, no, no if step % 100 else ~no)
    taken = psutil.Process().memory_info().rss - before
    best = 0.0
    for _ in range(20):
        started = time.process_time()
        kept.sample(256)
        best = max(best, 2 * 256 / (time.process_time() - started))
    print(f"\n| replay of {clips:,} clips ({frames}, 3, {SIZE}, {SIZE}) | |\n|---|---:|")
    print(f"| memory | {taken / 1e9:.2f} GB |\n| clips drawn in a second of one core | {best:,.0f} |\n")


def training(steps: int, threads: int) -> None:
    """Print env steps/s of PPO on ReachVision, after a first rollout and update."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecTransposeImage

    config = resolve(RunConfig(env="ReachVision", encoder="simple2dcnn", n_envs=WORLDS, device="cpu", threads=threads))
    hyper = {name: config.overrides[name] for name in ("n_steps", "batch_size", "n_epochs", "learning_rate", "gamma")}
    rollout = hyper["n_steps"] * WORLDS
    ours: Any = make_trainer(config, make_vec("ReachVision", WORLDS, threads=threads))
    torch.set_num_threads(threads)
    venv = VecTransposeImage(VecFrameStack(DummyVecEnv([UsualReach] * WORLDS), FRAMES))
    usual = PPO("MultiInputPolicy", venv, device="cpu", **hyper)
    print("| PPO from pictures, env steps/s | |\n|---|---:|")
    rates = []
    for name, model in (("kit, simple2dcnn", ours), ("Gymnasium, GL, VecFrameStack, SB3, NatureCNN", usual)):
        model.learn(rollout)
        started = time.perf_counter()
        model.learn(steps + rollout if model is ours else steps, reset_num_timesteps=False)
        rates.append((model.num_timesteps - rollout) / (time.perf_counter() - started))
        print(f"| {name} | {rates[-1]:,.0f} |", flush=True)
    print(f"| ratio | {rates[0] / rates[1]:.1f} |\n")


class Blind:
    """Actor that gets black images instead of the cameras' images."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.initial_state = actor, actor.initial_state

    def __call__(self, obs: Any, hidden_state: Any) -> Any:
        black = {k: torch.zeros_like(v) if v.dtype == torch.uint8 else v for k, v in obs.items()}
        return self.actor(black, hidden_state)


class Random(Blind):
    """Actor that takes random actions."""

    def __call__(self, obs: Any, hidden_state: Any) -> Any:
        return 2 * torch.rand(len(obs["joints"]), 7) - 1, hidden_state


def score(paths: list[str], episodes: int) -> None:
    print("| run | steps | sees | blind | at random |\n|---|---:|---:|---:|---:|")
    for path in paths:
        run = Run(path)
        actor = run.policy().as_actor()
        judge = Evaluator(run.config.replace(device="cpu"), episodes)
        found = [judge(kind) for kind in (actor, Blind(actor), Random(actor))]  # type: ignore[arg-type]
        rates = " | ".join(f"{100 * (row or {})['success_rate']:.0f} %" for row in found)
        print(f"| {run.name} | {run.status()['step']:,} | {rates} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--score", nargs="+", metavar="RUN")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=4096, help="training steps of each contender")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.score:
        score(args.score, args.episodes)
    else:
        pictures(args.turns)
        replay()
        training(args.steps, args.threads)
