"""Pictures of many worlds at once, ray-traced by MuJoCo Warp on CPU or CUDA. No OpenGL, EGL or OSMesa.

The renderer needs poses only, so worlds simulated anywhere can be drawn: `Renderer.render` takes the geom, camera and
light poses of all worlds as tensors; `render_data` takes `MjData` objects, for environments that are not ours.
What it does not draw: sites (use a geom without contacts), tendons, reflections; translucent geoms are drawn solid,
and only alpha 0 hides one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch

from kit.errors import UserError
from kit.sim.kernels import beside_torch, compiling, mjw, numbered, wp

Poses = torch.Tensor | np.ndarray

BACKGROUND_RGBA = (0.80, 0.86, 0.92, 1.0)
"""Where a ray hits nothing and the model has no skybox: a light sky."""
_VISIBLE_GROUPS = [0, 1, 2]  # MuJoCo's own default; collision geoms usually live in group 3


@dataclass(frozen=True)
class FreeCamera:
    """A camera that is not in the model, in the viewer's terms: degrees, metres, world frame, z up.

    `azimuth` 0 looks along +x, 90 along +y; `elevation` -90 looks straight down. `body` makes `lookat` an offset from
    the centre of mass of that body's subtree, so that the camera follows it (`render_data` only).
    """

    lookat: tuple[float, float, float] = (0.0, 0.0, 0.0)
    distance: float = 3.0
    azimuth: float = 135.0
    elevation: float = -20.0
    fovy: float = 45.0
    body: int | None = None

    def pose(self, target: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and rotation (3, 3) in the world, columns right, up, back; `target` is added to `lookat`."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        level = np.array([math.cos(azimuth), math.sin(azimuth), 0.0])
        forward = math.cos(elevation) * level + math.sin(elevation) * np.array([0.0, 0.0, 1.0])
        lookat = np.asarray(self.lookat) + (0.0 if target is None else target)
        return lookat - self.distance * forward, np.stack([right, np.cross(right, forward), -forward], axis=1)


Camera = str | int | FreeCamera


class Renderer:
    """Draws `n` worlds of `model` through `cameras` (names or numbers of the model's cameras, or `FreeCamera`s).

    `samples` rays per pixel and axis: 1 for networks' eyes, 2 for people's (4 times the work, smooth edges).
    `shadows` make depth readable at about twice the work. Building one takes a moment and holds the meshes' search
    trees, so keep it; `render` may be called from one thread at a time.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        n: int,
        cameras: Sequence[Camera],
        height: int,
        width: int,
        device: torch.device | str = "cpu",
        *,
        shadows: bool = False,
        samples: int = 1,
    ) -> None:
        self.model, self.n, self.device = model, n, numbered(device)
        self.cameras, self.height, self.width = tuple(cameras), height, width
        for name, value in {"n": n, "height": height, "width": width, "samples": samples}.items():
            if value < 1:
                raise UserError(f"A picture's {name} is {value}; it has to be at least 1.")
        self._drawn = False
        self._columns, self._fovy = self._find_cameras()
        with beside_torch(self.device), compiling("the renderer"):
            self._model = mjw.put_model(model)
            self._geom_rgba = self._model.geom_rgba  # the model's own
            self._context = self._make_context(shadows, samples)
            self._still = wp.zeros((n, model.nflexvert), dtype=wp.vec3)

    def render(
        self,
        geom_xpos: Poses,
        geom_xmat: Poses,
        cam_xpos: Poses,
        cam_xmat: Poses,
        light_xpos: Poses,
        light_xdir: Poses,
        geom_rgba: Poses | None = None,
    ) -> torch.Tensor:
        """RGB pictures, uint8 (n, cameras, height, width, 3), on the renderer's device.

        Poses have MjData's meaning with a leading axis of n worlds: positions (n, count, 3), rotations (n, count, 3, 3)
        or (n, count, 9). The poses of free cameras stand after those of the model's cameras. `geom_rgba`
        (n, ngeom, 4) gives each world its own colours. float32 tensors on the device are read in place.
        """
        with beside_torch(self.device), nullcontext() if self._drawn else compiling("the renderer"):
            scene = SimpleNamespace(  # the part of a mujoco_warp Data that its renderer reads
                nworld=self.n,
                geom_xpos=self._warp(geom_xpos, wp.vec3, (3,)),
                geom_xmat=self._warp(geom_xmat, wp.mat33, (3, 3)),
                cam_xpos=self._warp(cam_xpos, wp.vec3, (3,)),
                cam_xmat=self._warp(cam_xmat, wp.mat33, (3, 3)),
                light_xpos=self._warp(light_xpos, wp.vec3, (3,)),
                light_xdir=self._warp(light_xdir, wp.vec3, (3,)),
                flexvert_xpos=self._still,
            )
            self._model.geom_rgba = self._geom_rgba if geom_rgba is None else self._warp(geom_rgba, wp.vec4, (4,))
            mjw.refit_bvh(self._model, scene, self._context)
            mjw.render(self._model, scene, self._context)
        self._drawn = True
        bgra = self._pixels.view(torch.uint8).view(self.n, len(self.cameras), self.height, self.width, 4)
        return bgra[..., :3].flip(-1)  # 0xAARRGGBB lies in memory as B, G, R, A

    def _warp(self, poses: Poses, dtype: type, shape: tuple[int, ...]) -> Any:
        tensor = torch.as_tensor(poses).to(self.device, torch.float32).contiguous()
        if tensor.numel() == 0:  # a model without lights
            return wp.zeros((self.n, 0), dtype=dtype)
        return wp.from_torch(tensor.view(self.n, -1, *shape), dtype=dtype)

    def _find_cameras(self) -> tuple[list[int], list[float]]:
        """For every view its column in `cam_xpos` and its vertical field of view in degrees."""
        columns, fovy, free = [], [], self.model.ncam
        for camera in self.cameras:
            if isinstance(camera, FreeCamera):
                columns.append(free)
                fovy.append(camera.fovy)
                free += 1
                continue
            number = self.model.camera(camera).id if camera in camera_names(self.model) else camera
            if not isinstance(number, int) or not 0 <= number < self.model.ncam:
                have = ", ".join(camera_names(self.model)) or "none"
                raise UserError(f"The model has no camera {camera!r}; its cameras: {have}.")
            columns.append(number)
            fovy.append(float(self.model.cam_fovy[number]))
        return columns, fovy

    def _make_context(self, shadows: bool, samples: int) -> mjw.RenderContext:
        """The renderer's buffers, with rays of our own, so that a view need not be a camera of the model."""
        views, pixels = len(self.cameras), self.height * self.width
        context = mjw.create_render_context(
            self.model,
            self.n,
            cam_active=[],
            use_shadows=shadows,
            render_skybox=True,
            background_color=BACKGROUND_RGBA,
            enabled_geom_groups=_VISIBLE_GROUPS,
        )
        self._pixels = torch.zeros((self.n, views * pixels), dtype=torch.int32, device=self.device)
        context.nrender, context.total_rays, context.samples_per_pixel = views, views * pixels, samples
        context.has_orthographic_camera = False
        context.cam_id_map = wp.array(self._columns, dtype=int)
        context.cam_res = wp.array([(self.width, self.height)] * views, dtype=wp.vec2i)
        context.ray = wp.array(self._rays(samples).reshape(-1, 3), dtype=wp.vec3)
        context.ray_offset = wp.zeros(len(context.ray), dtype=wp.vec3)
        context.rgb_data = wp.from_torch(self._pixels, dtype=wp.uint32)
        context.rgb_adr = wp.array(np.arange(views) * pixels, dtype=int)
        context.depth_adr = context.seg_adr = wp.array([-1] * views, dtype=int)
        context.render_rgb = wp.array([True] * views, dtype=bool)
        context.render_depth = context.render_seg = wp.array([False] * views, dtype=bool)
        if samples > 1:
            context.aa_accum = wp.zeros((self.n, views * pixels), dtype=wp.vec3)
        return context

    def _rays(self, samples: int) -> np.ndarray:
        """Unit directions in the camera frame, float32 (samples², views, height, width, 3); z points backward."""
        height, width = self.height, self.width
        within = (np.arange(samples) + 0.5) / samples  # of a pixel
        right = (np.arange(width) + within[:, None] - width / 2)[None, :, None, :]  # (1, samples, 1, width)
        up = (height / 2 - np.arange(height) - within[:, None])[:, None, :, None]  # (samples, 1, height, 1)
        rays = np.empty((samples, samples, len(self.cameras), height, width, 3), np.float32)
        for view, fovy in enumerate(self._fovy):
            pixel = math.tan(math.radians(fovy) / 2) / (height / 2)  # its size at a distance of 1
            rays[:, :, view, ..., 0], rays[:, :, view, ..., 1], rays[:, :, view, ..., 2] = (
                right * pixel,
                up * pixel,
                -1.0,
            )
        return rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def camera_names(model: mujoco.MjModel) -> list[str]:
    return [model.camera(i).name for i in range(model.ncam)]


def default_camera(model: mujoco.MjModel) -> Camera:
    """The model's first tracking camera; else a free camera, following the first body that moves freely."""
    tracking = (mujoco.mjtCamLight.mjCAMLIGHT_TRACK, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
    for number in range(model.ncam):
        if model.cam_mode[number] in tracking:
            return number
    view = model.vis.global_
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    body = int(model.jnt_bodyid[free[0]]) if len(free) else None
    return FreeCamera(
        lookat=(0.0, 0.0, 0.0) if body is not None else tuple(model.stat.center.tolist()),
        distance=1.5 * float(model.stat.extent),
        azimuth=float(view.azimuth),
        elevation=float(view.elevation),
        fovy=float(view.fovy),
        body=body,
    )


_renderers: OrderedDict[tuple[int, int, Camera, int, int], Renderer] = OrderedDict()
_KEPT_RENDERERS = 4


def render_data(
    model: mujoco.MjModel,
    data: Sequence[mujoco.MjData],
    camera: Camera | None = None,
    height: int = 480,
    width: int = 480,
) -> torch.Tensor:
    """Smooth pictures with shadows of MjData objects as they stand, uint8 (len(data), height, width, 3), on the CPU.

    For environments simulated elsewhere. Without a `camera`, `default_camera`. The last few renderers are kept.
    """
    camera = default_camera(model) if camera is None else camera
    key = (id(model), len(data), camera, height, width)  # a kept renderer keeps its model, so the id stays its own
    if key not in _renderers:
        _renderers[key] = Renderer(model, len(data), (camera,), height, width, shadows=True, samples=2)
        while len(_renderers) > _KEPT_RENDERERS:
            _renderers.popitem(last=False)
    _renderers.move_to_end(key)
    fields = {
        name: np.stack([getattr(d, name) for d in data])
        for name in ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
    }
    if isinstance(camera, FreeCamera):
        targets = [None if camera.body is None else d.subtree_com[camera.body] for d in data]
        position, rotation = (np.stack(part)[:, None] for part in zip(*map(camera.pose, targets), strict=True))
        fields["cam_xpos"] = np.concatenate([fields["cam_xpos"], position], axis=1)
        fields["cam_xmat"] = np.concatenate([fields["cam_xmat"], rotation.reshape(len(data), 1, 9)], axis=1)
    return _renderers[key].render(**fields)[:, 0]
