"""Tests of observation helpers: `select`, `leaves`, `from_leaves`, `PolicyView`, `tree_map`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from kit.envs.obs import PolicyView, from_leaves, leaves, select, tree_map


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 3, 2)])
def test_select_takes_whole_rows_whatever_their_rank(shape: tuple[int, ...]) -> None:
    mask = torch.tensor([True, False, True, False])
    new, old = torch.full((4, *shape), 7, dtype=torch.uint8), torch.zeros(4, *shape, dtype=torch.uint8)
    chosen = select(mask, {"a": {"b": new}}, {"a": {"b": old}})["a"]["b"]
    assert chosen.dtype == torch.uint8 and chosen.shape == old.shape
    assert [bool((row == 7).all()) for row in chosen] == mask.tolist()
    assert [bool((row == 0).all()) for row in chosen] == (~mask).tolist()


def test_from_leaves_undoes_leaves() -> None:
    obs = {"eye": torch.zeros(2, 3), "hand": {"force": torch.ones(2), "place": torch.ones(2, 3)}}
    columns = dict(leaves("obs", obs))
    assert list(columns) == ["obs.eye", "obs.hand.force", "obs.hand.place"]
    again = from_leaves("obs", {**columns, "observer": torch.zeros(1), "rewards": torch.zeros(1)})
    assert again.keys() == obs.keys() and again["hand"].keys() == obs["hand"].keys()
    assert from_leaves("obs", dict(leaves("obs", obs["eye"]))) is obs["eye"]


def test_policy_view_moves_channels_and_flattens_names() -> None:
    wide = spaces.Box(0, 255, (40, 50, 3), np.uint8)
    view = PolicyView(spaces.Dict({"eyes": spaces.Dict({"left": wide}), "joints": spaces.Box(-1, 1, (7,))}))
    assert view.space["eyes/left"].shape == (3, 40, 50)
    picture = torch.arange(2 * 40 * 50 * 3).reshape(2, 40, 50, 3).to(torch.uint8)
    seen = view({"eyes": {"left": picture}, "joints": torch.zeros(2, 7)})
    assert torch.equal(seen["eyes/left"], picture.permute(0, 3, 1, 2)) and seen["eyes/left"].dtype == torch.uint8
    already = torch.zeros(2, 3, 40, 50, dtype=torch.uint8)
    assert PolicyView(spaces.Box(0, 255, (3, 40, 50), np.uint8))(already) is already
    numbers = {"joints": torch.zeros(2, 7)}
    assert PolicyView(spaces.Dict({"joints": spaces.Box(-1, 1, (7,))}))(numbers) is numbers
    assert tree_map(lambda x: x.shape[0], numbers) == {"joints": 2}
