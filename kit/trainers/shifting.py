"""Random shifts: a network that is to see where things are, not on which pixels (DrQ: Kostrikov et al., 2020)."""

from __future__ import annotations

from typing import Any

import torch

from kit.envs.obs import tree_map


def random_shift(obs: Any, pixels: int) -> Any:
    """`obs` with each picture of channels first, (N, C, H, W) or all T of a stack (N, T, C, H, W) alike, moved by up to
    `pixels` either way; its edge is repeated. By torch's global generator."""
    return tree_map(lambda x: _shift(x, pixels) if x.dtype == torch.uint8 and x.ndim >= 4 else x, obs)


def _shift(pictures: torch.Tensor, pixels: int) -> torch.Tensor:
    n, height, width = len(pictures), *pictures.shape[-2:]
    down, right = torch.randint(-pixels, pixels + 1, (2, n, 1), device=pictures.device)
    number = torch.arange(n, device=pictures.device).view(n, 1, 1)
    rows = (torch.arange(height, device=pictures.device) + down).clamp_(0, height - 1).unsqueeze(2)
    columns = (torch.arange(width, device=pictures.device) + right).clamp_(0, width - 1).unsqueeze(1)
    return pictures.movedim((-2, -1), (1, 2))[number, rows, columns].movedim((1, 2), (-2, -1))
