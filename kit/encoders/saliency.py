"""Where a policy looks: how much its action changes if it sees a spot of a picture blurred (Greydanus et al., 2018)."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from torch.nn.functional import avg_pool2d

from kit.envs.obs import is_image
from kit.errors import UserError

SPOTS = 16
"""Along each side of a picture; so many by so many are tried."""
BLUR = 15
"""Side, in pixels, of the square whose mean a blurred pixel is: more than a ball of five and an arm of eight."""


@torch.no_grad()
def saliency(policy: BasePolicy, seen: Any) -> dict[str, torch.Tensor]:
    """For each picture of the observations `seen` (n, ...), as the policy sees them, entry -> (n, H, W) from 0 to 1:
    the mean |Δ action| of blurred spots, each a Gaussian as wide as the distance to the next, the greatest of all
    pictures 1. Spots are blurred in all frames of a stack."""
    entries = dict(seen) if isinstance(seen, dict) else {"": seen}
    space = policy.observation_space
    kinds = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    pictures = [name for name in entries if is_image(kinds[name])]
    if not pictures:
        raise UserError("this policy sees no pictures, so there is nothing to mark in them; train one with an encoder.")
    policy.set_training_mode(False)

    def act(given: dict[str, torch.Tensor]) -> torch.Tensor:
        actions = policy._predict(given if isinstance(seen, dict) else given[""], deterministic=True)
        return actions.float().flatten(1)

    plain, maps = act(entries), {}
    for name in pictures:
        whole = entries[name].float()
        blurred = avg_pool2d(whole.flatten(0, -4), BLUR, 1, BLUR // 2, count_include_pad=False).view_as(whole)
        spots = _spots(*whole.shape[-2:])
        changes = [
            (act({**entries, name: whole + spot * (blurred - whole)}) - plain).abs().sum(1) for spot in spots
        ]  # each (n,)
        weights = spots / spots.sum(0)
        maps[name] = torch.einsum("sn,shw->nhw", torch.stack(changes), weights)
    greatest = torch.stack([m.amax((1, 2)) for m in maps.values()]).amax(0).clamp(min=1e-12)
    return {name: m / greatest.view(-1, 1, 1) for name, m in maps.items()}


def _spots(height: int, width: int) -> torch.Tensor:
    """Gaussians (SPOTS², height, width), each 1 in its middle."""
    sides = []
    for size in (height, width):
        middles = (torch.arange(SPOTS) + 0.5) * size / SPOTS - 0.5
        sides.append(torch.exp(-0.5 * ((torch.arange(size) - middles.unsqueeze(1)) / (size / SPOTS)).square()))
    return torch.einsum("ah,bw->abhw", *sides).flatten(0, 1)
