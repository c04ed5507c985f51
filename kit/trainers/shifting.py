"""Random shifts of training images (DrQ: Kostrikov et al., 2020), against overfitting to pixel positions."""

from __future__ import annotations

from typing import Any

import torch

from kit.envs.obs import tree_map


def random_shift(obs: Any, pixels: int) -> Any:
    """Return `obs` with each uint8 image shifted by up to `pixels` in each direction; edge pixels fill the gap.

    Images are channels-first, (N, C, H, W) or stacks (N, T, C, H, W); the T frames of a stack shift equally. Draws from
    torch's global generator.
    """
    return tree_map(lambda x: _shift(x, pixels) if x.dtype == torch.uint8 and x.ndim >= 4 else x, obs)


def _shift(images: torch.Tensor, pixels: int) -> torch.Tensor:
    n, height, width = len(images), *images.shape[-2:]
    down, right = torch.randint(-pixels, pixels + 1, (2, n, 1), device=images.device)
    index = torch.arange(n, device=images.device).view(n, 1, 1)
    rows = (torch.arange(height, device=images.device) + down).clamp_(0, height - 1).unsqueeze(2)
    columns = (torch.arange(width, device=images.device) + right).clamp_(0, width - 1).unsqueeze(1)
    return images.movedim((-2, -1), (1, 2))[index, rows, columns].movedim((1, 2), (-2, -1))
