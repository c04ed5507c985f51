"""Batched image rendering by MuJoCo Warp's ray tracer, on CPU or CUDA. No OpenGL, EGL or OSMesa.

The renderer needs only poses, so it can render worlds of any simulator; `render_data` takes an `MjData`.
Not rendered: sites (use a geom without contacts), tendons, reflections. Translucent geoms are opaque; only alpha 0
hides a geom.
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

from kit.errors import UserError, check_whole
from kit.machine.limits import usable_cores
from kit.sim.culling import PixelCulling
from kit.sim.helpers import Helpers
from kit.sim.kernels import beside_torch, compiling, numbered, wp
from kit.sim.layer import POSES, Layer

BACKGROUND_RGBA = (0.80, 0.86, 0.92, 1.0)
"""Background colour of models without a skybox: a light sky."""
WORLDS_PER_LAUNCH = 16
"""Worlds per launch on the CPU. All worlds of a launch render the same pixels, so with more worlds,
pixel culling (`PixelCulling`) can skip fewer pixels."""

Poses = torch.Tensor | np.ndarray
Camera: TypeAlias = str | int | mujoco.MjvCamera
"""A camera of the model, by name or number, or a free camera as in MuJoCo's viewer."""


class Renderer:
    """Renders up to `n` worlds of `model` from `cameras`, uint8 images of `height` x `width` pixels.

    There is one ray per pixel: four would antialias the edges, but take three times as long. With `shadows`,
    rendering takes up to twice the time.
    Without shadows and with fixed cameras, static geoms are rendered once and cached; moving geoms are added to them
    by depth. On the CPU, rays are cast only for pixels in which a moving geom can appear. This gives the same images
    many times faster.

    Reuse a renderer, because making one takes a moment. Call `render` from one thread at a time; on the CPU it uses
    `threads` threads (by default one per usable core).
    """

    def __init__(self, model: mujoco.MjModel, n: int, cameras: Sequence[Camera], height: int, width: int,
                 device: torch.device | str = "cpu", *, shadows: bool = False,
                 threads: int | None = None, recoloured: Sequence[int] | None = None,
                 fixed: bool = True) -> None:  # fmt: skip
        """`recoloured`: ids of the geoms to which "geom_rgba" of `render` may give other colours than the model's.

        Without it, images with "geom_rgba" are rendered without the cache, because any geom may look different.
        `fixed`: whether the poses in `render` leave the model's fixed cameras and geoms in place; if not, nothing is
        cached.
        """
        self.model, self.n, self.device = model, n, numbered(device)
        self.cameras, self.height, self.width = tuple(cameras), height, width
        for name, value in {"n": n, "height": height, "width": width}.items():
            check_whole(f"image {name}", value, 1)
        self._shadows = shadows
        self._columns, self._fovy = self._find_cameras()
        self._recoloured = recoloured
        self._static = static_geoms(model, self._columns, recoloured or ()) if fixed and not shadows else None
        self._directions = torch.as_tensor(self._rays()).flatten(1, 2).to(self.device)
        self._culling: PixelCulling | None = None
        if self._static is not None and self.device.type == "cpu":
            culling = PixelCulling(model, ~self._static, self._columns, self._fovy, height, width)
            self._culling = culling if culling.bounded else None
        self._layers: dict[str, list[Layer]] = {}
        self._background: tuple[torch.Tensor, torch.Tensor] | None = None
        self._threads = min(threads or usable_cores(), n) if self.device.type == "cpu" else 1
        self._helpers = Helpers(self._threads - 1)

    def render(self, poses: Mapping[str, Poses]) -> torch.Tensor:
        """Render RGB images, uint8 (k, cameras, height, width, 3), on the renderer's device.

        `poses` has the fields `POSES` of MjData for k <= n worlds: positions (k, count, 3), rotations (k, count, 3, 3)
        or (k, count, 9). Poses of free cameras come after those of the model's cameras. `poses` may also have
        "geom_rgba" (k, ngeom, 4), each world's own colours, which may differ from the model's in the geoms `recoloured`
        only. float32 tensors on the device are not copied.
        """
        k = len(poses["cam_xpos"])
        if k > self.n:
            raise ValueError(f"poses of {k} worlds for a renderer of {self.n}")
        rgba = poses.get("geom_rgba")
        with beside_torch(self.device):
            arrays = {name: self._warp(poses[name], dtype) for name, dtype in POSES.items()}
            if rgba is not None:
                arrays["geom_rgba"] = self._warp(rgba, wp.vec4)
            if self._static is None or (rgba is not None and self._recoloured is None):
                blocks = [_rows(arrays, *edge) for edge in self._blocks(k)]
                pixels = torch.cat([colours for colours, _ in self._draw("all", blocks)])
            else:
                pixels = self._over_background(arrays, poses)
        bgra = pixels.view(torch.uint8).view(k, len(self.cameras), self.height, self.width, 4)
        return bgra[..., :3].flip(-1)  # 0xAARRGGBB lies in memory as B, G, R, A

    def _over_background(self, arrays: dict[str, Any], poses: Mapping[str, Poses]) -> torch.Tensor:
        """Render moving geoms, and combine them by depth with the cached background of static geoms."""
        if self._background is None:
            (self._background,) = self._draw("static", [_rows(arrays, 0, 1)])
            self._layers.pop("static")
        colours, depths = self._background
        edges = self._blocks(arrays["cam_xpos"].shape[0], WORLDS_PER_LAUNCH if self._culling else self.n)
        pixels = [self._visible_pixels(poses, *edge) for edge in edges]
        moving = self._draw("moving", [_rows(arrays, *edge) for edge in edges], pixels)
        images = colours.repeat(edges[-1][1], 1)
        for (start, stop), by_view, (colour, depth) in zip(edges, pixels, moving, strict=True):
            area: Any = slice(None)
            if by_view is not None:  # indices among the pixels of all views
                area = torch.cat([view * self.height * self.width + indices for view, indices in enumerate(by_view)])
            behind = depths[:, area]
            in_front = (depth > 0) & ((depth < behind) | (behind == 0))
            images[start:stop, area] = torch.where(in_front, colour, colours[:, area])
        return images

    def _blocks(self, k: int, at_most: int | None = None) -> list[tuple[int, int]]:
        """Split `k` worlds into launches of at most `at_most`, one or more per thread; return each (start, stop)."""
        count = max(min(k, self._threads), -(-k // (at_most or self.n)))
        return list(pairwise(k * i // count for i in range(count + 1)))

    def _visible_pixels(self, poses: Mapping[str, Poses], start: int, stop: int) -> list[torch.Tensor] | None:
        """Return per view the pixels that can show moving geoms in worlds `start` to `stop` - 1; None: all pixels."""
        if self._culling is None:
            return None
        geoms, cameras, rotations = (torch.as_tensor(poses[name]) for name in ("geom_xpos", "cam_xpos", "cam_xmat"))
        camera_poses = cameras[0].float(), rotations[0].reshape(-1, 3, 3).float()
        return self._culling.rays(geoms[start:stop].float(), *camera_poses)

    def _draw(
        self, kind: str, blocks: list[dict[str, Any]], pixels: Sequence[list[torch.Tensor] | None] | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Render "all", "static" or "moving" geoms, one launch per block; return each block's colours and depths."""
        layers = self._layers.setdefault(kind, [])
        # A layer compiles its kernel with its first image. That image is rendered here, in one thread, because Python
        # 3.11's parser fails if several threads compile ("AST constructor recursion depth mismatch").
        while len(layers) < len(blocks):
            with compiling("the renderer"):
                layers.append(self._make_layer(kind))
                layers[-1].draw(_rows(blocks[0], 0, 1))
        by_block = pixels or [None] * len(blocks)
        results: list[Any] = [None] * len(blocks)
        threads = min(self._threads, len(blocks))

        def draw(first: int) -> None:
            for i in range(first, len(blocks), threads):
                results[i] = layers[i].draw(blocks[i], by_block[i])

        mine, *others = [partial(draw, first) for first in range(threads)]
        self._helpers.run(mine, *others)
        return results

    def _make_layer(self, kind: str) -> Layer:
        shown = np.ones(self.model.ngeom, dtype=bool)
        if kind != "all" and self._static is not None:
            shown = self._static if kind == "static" else ~self._static
        n = 1 if kind == "static" else -(-self.n // self._threads)
        return Layer(
            self.model, shown, n, self._columns, self._directions,
            depth=kind != "all", use_shadows=self._shadows, render_skybox=kind != "moving",
            background_color=BACKGROUND_RGBA,
        )  # fmt: skip

    def _warp(self, values: Poses, dtype: Any) -> Any:
        tensor = torch.as_tensor(values).to(self.device, torch.float32).contiguous()
        if tensor.numel() == 0:  # a model without lights
            return wp.zeros((len(tensor), 0), dtype=dtype, device=wp.device_from_torch(self.device))
        return wp.from_torch(tensor.view(len(tensor), -1, *dtype._shape_), dtype=dtype)

    def _find_cameras(self) -> tuple[list[int], list[float]]:
        """Return each view's index in `cam_xpos`, and its vertical field of view in degrees."""
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
        """Return the pixels' directions, unit vectors in the camera frame (z backward), float32 (views, h, w, 3)."""
        height, width = self.height, self.width
        right = np.arange(width) + 0.5 - width / 2
        up = (height / 2 - np.arange(height) - 0.5)[:, None]
        rays = np.empty((len(self.cameras), height, width, 3), np.float32)
        for view, fovy in enumerate(self._fovy):
            pixel = math.tan(math.radians(fovy) / 2) / (height / 2)  # a pixel's size at a distance of 1
            rays[view, ..., 0], rays[view, ..., 1], rays[view, ..., 2] = right * pixel, up * pixel, -1.0
        return rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def _rows(arrays: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: values[start:stop] if values.size else values for name, values in arrays.items()}


def static_geoms(
    model: mujoco.MjModel, columns: Sequence[int], recoloured: Sequence[int] = ()
) -> np.ndarray | None:
    """Return (ngeom,) bool: True if the geom never moves and is not one of `recoloured`.

    Return None if every geom moves, or if a light or one of the cameras with numbers `columns` moves.
    """
    if max(columns) >= model.ncam:  # a free camera
        return None
    fixed = (model.body_weldid == 0) & (model.body_mocapid < 0)
    views, fixed_mode = list(columns), mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    bodies = [*model.cam_bodyid[views], *model.light_bodyid]
    modes = [*model.cam_mode[views], *model.light_mode]
    if not fixed[bodies].all() or any(mode != fixed_mode for mode in modes):
        return None
    geoms = fixed[model.geom_bodyid]
    geoms[list(recoloured)] = False
    return geoms if geoms.any() else None


def default_camera(model: mujoco.MjModel) -> Camera:
    """Return the model's first tracking camera; else a free camera that tracks the first body with a free joint."""
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
    """Return a free camera's position (3,) and rotation (9,) in the world frame, columns right, up, back."""
    scene = mujoco.MjvScene()
    mujoco.mjv_updateCamera(model, data, camera, scene)
    left, right = scene.camera  # of a stereo pair
    rightward = np.cross(left.forward, left.up)
    return (left.pos + right.pos) / 2, np.stack([rightward, left.up, -left.forward], axis=1).ravel()


@functools.lru_cache(maxsize=4)
def _renderer(model: mujoco.MjModel, height: int, width: int) -> tuple[Camera, Renderer]:
    camera = default_camera(model)
    return camera, Renderer(model, 1, (camera,), height, width, shadows=True)


def render_data(model: mujoco.MjModel, data: mujoco.MjData, height: int, width: int) -> torch.Tensor:
    """Render `data` from the `default_camera` with shadows, uint8 (h, w, 3), for envs that step MuJoCo themselves."""
    camera, renderer = _renderer(model, height, width)
    poses = {name: getattr(data, name) for name in POSES}
    if isinstance(camera, mujoco.MjvCamera):
        position, rotation = pose_of(camera, model, data)
        poses["cam_xpos"] = np.vstack([data.cam_xpos, position])
        poses["cam_xmat"] = np.vstack([data.cam_xmat, rotation])
    return renderer.render({name: values[None] for name, values in poses.items()})[0, 0]
