"""Saliency maps: how much a policy's action changes when a spot of an image is blurred (Greydanus et al., 2018)."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from torch.nn.functional import avg_pool2d

from kit.envs.obs import is_image
from kit.errors import UserError

SPOTS = 16
"""Spots along each side of an image; SPOTS × SPOTS are blurred in turn."""
BLUR = 15
"""Side of the averaging window in pixels: larger than objects such as a ball of 5 and an arm of 8 pixels."""


@torch.no_grad()
def saliency(policy: BasePolicy, obs: Any) -> dict[str, torch.Tensor]:
    """Return saliency maps (n, H, W) from 0 to 1, one per image entry of the policy's inputs `obs` (n, ...).

    A spot, a Gaussian as wide as the spacing of the spots, is blurred in all frames of a stack. A pixel's value is
    |Δ action| averaged over the spots, weighted by their Gaussians. The largest value in an observation is scaled to 1.
    """
    entries = dict(obs) if isinstance(obs, dict) else {"": obs}
    space = policy.observation_space
    entry_spaces = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    images = [name for name in entries if is_image(entry_spaces[name])]
    if not images:
        raise UserError("this policy reads no images, so it has no saliency map; train one with an image encoder.")
    policy.set_training_mode(False)

    def act(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        actions = policy._predict(inputs if isinstance(obs, dict) else inputs[""], deterministic=True)
        return actions.float().flatten(1)

    reference, maps = act(entries), {}
    for name in images:
        image = entries[name].float()
        blurred = avg_pool2d(image.flatten(0, -4), BLUR, 1, BLUR // 2, count_include_pad=False).view_as(image)
        spots = _spots(*image.shape[-2:]).to(image.device)
        changes = [
            (act({**entries, name: image + spot * (blurred - image)}) - reference).abs().sum(1) for spot in spots
        ]  # each (n,)
        weights = spots / spots.sum(0)
        maps[name] = torch.einsum("sn,shw->nhw", torch.stack(changes), weights)
    greatest = torch.stack([m.amax((1, 2)) for m in maps.values()]).amax(0).clamp(min=1e-12)
    return {name: m / greatest.view(-1, 1, 1) for name, m in maps.items()}


def _spots(height: int, width: int) -> torch.Tensor:
    """Return Gaussian masks (SPOTS², height, width), each 1 at its centre."""
    sides = []
    for size in (height, width):
        centres = (torch.arange(SPOTS) + 0.5) * size / SPOTS - 0.5
        sides.append(torch.exp(-0.5 * ((torch.arange(size) - centres.unsqueeze(1)) / (size / SPOTS)).square()))
    return torch.einsum("ah,bw->abhw", *sides).flatten(0, 1)
