"""One launch of MuJoCo Warp's ray tracer: render some geoms of a model, in many worlds, from several cameras."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch

from kit.sim.kernels import wp

import mujoco_warp as mjw  # isort: skip  initialises Warp: after kit.sim.kernels, which sets Warp up

_VISIBLE_GROUPS = [0, 1, 2]  # MuJoCo's own default; collision geoms usually live in group 3
_HIDDEN = 5
POSES = {"geom_xpos": wp.vec3, "geom_xmat": wp.mat33, "cam_xpos": wp.vec3, "cam_xmat": wp.mat33,
         "light_xpos": wp.vec3, "light_xdir": wp.vec3}  # fmt: skip
"""Fields of MjData needed for rendering -> their Warp types."""


class Layer:
    """Renders the geoms of `model` where `shown` (ngeom,) bool is True, in up to `n` worlds.

    `columns` has, for each view, the index of its camera in the poses' cam_xpos and cam_xmat (k, cameras). `rays`
    (views, pixels, 3) has the pixels' unit directions in the camera frame. `depth`: whether to render depth too.
    `settings` are passed to mujoco_warp's create_render_context.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        shown: np.ndarray,
        n: int,
        columns: Sequence[int],
        rays: torch.Tensor,
        depth: bool = False,
        **settings: Any,
    ) -> None:
        views, self.rays, self.depth = len(rays), rays, depth
        # Warp's default device is shared by all threads
        self._device = device = wp.device_from_torch(rays.device)
        if not shown.all():
            model = copy.copy(model)
            model.geom_group[~shown] = _HIDDEN
        self._model = mjw.put_model(model)
        self._geom_rgba = self._model.geom_rgba  # the model's own colours
        self._no_flex = wp.zeros((n, model.nflexvert), dtype=wp.vec3, device=device)
        # `_set_pixels` sets the rays, so that a view may also be a free camera, which is not in the model
        context = mjw.create_render_context(model, n, cam_active=[], enabled_geom_groups=_VISIBLE_GROUPS, **settings)
        context.nrender, context.has_orthographic_camera = views, False
        context.cam_id_map = wp.array(list(columns), dtype=int, device=device)
        context.seg_adr = wp.array([-1] * views, dtype=int, device=device)
        context.render_rgb = wp.array([True] * views, dtype=bool, device=device)
        context.render_depth = wp.array([depth] * views, dtype=bool, device=device)
        context.render_seg = wp.array([False] * views, dtype=bool, device=device)
        self._context = context
        self._set_pixels([torch.arange(rays.shape[1], device=rays.device)] * views)

    def draw(
        self, poses: Mapping[str, Any], pixels: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Render k worlds. `poses` holds Warp arrays (k, ...) by the names in `POSES`.

        It may also hold "geom_rgba" (k, ngeom), each world's own colours. `pixels` are the indices of the pixels to
        render, one tensor per view; None: the pixels of the last call, or all in the first call.

        Returns colours 0xAARRGGBB, int32 (k, rays), and depths along the camera's axis, float32 of the same shape, 0
        where a ray hits nothing. Without `depth`, depths are (k, 0).
        """
        k, context, device = poses["cam_xpos"].shape[0], self._context, self.rays.device
        if pixels is not None:
            self._set_pixels(pixels)
        colours = torch.empty((k, context.total_rays), dtype=torch.int32, device=device)
        depths = torch.empty((k, context.total_rays if self.depth else 0), device=device)
        if context.total_rays:
            context.rgb_data, context.depth_data = wp.from_torch(colours, dtype=wp.uint32), wp.from_torch(depths)
            self._model.geom_rgba = poses.get("geom_rgba", self._geom_rgba)
            # the fields of mjw's Data that the renderer reads
            scene = SimpleNamespace(nworld=k, flexvert_xpos=self._no_flex, **poses)
            mjw.refit_bvh(self._model, scene, context)
            mjw.render(self._model, scene, context)
        return colours, depths

    def _set_pixels(self, pixels: list[torch.Tensor]) -> None:
        """Render only `pixels` from now on, a tensor of indices per view."""
        context, device, counts = self._context, self._device, [len(numbers) for numbers in pixels]
        rays = torch.cat([view[numbers] for view, numbers in zip(self.rays, pixels, strict=True)])
        context.total_rays = len(rays)
        if not len(rays):
            return
        context.ray = wp.from_torch(rays, dtype=wp.vec3)
        context.ray_offset = wp.zeros(len(rays), dtype=wp.vec3, device=device)
        context.cam_res = wp.array([(count, 1) for count in counts], dtype=wp.vec2i, device=device)
        context.rgb_adr = wp.array(np.cumsum([0, *counts[:-1]]), dtype=int, device=device)
        context.depth_adr = context.rgb_adr if self.depth else context.seg_adr
