"""One launch of MuJoCo Warp's ray tracer: some geoms of a model as many cameras see them, in many worlds."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch

from kit.sim.kernels import mjw, wp

_VISIBLE_GROUPS = [0, 1, 2]  # MuJoCo's own default; collision geoms usually live in group 3
_HIDDEN = 5
POSES = {"geom_xpos": wp.vec3, "geom_xmat": wp.mat33, "cam_xpos": wp.vec3, "cam_xmat": wp.mat33,
         "light_xpos": wp.vec3, "light_xdir": wp.vec3}  # fmt: skip
"""MjData's fields that a picture is made of."""


class Layer:
    """The geoms of `model` that `shown` (ngeom,) bool names, by `rays` (views, height, width, 3), unit directions in
    the frame of the camera of each view, whose numbers are `columns`.

    After `draw` the first rows of `pixels` (n, views, height, width) hold 0xAARRGGBB as int32, and those of `depths`,
    float32 of the same shape, metres along the camera's axis, 0 where a ray meets nothing; `depths` only if asked for.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        shown: np.ndarray,
        n: int,
        columns: Sequence[int],
        rays: np.ndarray,
        device: torch.device,
        depth: bool = False,
        **settings: Any,
    ) -> None:
        views, height, width, _ = rays.shape
        pixels = height * width
        if not shown.all():
            model = copy.copy(model)
            model.geom_group[~shown] = _HIDDEN
        self.n, self._model = n, mjw.put_model(model)
        self._geom_rgba = self._model.geom_rgba  # the model's own
        self._still = wp.zeros((n, model.nflexvert), dtype=wp.vec3)
        # with rays of our own, so that a view need not be a camera of the model
        context = mjw.create_render_context(
            model, n, cam_active=[], enabled_geom_groups=_VISIBLE_GROUPS, **settings
        )  # fmt: skip
        memory = (n, views, height, width)
        self.pixels = torch.zeros(memory, dtype=torch.int32, device=device)
        self.depths = torch.zeros(memory if depth else (n, 0), device=device)
        context.nrender, context.total_rays = views, views * pixels
        context.has_orthographic_camera = False
        context.cam_id_map = wp.array(list(columns), dtype=int)
        context.cam_res = wp.array([(width, height)] * views, dtype=wp.vec2i)
        context.ray = wp.array(rays.reshape(-1, 3), dtype=wp.vec3)
        context.ray_offset = wp.zeros(len(context.ray), dtype=wp.vec3)
        context.rgb_data = wp.from_torch(self.pixels.view(n, -1), dtype=wp.uint32)
        context.rgb_adr = wp.array(np.arange(views) * pixels, dtype=int)
        context.depth_data = wp.from_torch(self.depths.view(n, -1))
        context.depth_adr = context.rgb_adr if depth else wp.array([-1] * views, dtype=int)
        context.seg_adr = wp.array([-1] * views, dtype=int)
        context.render_rgb = wp.array([True] * views, dtype=bool)
        context.render_depth = wp.array([depth] * views, dtype=bool)
        context.render_seg = wp.array([False] * views, dtype=bool)
        self._context = context

    def draw(self, poses: Mapping[str, Any]) -> None:
        """Worlds at `poses` (k, ...), Warp arrays by the names in `POSES`; "geom_rgba" (k, ngeom) may hold each world's
        own colours. Meanwhile Python's lock is free for other threads."""
        k = poses["cam_xpos"].shape[0]
        self._model.geom_rgba = poses.get("geom_rgba", self._geom_rgba)
        scene = SimpleNamespace(nworld=k, flexvert_xpos=self._still, **poses)  # what the renderer reads of mjw's Data
        mjw.refit_bvh(self._model, scene, self._context)
        mjw.render(self._model, scene, self._context)
