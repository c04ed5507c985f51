"""The trainers on real worlds: exact resume on our simulator and on Gymnasium's, and learning."""

from typing import Any

import pytest
import torch
from fake_env import FakeEnv, trainer
from test_trainer_resume import equal, scramble

import kit
from kit.trainers import Interrupted


@pytest.mark.parametrize(("env_id", "algo"), [("Reach", "PPO"), ("Ant", "A2C"), ("Ant-v5", "SAC")])
def test_exact_resume(env_id: str, algo: str) -> None:
    """Cut at two boundaries, each time into a new trainer on new worlds."""
    budget = {"PPO": 96, "A2C": 80, "SAC": 80}[algo]
    overrides: dict[str, Any] = {"normalize": True, **({"n_steps": 12, "batch_size": 24} if algo == "PPO" else {})}

    def run(cuts: tuple[int, ...]) -> Any:
        state, replay, boundary = None, None, 0
        while True:
            env = kit.make_vec(env_id, 2, "cpu", seed=len(cuts))
            model = trainer(algo, env, **overrides)
            if state is not None:
                scramble()
                model.load_state(state)
                if replay is not None:
                    model.load_replay(replay, 0)

            def at_boundary(model: Any = model) -> None:
                nonlocal state, replay, boundary
                boundary += 1
                if boundary in cuts:
                    state = model.state()
                    replay = model.replay_rows(0, model.replay_written) if algo == "SAC" else None
                    raise Interrupted

            model.on_boundary = at_boundary
            try:
                model.learn(budget)
            except Interrupted:
                env.close()
                continue
            final = model.state()
            env.close()
            return final

    assert equal(run((1, 3)), run(()))


@pytest.mark.parametrize(("algo", "steps"), [("PPO", 6000), ("A2C", 12000), ("SAC", 2400)])
def test_learning(algo: str, steps: int) -> None:
    """The point learns to go to the origin: nearly always, where chance reaches it seldom."""
    settings = {"PPO": {"learning_rate": 3e-3, "n_epochs": 5}, "A2C": {"learning_rate": 3e-3},
                "SAC": {"learning_rate": 3e-3, "learning_starts": 200, "gamma": 0.9}}  # fmt: skip
    torch.manual_seed(0)
    model = trainer(algo, FakeEnv(4), **settings[algo])
    model.learn(steps)
    assert sum(list(model.ep_success_buffer)[-50:]) >= 45
