"""Frozen encoders are cheap: what they see is computed once, when it is seen, and kept instead of the pictures."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from kit.encoders.extractor import ImageExtractor
from kit.envs.obs import PolicyView
from kit.errors import UserError
from kit.format.weights import fingerprint


class FrozenView(PolicyView):
    """Observations as rows of numbers: what `encoder`'s eyes, whose weights never change, see, and the env's own
    numbers. Rollouts and replays hold such rows, (n, width) float32; what is one already stays as it is.

    A part of checkpoints: the hash of the weights, so that rows of other weights are not taken for these.
    """

    def __init__(self, space: Space, encoder: ImageExtractor, names: Collection[str] | None = None) -> None:
        """`names`: which entries of `space` the encoder sees, by default all."""
        self._before = PolicyView(space, names)
        self._encoder = encoder.eval().requires_grad_(False)
        seen = encoder.wide + encoder.features_dim - encoder.features
        self.space = spaces.Box(-np.inf, np.inf, (seen,), np.float32)
        self.sha256 = fingerprint(encoder.eyes)

    def __call__(self, obs: Any) -> torch.Tensor:
        if isinstance(obs, torch.Tensor) and obs.shape[1:] == self.space.shape:
            return obs
        viewed: Any = self._before(obs)
        entries = viewed if isinstance(viewed, dict) else {"": viewed}
        device = next(iter(entries.values())).device
        with torch.no_grad():
            return self._encoder.to(device).look(entries)

    def state(self) -> dict[str, Any]:
        return {"sha256": self.sha256}

    def load_state(self, state: dict[str, Any]) -> None:
        if state.get("sha256") != self.sha256:
            raise UserError(
                f"the encoder's weights have the SHA-256 {self.sha256[:12]}… and this run's were "
                f"{str(state.get('sha256'))[:12]}…, so that what it has kept of its pictures is stale; give it the "
                "weights that it began with."
            )
