"""Tests of the encoder table: parameters and memory by hand, speeds, errors."""

from __future__ import annotations

import torch

from kit import envs
from kit.encoders import ENCODERS, load
from kit.errors import UserError
from kit.measure import encoder_speed as measured
from kit.measure.encoder_speed import encoders


def test_row_of_an_encoder(monkeypatch):
    """Two encoders are enough here; notebook 06 shows the table of all."""
    monkeypatch.setattr(measured, "BUDGET_S", 0.0)
    monkeypatch.setattr(measured, "ENCODERS", {name: ENCODERS[name] for name in ("simple2dcnn", "simple3dcnn")})
    table = encoders("DishwashingVideo", {"size": 48})
    assert list(table.index) == ["simple2dcnn", "simple3dcnn"]
    space = envs.describe("DishwashingVideo", {"size": 48}).observation_space
    network = load("simple2dcnn")(space)
    count = sum(p.numel() for p in network.parameters())
    line = table.loc["simple2dcnn"]
    assert line["parameters"] == f"{count:,}" and line["weights"] == f"{16 * count / 1e6:,.1f} MB"
    assert float(line["clips/s acting"].replace(",", "")) > 0 < float(line["clips/s learning"].replace(",", ""))


def test_bytes_saved_by_a_forward_pass():
    network = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh())
    batch = torch.randn(16, 10)
    assert measured._saved_bytes(network, batch) == 16 * (10 + 20) * 4  # the input and tanh's output, in float32


def test_an_encoder_that_cannot_be_made_says_why(monkeypatch):
    def load(name):
        raise UserError("needs torchvision; pip install torchvision.")

    monkeypatch.setattr(measured, "load", load)
    assert set(encoders("DishwashingVideo")["use it when"]) == {"needs torchvision; pip install torchvision."}
