"""Frozen encoders: compute the features of an image once, when it is observed, and store them instead of the image."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from stable_baselines3.common.preprocessing import preprocess_obs

from kit.encoders.extractor import ImageExtractor
from kit.envs.obs import PolicyView
from kit.errors import UserError
from kit.format.weights import fingerprint


class FrozenView(PolicyView):
    """`PolicyView` that replaces images by a frozen encoder's features and appends vectors: (n, width) float32.

    Rollouts and replay buffers store these features. Called with features, it returns them unchanged. `load_state`
    refuses a run with other encoder weights, so that features of different weights are never mixed.
    """

    def __init__(self, space: Space, encoder: ImageExtractor, names: Collection[str] | None = None) -> None:
        """`names` are the entries of the Dict `space` that the encoder reads; None means all."""
        self._policy_view = PolicyView(space, names)
        inner = self._policy_view.space
        self._spaces = inner.spaces if isinstance(inner, spaces.Dict) else {"": inner}
        self._encoder = encoder.eval().requires_grad_(False)
        width = encoder.image_width + encoder.features_dim - encoder.features
        self.space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.sha256 = fingerprint(encoder.eyes)

    def __call__(self, obs: Any) -> torch.Tensor:
        if isinstance(obs, torch.Tensor) and obs.shape[1:] == self.space.shape:
            return obs
        viewed: Any = self._policy_view(obs)
        entries = viewed if isinstance(viewed, dict) else {"": viewed}
        device = next(iter(entries.values())).device
        numbers: dict[str, Any] = {  # as SB3's policies do for other encoders: discrete entries become one-hot
            name: preprocess_obs(entries[name], self._spaces[name], normalize_images=False)
            for name in self._encoder.vectors
        }
        with torch.no_grad():
            return self._encoder.to(device).look({**entries, **numbers})

    def state(self) -> dict[str, Any]:
        return {"sha256": self.sha256}

    def load_state(self, state: dict[str, Any]) -> None:
        if state.get("sha256") != self.sha256:
            raise UserError(
                f"the encoder's weights have the SHA-256 {self.sha256[:12]}… and this run's were "
                f"{str(state.get('sha256'))[:12]}…, so its stored image features are stale; use the weights that the "
                "run started with."
            )
