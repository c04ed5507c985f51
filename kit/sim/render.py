"""Pictures of many worlds at once, ray-traced by MuJoCo Warp on CPU or CUDA. No OpenGL, EGL or OSMesa.

The renderer needs poses only, so worlds simulated anywhere can be drawn: `Renderer.render` takes the geom, camera and
light poses of all worlds as tensors; `render_data` takes an `MjData`, for environments that are not ours.
What it does not draw: sites (use a geom without contacts), tendons, reflections; translucent geoms are drawn solid,
and only alpha 0 hides one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, TypeAlias

import mujoco
import numpy as np
import torch

from kit.errors import UserError
from kit.sim.kernels import beside_torch, compiling, mjw, numbered, wp

BACKGROUND_RGBA = (0.80, 0.86, 0.92, 1.0)
"""Where a ray hits nothing and the model has no skybox: a light sky."""
POSES = {"geom_xpos": wp.vec3, "geom_xmat": wp.mat33, "cam_xpos": wp.vec3, "cam_xmat": wp.mat33,
         "light_xpos": wp.vec3, "light_xdir": wp.vec3}  # fmt: skip
"""MjData's fields that a picture is made of."""
_VISIBLE_GROUPS = [0, 1, 2]  # MuJoCo's own default; collision geoms usually live in group 3

Poses = torch.Tensor | np.ndarray
Camera: TypeAlias = str | int | mujoco.MjvCamera
"""A camera of the model, by name or number, or the viewer's own kind, which is not in the model."""


class Renderer:
    """Draws `n` worlds of `model` through `cameras` (names or numbers of the model's cameras, or `FreeCamera`s).

    One ray a pixel: four would smooth the edges and take three times as long. `shadows` make depth readable, at up to
    twice the work. Building one takes a moment and holds the meshes' search trees, so keep it; `render` may be called
    from one thread at a time.
    """

    def __init__(self, model: mujoco.MjModel, n: int, cameras: Sequence[Camera], height: int, width: int,
                 device: torch.device | str = "cpu", *, shadows: bool = False) -> None:  # fmt: skip
        self.model, self.n, self.device = model, n, numbered(device)
        self.cameras, self.height, self.width = tuple(cameras), height, width
        for name, value in {"n": n, "height": height, "width": width}.items():
            if value < 1:
                raise UserError(f"A picture's {name} is {value}; it has to be at least 1.")
        self._drawn = False
        self._columns, self._fovy = self._find_cameras()
        with beside_torch(self.device), compiling("the renderer"):
            self._model = mjw.put_model(model)
            self._geom_rgba = self._model.geom_rgba  # the model's own
            self._context = self._make_context(shadows)
            self._still = wp.zeros((n, model.nflexvert), dtype=wp.vec3)

    def render(self, poses: Mapping[str, Poses]) -> torch.Tensor:
        """RGB pictures, uint8 (k, cameras, height, width, 3), on the renderer's device.

        `poses` holds the fields `POSES` of MjData with a leading axis of k worlds, n at most: positions (k, count, 3),
        rotations (k, count, 3, 3) or (k, count, 9); those of viewer's cameras stand after those of the model's. It
        may hold "geom_rgba" (k, ngeom, 4), each world's own colours. float32 tensors on the device are read in place.
        """
        k = len(poses["cam_xpos"])
        if k > self.n:
            raise ValueError(f"poses of {k} worlds for a renderer of {self.n}")
        with beside_torch(self.device), nullcontext() if self._drawn else compiling("the renderer"):
            seen = {name: self._warp(poses[name], dtype) for name, dtype in POSES.items()}
            # The part of a mujoco_warp Data that its renderer reads:
            scene = SimpleNamespace(nworld=k, flexvert_xpos=self._still, **seen)
            own = poses.get("geom_rgba")
            self._model.geom_rgba = self._geom_rgba if own is None else self._warp(own, wp.vec4)
            mjw.refit_bvh(self._model, scene, self._context)
            mjw.render(self._model, scene, self._context)
        self._drawn = True
        bgra = self._pixels[:k].view(torch.uint8).view(k, len(self.cameras), self.height, self.width, 4)
        return bgra[..., :3].flip(-1)  # 0xAARRGGBB lies in memory as B, G, R, A

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

    def _make_context(self, shadows: bool) -> mjw.RenderContext:
        """The renderer's buffers, with rays of our own, so that a view need not be a camera of the model."""
        views, pixels = len(self.cameras), self.height * self.width
        context = mjw.create_render_context(
            self.model, self.n, cam_active=[], use_shadows=shadows, render_skybox=True,
            background_color=BACKGROUND_RGBA, enabled_geom_groups=_VISIBLE_GROUPS,
        )  # fmt: skip
        self._pixels = torch.zeros((self.n, views * pixels), dtype=torch.int32, device=self.device)
        context.nrender, context.total_rays = views, views * pixels
        context.has_orthographic_camera = False
        context.cam_id_map = wp.array(self._columns, dtype=int)
        context.cam_res = wp.array([(self.width, self.height)] * views, dtype=wp.vec2i)
        context.ray = wp.array(self._rays().reshape(-1, 3), dtype=wp.vec3)
        context.ray_offset = wp.zeros(len(context.ray), dtype=wp.vec3)
        context.rgb_data = wp.from_torch(self._pixels, dtype=wp.uint32)
        context.rgb_adr = wp.array(np.arange(views) * pixels, dtype=int)
        context.depth_adr = context.seg_adr = wp.array([-1] * views, dtype=int)
        context.render_rgb = wp.array([True] * views, dtype=bool)
        context.render_depth = context.render_seg = wp.array([False] * views, dtype=bool)
        return context

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
