"""Observations: a batched tensor, or a nested dict of such tensors, of any rank and dtype."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

Obs: TypeAlias = "torch.Tensor | dict[str, Obs]"
"""A tensor (n, ...); for a Dict space, a dict of such observations."""

POLICY, CRITIC, TEACHER = "policy", "critic", "teacher"
"""Names of observation groups (`kit.envs.groups`)."""
Groups: TypeAlias = Mapping[str, tuple[str, ...]]
"""Group -> its entries: top-level keys of a Dict observation."""

COLOURS = (1, 3, 4)
"""Numbers of channels that images may have: 1 (grey), 3 (RGB) or 4 (such as RGBA)."""


def tree_map(function: Callable[..., Any], *obs: Any) -> Any:
    """Apply `function` to tensors, or to each entry of nested dicts with the same keys."""
    if isinstance(obs[0], Mapping):
        return {key: tree_map(function, *(o[key] for o in obs)) for key in obs[0]}
    return function(*obs)


def select(mask: torch.Tensor, new: Obs, old: Obs) -> Obs:
    """Take rows from `new` where `mask` (n,) bool is true and from `old` elsewhere, for entries of any rank."""
    return tree_map(lambda a, b: torch.where(mask.view(-1, *[1] * (b.ndim - 1)), a, b), new, old)


def leaves(name: str, obs: Any) -> Iterator[tuple[str, Any]]:
    """Flatten `obs` into (name, tensor) pairs: "name", or "name.key" and "name.key.inner" for nested dicts."""
    if not isinstance(obs, Mapping):
        yield name, obs
        return
    for key, value in obs.items():
        yield from leaves(f"{name}.{key}", value)


def from_leaves(name: str, columns: Mapping[str, Any]) -> Any:
    """Undo `leaves(name, obs)`: return `obs` from `columns`, name -> tensor. `columns` may hold other names too."""
    if name in columns:
        return columns[name]
    keys = [key[len(name) + 1 :].partition(".")[0] for key in columns if key.startswith(f"{name}.")]
    return {key: from_leaves(f"{name}.{key}", columns) for key in dict.fromkeys(keys)}


def prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` under the names "prefix.name", as a part of a snapshot."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def with_prefix(prefix: str, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `prefixed`: return the entries of `snapshot` named "prefix.name", as "name"."""
    return {name[len(prefix) + 1 :]: value for name, value in snapshot.items() if name.startswith(f"{prefix}.")}


def entries(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten a nested dict or Dict space into (name, value) pairs with names such as "hand/force"."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from entries(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def pick(obs: Obs, names: Collection[str] | None, bare: bool = True) -> Obs:
    """Return a dict of the entries `names` of `obs`. If `bare`, return a single entry without the dict.

    `names=None` returns `obs`.
    """
    if names is None or not isinstance(obs, Mapping):
        return obs
    picked = {name: value for name, value in obs.items() if name in names}
    single = bare and len(names) == 1 and not any(isinstance(value, Mapping) for value in picked.values())
    return next(iter(picked.values())) if single else picked


def pick_space(space: Space, names: Collection[str] | None, bare: bool = True) -> Space:
    """Return the space of the observations that `pick` returns."""
    if names is None or not isinstance(space, spaces.Dict):
        return space
    picked: Any = pick(space.spaces, names, bare)  # type: ignore[arg-type]
    return picked if isinstance(picked, Space) else spaces.Dict(picked)


class PolicyView:
    """Convert observations to the layout of SB3's policies: images channels first, nested dicts flattened.

    Flattened names look like "hand/force". `names` are the entries to keep; None keeps all. Dtypes and values do not
    change. An observation that already has this layout is returned unchanged.
    """

    _names: Collection[str] | None = None

    def __init__(self, space: Space, names: Collection[str] | None = None) -> None:
        self._names = names
        picked = pick_space(space, names)
        self.space = _flat(picked) if isinstance(picked, spaces.Dict) else _channels_first(picked)
        self._same = self.space == space

    def __call__(self, obs: Obs) -> Obs:
        """Convert `obs` (n, ...) of the env's space to `self.space`."""
        if self._same:
            return obs
        obs = pick(obs, self._names)
        flat = dict(entries(obs)) if isinstance(obs, Mapping) else {"": obs}
        inner = self.space.spaces if isinstance(self.space, spaces.Dict) else {"": self.space}
        converted: dict[str, Any] = {name: _move(value, inner[name].shape or ()) for name, value in flat.items()}
        return converted if isinstance(obs, Mapping) else converted[""]

    def frames(self, frames: Mapping[str, int]) -> Mapping[str, int]:
        """Return an env's `frames` (entry -> stack depth) with the entry names of the converted observation."""
        if self._names is None or isinstance(self.space, spaces.Dict):
            return frames
        (name,) = self._names
        return {"": frames[name]} if name in frames else {}


def is_image(space: Space) -> bool:
    """Return whether `space` holds images: a uint8 Box with three dimensions, or four for frame stacks."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)


def newest_image(images: torch.Tensor) -> np.ndarray:
    """Return the newest image of one env for display, uint8 (H, W, 3).

    `images` is (C, H, W) or a stack (T, C, H, W). The last three channels are shown as RGB. If there are fewer
    than three, the last one is shown in grey.
    """
    image = images[-1] if images.ndim == 4 else images
    colours = image.movedim(0, -1)[..., -3:] if len(image) >= 3 else image[-1:].movedim(0, -1)
    return np.broadcast_to(colours.cpu().numpy(), (*colours.shape[:2], 3))


def _move(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Move channels before height and width, unless `value` (n, ...) already has `shape`, which excludes n."""
    last = value.ndim - 1  # positive: torch's ONNX exporter writes a negative axis into the graph, where it is invalid
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


def maybe_any(mask: torch.Tensor) -> bool:
    """Return whether `mask` may contain a True: exactly `mask.any()` on the CPU, always True on a GPU.

    On a GPU, `any` waits for the device, which costs more than the caller's work for a mask without True.
    """
    return mask.device.type != "cpu" or bool(mask.any())
