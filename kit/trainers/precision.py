"""bfloat16 for those who ask: features and hidden layers in half the bits, everything that adds up in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3.common.policies import ActorCriticPolicy

KINDS = ("bf16",)
"""Values of the override `autocast`."""


def autocast(policy: ActorCriticPolicy, device: torch.device) -> None:
    """From now on `policy` computes features and hidden layers under torch's autocast, in bfloat16: 8 bits of mantissa.
    Weights, heads, losses, gradients and optimizer stay float32, and so does whatever is saved.

    Its update is then autograd's, for the stacked and recorded one is float32 (TF32 where the card has it). It pays
    for large networks and pictures only, and it is not what SB3 would have computed to 1e-5.
    """
    inside = [(policy.mlp_extractor, "forward_actor"), (policy.mlp_extractor, "forward_critic")]
    for module, name in [*inside, (policy.features_extractor, "forward")]:
        setattr(module, name, _in_bf16(getattr(module, name), device.type))


def _in_bf16(function: Callable[[Any], torch.Tensor], device_type: str) -> Callable[[Any], torch.Tensor]:
    def forward(inputs: Any) -> torch.Tensor:
        with torch.autocast(device_type, torch.bfloat16):
            return function(inputs).float()

    return forward
