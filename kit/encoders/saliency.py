"""Where a policy looks: by how much its action would change with each pixel (Simonyan et al., 2013)."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.policies import BasePolicy

from kit.envs.obs import is_picture, leaves
from kit.errors import UserError


def saliency(policy: BasePolicy, seen: Any) -> dict[str, torch.Tensor]:
    """Σ_i |∂ a_i / ∂ pixel| over the numbers of the action and over frames and channels, for each picture of the
    observations `seen` (n, ...), as the policy sees them: entry -> (n, H, W), the greatest of each picture 1."""
    entries = dict(seen) if isinstance(seen, dict) else {"": seen}
    spaces = dict(leaves("", policy.observation_space)) if isinstance(seen, dict) else {"": policy.observation_space}
    pictures = [name for name in entries if is_picture(spaces[f".{name}" if isinstance(seen, dict) else name])]
    if not pictures:
        raise UserError("this policy sees no pictures, so there is nothing to mark in them; train one with an encoder.")
    policy.set_training_mode(False)
    inputs = {name: entries[name].float().requires_grad_() for name in pictures}
    given: Any = {**entries, **inputs}
    with torch.enable_grad():
        actions = policy._predict(given if isinstance(seen, dict) else given[""], deterministic=True).float()
        if not actions.requires_grad:
            raise UserError(f"actions of {policy.action_space} are chosen, not computed: their slope is nowhere.")
        slopes = {name: torch.zeros_like(value) for name, value in inputs.items()}
        for number in actions.flatten(1).sum(0):
            for name, slope in zip(inputs, torch.autograd.grad(number, list(inputs.values()), retain_graph=True),
                                   strict=True):  # fmt: skip
                slopes[name] += slope.abs()
    maps = {name: slope.flatten(1, -3).sum(1) for name, slope in slopes.items()}
    return {name: m / m.amax((1, 2), keepdim=True).clamp(min=1e-12) for name, m in maps.items()}
