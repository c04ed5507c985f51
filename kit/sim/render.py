"""Pictures of many worlds at once, ray-traced by MuJoCo Warp on CPU or CUDA. No OpenGL, EGL or OSMesa.

The renderer needs poses only, so worlds simulated anywhere can be drawn: `Renderer.render` takes the geom, camera and
light poses of all worlds as tensors; `render_data` takes an `MjData`, for environments that are not ours.
CPU and CUDA are to agree within two of 255 levels, but for one pixel in a hundred (tests/sim/test_cuda.py).
What it does not draw: sites (use a geom without contacts), tendons, reflections; translucent geoms are drawn solid,
and only alpha 0 hides one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import mujoco
import numpy as np
import torch

from kit.errors import UserError
from kit.machine.limits import usable_cores
from kit.sim.helpers import Helpers
from kit.sim.kernels import beside_torch, compiling, numbered, wp
from kit.sim.layer import POSES, Layer
from kit.sim.sight import Sight

BACKGROUND_RGBA = (0.80, 0.86, 0.92, 1.0)
"""Where a ray hits nothing and the model has no skybox: a light sky."""
WORLDS_TOGETHER = 16
"""In one launch on the CPU: rays go wherever something may be in any of them, and a launch has its own cost."""

Poses = torch.Tensor | np.ndarray
Camera: TypeAlias = str | int | mujoco.MjvCamera
"""A camera of the model, by name or number, or the viewer's own kind, which is not in the model."""


class Renderer:
    """Draws `n` worlds of `model` through `cameras` (names or numbers of the model's cameras, or `FreeCamera`s).

    One ray a pixel: four would smooth the edges and take three times as long. `shadows` make depth readable, at up to
    twice the work. Without them, what stands still for ever before cameras that stand still is drawn once, and later
    only what moves in front of it, on the CPU only where it may be: of an arm at a table many times as many pictures a
    second, and the same ones. Building one takes a moment and holds the meshes' search trees, so keep it; `render` may
    be called from one thread at a time, and shares the work with `threads` on the CPU (by default one per usable core).
    """

    def __init__(self, model: mujoco.MjModel, n: int, cameras: Sequence[Camera], height: int, width: int,
                 device: torch.device | str = "cpu", *, shadows: bool = False,
                 threads: int | None = None) -> None:  # fmt: skip
        self.model, self.n, self.device = model, n, numbered(device)
        self.cameras, self.height, self.width = tuple(cameras), height, width
        for name, value in {"n": n, "height": height, "width": width}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"A picture's {name} is {value}; it has to be a whole number of at least 1.")
        self._shadows = shadows
        self._columns, self._fovy = self._find_cameras()
        self._still = None if shadows else still(model, self._columns)
        self._directions = torch.as_tensor(self._rays()).flatten(1, 2).to(self.device)
        self._sight: Sight | None = None
        if self._still is not None and self.device.type == "cpu":
            sight = Sight(model, ~self._still, self._columns, self._fovy, height, width)
            self._sight = sight if sight.bounded else None
        self._layers: dict[str, list[Layer]] = {}
        self._backdrop: tuple[torch.Tensor, torch.Tensor] | None = None
        self._threads = min(threads or usable_cores(), n) if self.device.type == "cpu" else 1
        self._helpers = Helpers(self._threads - 1)

    def render(self, poses: Mapping[str, Poses]) -> torch.Tensor:
        """RGB pictures, uint8 (k, cameras, height, width, 3), on the renderer's device.

        `poses` holds the fields `POSES` of MjData with a leading axis of k worlds, n at most: positions (k, count, 3),
        rotations (k, count, 3, 3) or (k, count, 9); those of viewer's cameras stand after those of the model's. It
        may hold "geom_rgba" (k, ngeom, 4), each world's own colours. float32 tensors on the device are read in place.
        """
        k = len(poses["cam_xpos"])
        if k > self.n:
            raise ValueError(f"poses of {k} worlds for a renderer of {self.n}")
        own = poses.get("geom_rgba")
        with beside_torch(self.device):
            seen = {name: self._warp(poses[name], dtype) for name, dtype in POSES.items()}
            if own is not None:
                seen["geom_rgba"] = self._warp(own, wp.vec4)
            if self._still is None or not self._same(own):
                blocks = [_rows(seen, *edge) for edge in self._blocks(k)]
                pixels = torch.cat([colours for colours, _ in self._draw("all", blocks)])
            else:
                pixels = self._before_backdrop(seen, poses)
        bgra = pixels.view(torch.uint8).view(k, len(self.cameras), self.height, self.width, 4)
        return bgra[..., :3].flip(-1)  # 0xAARRGGBB lies in memory as B, G, R, A

    def _same(self, geom_rgba: Poses | None) -> bool:
        """Whether what stands still has the model's colours in every world."""
        if geom_rgba is None or self._still is None:
            return True
        own, drawn = torch.as_tensor(geom_rgba).float(), torch.from_numpy(self.model.geom_rgba).to(self.device)
        shown = torch.from_numpy(self._still).to(self.device)
        return bool((own[:, shown] == drawn[shown]).all())

    def _before_backdrop(self, seen: dict[str, Any], poses: Mapping[str, Poses]) -> torch.Tensor:
        """What moves, where it is nearer than what stands still."""
        if self._backdrop is None:
            (self._backdrop,) = self._draw("still", [_rows(seen, 0, 1)])
            self._layers.pop("still")
        colours, depths = self._backdrop
        edges = self._blocks(seen["cam_xpos"].shape[0], WORLDS_TOGETHER if self._sight else self.n)
        shown = [self._shown(poses, *edge) for edge in edges]
        drawn = self._draw("moving", [_rows(seen, *edge) for edge in edges], shown)
        pictures = colours.repeat(edges[-1][1], 1)
        for (start, stop), where, (nearest, near) in zip(edges, shown, drawn, strict=True):
            area: Any = slice(None)
            if where is not None:  # its pixels among those of all views
                area = torch.cat([view * self.height * self.width + pixels for view, pixels in enumerate(where)])
            behind = depths[:, area]
            in_front = (near > 0) & ((near < behind) | (behind == 0))
            pictures[start:stop, area] = torch.where(in_front, nearest, colours[:, area])
        return pictures

    def _blocks(self, k: int, at_most: int | None = None) -> list[tuple[int, int]]:
        """First and last of as many worlds as one launch draws, of `k`."""
        count = max(min(k, self._threads), -(-k // (at_most or self.n)))
        return list(pairwise(k * i // count for i in range(count + 1)))

    def _shown(self, poses: Mapping[str, Poses], start: int, stop: int) -> list[torch.Tensor] | None:
        """The pixels of each view that may show something that moves in those worlds; None for all."""
        if self._sight is None:
            return None
        geoms, cameras, turned = (torch.as_tensor(poses[name]) for name in ("geom_xpos", "cam_xpos", "cam_xmat"))
        one = cameras[0].float(), turned[0].reshape(-1, 3, 3).float()
        return self._sight.rays(geoms[start:stop].float(), *one)

    def _draw(
        self, what: str, blocks: list[dict[str, Any]], shown: Sequence[list[torch.Tensor] | None] | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each of the `blocks` of worlds what its layer draws of "all", or of what is "still" or "moving"."""
        layers = self._layers.setdefault(what, [])
        while len(layers) < len(blocks):  # each builds its kernel with its first picture. In several threads at once,
            with compiling("the renderer"):  # Python 3.11's parser fails ("AST constructor recursion depth mismatch")
                layers.append(self._layer(what))
                layers[-1].draw(_rows(blocks[0], 0, 1))
        wanted = shown or [None] * len(blocks)
        drawn: list[Any] = [None] * len(blocks)
        threads = min(self._threads, len(blocks))

        def draw(first: int) -> None:
            for i in range(first, len(blocks), threads):
                drawn[i] = layers[i].draw(blocks[i], wanted[i])

        mine, *others = [partial(draw, first) for first in range(threads)]
        self._helpers.run(mine, *others)
        return drawn

    def _layer(self, what: str) -> Layer:
        shown = np.ones(self.model.ngeom, dtype=bool)
        if what != "all" and self._still is not None:
            shown = self._still if what == "still" else ~self._still
        n = 1 if what == "still" else -(-self.n // self._threads)
        return Layer(
            self.model, shown, n, self._columns, self._directions,
            depth=what != "all", use_shadows=self._shadows, render_skybox=what != "moving",
            background_color=BACKGROUND_RGBA,
        )  # fmt: skip

    def _warp(self, values: Poses, dtype: Any) -> Any:
        tensor = torch.as_tensor(values).to(self.device, torch.float32).contiguous()
        if tensor.numel() == 0:  # a model without lights
            return wp.zeros((len(tensor), 0), dtype=dtype)
        return wp.from_torch(tensor.view(len(tensor), -1, *dtype._shape_), dtype=dtype)

    def _find_cameras(self) -> tuple[list[int], list[float]]:
        """For every view its column in `cam_xpos` and its vertical field of view in degrees."""
        names = [self.model.camera(i).name for i in range(self.model.ncam)]
        fovy, columns = self.model.cam_fovy.tolist(), []
        for camera in self.cameras:
            number = names.index(camera) if camera in names else camera
            if isinstance(camera, mujoco.MjvCamera):
                number = len(fovy)
                fovy.append(float(self.model.vis.global_.fovy))
            elif not isinstance(number, int) or not 0 <= number < len(names):
                raise UserError(f"The model has no camera {camera!r}; its cameras: {', '.join(names) or 'none'}.")
            columns.append(number)
        return columns, [fovy[column] for column in columns]

    def _rays(self) -> np.ndarray:
        """Unit directions in the camera frame, float32 (views, height, width, 3); z points backward."""
        height, width = self.height, self.width
        right = np.arange(width) + 0.5 - width / 2
        up = (height / 2 - np.arange(height) - 0.5)[:, None]
        rays = np.empty((len(self.cameras), height, width, 3), np.float32)
        for view, fovy in enumerate(self._fovy):
            pixel = math.tan(math.radians(fovy) / 2) / (height / 2)  # its size at a distance of 1
            rays[view, ..., 0], rays[view, ..., 1], rays[view, ..., 2] = right * pixel, up * pixel, -1.0
        return rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def _rows(seen: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Those of the worlds from `start` to `stop`."""
    return {name: values[start:stop] if values.size else values for name, values in seen.items()}


def still(model: mujoco.MjModel, columns: Sequence[int]) -> np.ndarray | None:
    """The geoms (ngeom,) bool that never move; None if there is none, or if the light or one of the cameras
    `columns` does."""
    if max(columns) >= model.ncam:  # a viewer's camera
        return None
    fixed = (model.body_weldid == 0) & (model.body_mocapid < 0)
    views, steady = list(columns), mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    bodies = [*model.cam_bodyid[views], *model.light_bodyid]
    modes = [*model.cam_mode[views], *model.light_mode]
    if not fixed[bodies].all() or any(mode != steady for mode in modes):
        return None
    geoms = fixed[model.geom_bodyid]
    return geoms if geoms.any() else None


def default_camera(model: mujoco.MjModel) -> Camera:
    """The model's first tracking camera; else the viewer's, following the first body that moves freely."""
    tracking = (mujoco.mjtCamLight.mjCAMLIGHT_TRACK, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
    for number in range(model.ncam):
        if model.cam_mode[number] in tracking:
            return number
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    if len(free):
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, model.jnt_bodyid[free[0]]
    return camera


def pose_of(camera: mujoco.MjvCamera, model: mujoco.MjModel, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
    """Where the viewer's `camera` is: position (3,) and rotation (9,) in the world, columns right, up, back."""
    scene = mujoco.MjvScene()
    mujoco.mjv_updateCamera(model, data, camera, scene)
    left, right = scene.camera  # a person's two eyes
    across = np.cross(left.forward, left.up)
    return (left.pos + right.pos) / 2, np.stack([across, left.up, -left.forward], axis=1).ravel()


@functools.lru_cache(maxsize=4)
def _renderer(model: mujoco.MjModel, height: int, width: int) -> tuple[Camera, Renderer]:
    camera = default_camera(model)
    return camera, Renderer(model, 1, (camera,), height, width, shadows=True)


def render_data(model: mujoco.MjModel, data: mujoco.MjData, height: int, width: int) -> torch.Tensor:
    """A picture with shadows of `data` as it stands, uint8 (height, width, 3), on the CPU, by the
    `default_camera`. For environments simulated elsewhere. The last few renderers are kept."""
    camera, renderer = _renderer(model, height, width)
    poses = {name: getattr(data, name) for name in POSES}
    if isinstance(camera, mujoco.MjvCamera):
        position, rotation = pose_of(camera, model, data)
        poses["cam_xpos"] = np.vstack([data.cam_xpos, position])
        poses["cam_xmat"] = np.vstack([data.cam_xmat, rotation])
    return renderer.render({name: values[None] for name, values in poses.items()})[0, 0]
