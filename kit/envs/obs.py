"""Observations: a tensor, or a nested dict of tensors, of any rank and dtype, with the worlds in front."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

Obs: TypeAlias = "torch.Tensor | dict[str, Obs]"
"""(n, ...), or one such tensor for each key of a Dict space, which may hold further ones."""

POLICY, CRITIC, TEACHER = "policy", "critic", "teacher"
"""Observation groups (`kit.envs.groups`)."""
Groups: TypeAlias = Mapping[str, tuple[str, ...]]
"""Group -> the entries that it sees, top-level keys of a Dict observation."""


COLOURS = (1, 3, 4)
"""Channels that a picture has: grey, RGB, or RGB and one more."""


def tree_map(function: Callable[..., Any], *obs: Any) -> Any:
    """`function` of one tensor, or of each entry of dicts with the same keys."""
    if isinstance(obs[0], Mapping):
        return {key: tree_map(function, *(o[key] for o in obs)) for key in obs[0]}
    return function(*obs)


def select(mask: torch.Tensor, new: Obs, old: Obs) -> Obs:
    """Rows of `new` where `mask` (n,) bool, of `old` elsewhere, whatever the rank of an entry."""
    return tree_map(lambda a, b: torch.where(mask.view(-1, *[1] * (b.ndim - 1)), a, b), new, old)


def leaves(name: str, obs: Any) -> Iterator[tuple[str, Any]]:
    """Each tensor under `name`, or "name.key", "name.key.inner" for entries of dicts."""
    if not isinstance(obs, Mapping):
        yield name, obs
        return
    for key, value in obs.items():
        yield from leaves(f"{name}.{key}", value)


def from_leaves(name: str, columns: Mapping[str, Any]) -> Any:
    """What `leaves` took apart, out of `columns` that may hold others too."""
    if name in columns:
        return columns[name]
    keys = [key[len(name) + 1 :].partition(".")[0] for key in columns if key.startswith(f"{name}.")]
    return {key: from_leaves(f"{name}.{key}", columns) for key in dict.fromkeys(keys)}


def entries(nested: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """What a nested dict or Dict space holds, under flat names such as "hand/force"."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from entries(value, f"{inside}{key}/")
        else:
            yield f"{inside}{key}", value


def pick(obs: Obs, names: Collection[str] | None, bare: bool = True) -> Obs:
    """The entries `names` of `obs` that are there; if `bare`, a single one by itself unless it is a dict. None picks
    everything."""
    if names is None or not isinstance(obs, Mapping):
        return obs
    picked = {name: value for name, value in obs.items() if name in names}
    alone = bare and len(names) == 1 and not any(isinstance(value, Mapping) for value in picked.values())
    return next(iter(picked.values())) if alone else picked


def pick_space(space: Space, names: Collection[str] | None, bare: bool = True) -> Space:
    """The space of what `pick` gives."""
    if names is None or not isinstance(space, spaces.Dict):
        return space
    picked = {name: inner for name, inner in space.spaces.items() if name in names}
    alone = bare and len(picked) == 1 and not any(isinstance(inner, spaces.Dict) for inner in picked.values())
    return next(iter(picked.values())) if alone else spaces.Dict(picked)


class PolicyView:
    """Observations in the shapes that SB3's policies take: images with their channels first, nested dicts flat with
    names such as "hand/force"; of `names` alone, if given. Types stay, no number changes, and where nothing is to be
    done nothing is."""

    _names: Collection[str] | None = None

    def __init__(self, space: Space, names: Collection[str] | None = None) -> None:
        self._names = names
        picked = pick_space(space, names)
        self.space = _flat(picked) if isinstance(picked, spaces.Dict) else _channels_first(picked)
        self._same = self.space == space

    def __call__(self, obs: Obs) -> Obs:
        """`obs` (n, ...) of the env's space as one of `space`."""
        if self._same:
            return obs
        obs = pick(obs, self._names)
        flat = dict(entries(obs)) if isinstance(obs, Mapping) else {"": obs}
        wanted = self.space.spaces if isinstance(self.space, spaces.Dict) else {"": self.space}
        seen: dict[str, Any] = {name: _move(value, wanted[name].shape or ()) for name, value in flat.items()}
        return seen if isinstance(obs, Mapping) else seen[""]


    def frames(self, frames: Mapping[str, int]) -> Mapping[str, int]:
        """An env's `frames` under the names that entries have here."""
        if self._names is None or isinstance(self.space, spaces.Dict):
            return frames
        (name,) = self._names
        return {"": frames[name]} if name in frames else {}


def is_image(space: Space) -> bool:
    """Whether `space` is of pictures, uint8 of three dimensions, or of stacks of them, four."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)


def newest_image(pictures: torch.Tensor) -> np.ndarray:
    """RGB, uint8 (H, W, 3), of the pictures that a policy sees of one world, (C, H, W), or the last of (T, C, H, W)."""
    picture = pictures[-1] if pictures.ndim == 4 else pictures
    colours = picture.movedim(0, -1)[..., -3:] if len(picture) >= 3 else picture[-1:].movedim(0, -1)
    return np.broadcast_to(colours.cpu().numpy(), (*colours.shape[:2], 3))


def _move(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Channels before height and width, if that is what is missing to `shape`."""
    last = value.ndim - 1  # torch's ONNX exporter writes a negative axis down as it is
    return value if tuple(value.shape[1:]) == shape else value.movedim(last, last - 2)


def _flat(space: spaces.Dict) -> spaces.Dict:
    return spaces.Dict({name: _channels_first(inner) for name, inner in entries(space)})


def _channels_first(space: Space) -> Space:
    if not isinstance(space, spaces.Box) or not is_image(space):
        return space
    if len(space.shape) == 4:
        moved = space.shape[-1] in COLOURS and space.shape[1] not in COLOURS
    else:
        moved = is_image_space(space) and not is_image_space_channels_first(space)
    low, high = (np.moveaxis(bound, -1, -3) if moved else bound for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.uint8)
