"""Fingerprint of a network: one hash of all its weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def fingerprint(module: nn.Module) -> str:
    """Return one hex SHA-256 over all parameters and buffers, in the order of their names."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name}\0{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
