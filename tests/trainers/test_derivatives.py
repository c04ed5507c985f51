"""Tests of the closed-form derivatives of PPO's and A2C's losses: equal to autograd; overridden losses use autograd."""

from typing import Any

import pytest
import torch
from fake_env import FakeEnv, trainer
from gymnasium import spaces

from kit.trainers.a2c import A2C
from kit.trainers.fast.derivatives import differentiate
from kit.trainers.fast.stacked import StackedActorCritic
from kit.trainers.networks import Evaluated, Networks
from kit.trainers.ppo import PPO
from kit.trainers.rollout import Batch

ROWS = 257
CASES: dict[str, tuple[str, tuple[float, ...]]] = {
    "ppo": ("PPO", (0.2,)),
    "ppo with clipped values": ("PPO", (0.1, 0.3)),
    "a2c": ("A2C", ()),
}


def minibatch(seed: int) -> tuple[Evaluated, Batch]:
    """Random minibatch: ratios and values inside and outside their clip ranges, advantages of both signs."""
    generator = torch.Generator().manual_seed(seed)

    def rows(spread: float) -> torch.Tensor:
        return spread * torch.randn(ROWS, generator=generator, dtype=torch.float64)

    new = Evaluated(rows(0.3), rows(1.0), torch.tensor(1.5, dtype=torch.float64))
    return new, Batch(rows(1.0), rows(1.0), rows(1.0), rows(0.3), rows(1.0), rows(1.0))


@pytest.mark.parametrize(("algo", "numbers"), CASES.values(), ids=CASES)
def test_closed_form_derivatives_equal_autograd(algo: str, numbers: tuple[float, ...]) -> None:
    model: Any = trainer(algo, ent_coef=0.01, vf_coef=0.7)
    new, batch = minibatch(0)
    written = differentiate(model.loss, new, batch, *numbers)
    assert model.loss.derivatives, "this loss has no closed-form derivatives"
    by_autograd = differentiate(lambda *arguments: model.loss(*arguments), new, batch, *numbers)
    for ours, theirs in zip(written, by_autograd, strict=True):
        torch.testing.assert_close(torch.as_tensor(ours, dtype=torch.float64), theirs, rtol=1e-12, atol=1e-15)
    assert written.log_prob.count_nonzero() > ROWS / 2


class Doubled:
    """Overrides the loss: twice PPO's or A2C's loss, minus 0.1 times the squared entropy."""

    def loss(self, new: Evaluated, *rest: Any) -> torch.Tensor:
        return 2 * super().loss(new, *rest) - 0.1 * new.entropy.square()  # type: ignore[misc]


class DoubledPPO(Doubled, PPO): ...


class DoubledA2C(Doubled, A2C): ...


@pytest.mark.parametrize("space", [None, spaces.Discrete(3), spaces.MultiDiscrete([3, 4])], ids=repr)
@pytest.mark.parametrize("made", [DoubledPPO, DoubledA2C])
def test_an_overridden_loss_works_with_stacked_networks(made: type, space: spaces.Space | None) -> None:
    """An overridden loss has no closed-form derivatives; stacked networks then get the gradient of SB3's modules."""
    base = trainer(made.__mro__[2].__name__, FakeEnv(4, action_space=space), n_steps=16, seed=3)
    model = made("MlpPolicy", base.env, n_steps=16, seed=3, device="cpu", ent_coef=0.01)
    _, callback = model._setup_learn(64)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 16)
    model._compute_returns()
    batch, numbers = model.rollout_buffer.batch(), (0.2,) if isinstance(model, PPO) else ()
    assert isinstance(model.networks, StackedActorCritic)
    assert not hasattr(model.loss, "derivatives")
    seen = model.networks.gradient(model.loss, batch, *numbers)
    ours = {name: p.grad.clone() for name, p in model.policy.named_parameters()}
    plain = Networks(model.policy)
    theirs_seen = plain.gradient(model.loss, batch, *numbers)
    torch.testing.assert_close(seen.log_prob, theirs_seen.log_prob, rtol=0, atol=1e-5)
    for name, p in model.policy.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
