"""List of info dicts for SB3 callbacks, one per env; each dict is built only when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kit.envs.obs import tree_map


class LazyInfos(Sequence[dict[str, Any]]):
    """SB3's list of n info dicts, made from a step's batched `info` (tensors of leading size n)."""

    def __init__(self, info: dict[str, torch.Tensor], done: torch.Tensor, truncated: torch.Tensor) -> None:
        self._info, self._done, self._truncated = info, done, truncated

    def __len__(self) -> int:
        return len(self._done)

    def __getitem__(self, env: Any) -> Any:
        if isinstance(env, slice):
            return [self[i] for i in range(*env.indices(len(self)))]
        if not -len(self) <= env < len(self):
            raise IndexError(env)
        info: dict[str, Any] = {"TimeLimit.truncated": bool(self._truncated[env])}
        if "success" in self._info:
            info["is_success"] = bool(self._info["success"][env])
        if self._done[env]:
            info["terminal_observation"] = tree_map(lambda rows: rows[env].cpu().numpy(), self._info["final_obs"])
            total, length = self._info["episode_return"][env].item(), self._info["episode_length"][env].item()
            info["episode"] = {"r": total, "l": int(length), "t": 0.0}
        return info
