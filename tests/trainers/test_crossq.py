"""Tests of CrossQ's layer against sb3-contrib's; `test_trainer_updates` compares whole gradient steps."""

from __future__ import annotations

import copy

import pytest
import torch
from sb3_contrib.common.torch_layers import BatchRenorm1d

from kit.trainers.crossq import BatchRenorm


@pytest.mark.parametrize("steps", [10, 11], ids=["batch normalisation", "batch renormalisation"])
def test_the_layer_is_that_of_sb3_contrib(steps: int) -> None:
    """Values, gradients and running statistics, with features whose corrections are clipped and some that are not."""
    torch.manual_seed(0)
    stock = BatchRenorm1d(6, eps=1e-9, warmup_steps=10)  # with a larger eps the two differ where the variance is small
    stock.ra_mean.copy_(torch.tensor([0.0, 0.3, -0.2, 9.0, 0.0, 0.0]))
    stock.ra_var.copy_(torch.tensor([1.0, 1.5, 0.5, 1.0, 0.01, 50.0]))
    stock.scale.data.uniform_(0.5, 2.0)
    stock.bias.data.normal_()
    stock.steps.fill_(steps)
    ours = copy.deepcopy(stock)
    ours.__class__ = BatchRenorm
    inputs = torch.randn(32, 6)
    for training in (True, True, False):
        results = []
        for layer in (ours, stock):
            x = inputs.clone().requires_grad_()
            y = layer.train(training)(x)
            (y * torch.linspace(-1, 1, 6)).square().sum().backward()
            results.append((y.detach(), x.grad, layer.scale.grad, layer.bias.grad, *layer.buffers()))
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
