"""Use a policy without training it: success statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import envs
from kit.config import RunConfig
from kit.errors import UserError
from kit.runs.opponents import make_env
from kit.runs.run import Run, opened

if TYPE_CHECKING:
    import torch

    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Obs
    from kit.envs.play import HiddenState, Player

EVAL_SEED, TEST_SEED = 1_000_003, 2_000_003
"""Added to the run's seed, for episodes that training never sees. Evaluations while it trains play the first, the same
each time, and by them the best policy is chosen. How good a policy is, is tested on the second, which choose nothing:
of many policies the one that was luckiest on the first looks better there than it is."""
MAX_WORLDS, MAX_GAMES = 32, 256
"""Side by side in an evaluation: of worlds with physics, and of those without."""
EPISODES, GAMES = 20, 100
"""In an evaluation that belongs to a training, likewise."""
TERM, RATE = "reward/", "_per_minute"
"""What the names of a task's figures begin or end with, if evaluations add them up over an episode."""


class Evaluator:
    """Plays whole episodes in worlds of its own; leaves training and its random numbers alone."""

    def __init__(self, config: RunConfig, episodes: int | None = None, seed: int = TEST_SEED) -> None:
        self.seed = config.seed + seed
        physics = envs.describe(config.env, config.env_options).physics
        most = MAX_WORLDS if physics else MAX_GAMES
        episodes = episodes or (EPISODES if physics else GAMES)
        self.per_world = -(-episodes // most)
        worlds = -(-episodes // self.per_world)
        self.env = make_env(config, worlds, self.seed, int(config.threads))

    def __call__(self, actor: Player, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """What `evaluate` returns, or None if `should_stop`."""
        import torch

        from kit.envs.play import play

        figures: dict[str, list[torch.Tensor]] = {}  # of the episodes that are over
        totals: dict[str, torch.Tensor] = {}  # of those at play
        for step in play(self.env, actor, self.env.reset(seed=self.seed), self.per_world):
            if should_stop():
                return None
            over = bool(step.ended.any())
            for name, value in step.info.items():
                if name == "final_obs" or value.ndim != 1:
                    continue
                value = value.double()
                if name.startswith(TERM) or name.endswith(RATE):
                    before = totals.get(name, torch.zeros_like(value))
                    value = totals[name] = value + torch.where(step.episode_starts, 0.0, before)
                if over:
                    figures.setdefault(name, []).append(value[step.ended])
        found = {name: torch.cat(values) for name, values in figures.items()}
        returned, length, success = found.pop("episode_return"), found.pop("episode_length"), found.pop("success", None)
        minutes = length.mean().item() * self.env.control_dt_s / 60
        return {
            "episodes": len(returned),
            "mean_return": returned.mean().item(),
            "std_return": returned.std(correction=0).item(),
            "success_rate": None if success is None else success.sum().item() / len(returned),
            "mean_length": length.mean().item(),
            **{n: values.mean().item() / (minutes if n.endswith(RATE) else 1.0) for n, values in found.items()},
        }

    def close(self) -> None:
        self.env.close()


def evaluate(
    run: Run | str | Path,
    episodes: int = 100,
    step: int | str | None = None,
    scripted: bool = False,
    trust: bool = False,
) -> dict[str, Any]:
    """Play `episodes` with the policy of `step` (default: the best), actions without noise, or with `scripted` by the
    task's own plan. The episodes are neither those of training nor those by which the best policy was chosen. `trust`
    as in `kit.resume`.

    Returns {"episodes", "mean_return", "std_return", "success_rate" (None if the task has none), "mean_length"}, and
    the task's own figures as `Task.info` says, such as Reach's "within_5cm".
    """
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise UserError(f"episodes={episodes!r} must be a whole number of at least 1.")
    run = opened(run, trust)
    evaluator = Evaluator(run.config.replace(device="cpu"), episodes)
    with one_thread():
        result = evaluator(Script(evaluator.env) if scripted else run.policy(step).as_actor())
    evaluator.close()
    assert result is not None
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Networks that look at a few dozen rows gain nothing by more threads, and on a busy machine lose much."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Script:
    """A task's own plan, as a policy. Raises `UserError` if it has none."""

    def __init__(self, env: BatchEnv) -> None:
        self._env = env
        if env.scripted() is None:
            raise UserError("this env has no scripted plan to compare with; write its task's `scripted`.")

    def initial_state(self, n: int) -> HiddenState:
        """It has none."""
        return ()

    def __call__(self, obs: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        planned = self._env.scripted()
        assert planned is not None
        return planned, hidden_state
