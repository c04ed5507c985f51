"""Masks of envs, (n,) bool."""

from __future__ import annotations

import torch


def maybe_any(mask: torch.Tensor) -> bool:
    """Return whether `mask` may contain a True: exactly `mask.any()` on the CPU, always True on a GPU.

    On a GPU, `any` waits for the device, which costs more than the caller's work for a mask without True.
    """
    return mask.device.type != "cpu" or bool(mask.any())
