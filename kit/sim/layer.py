"""One launch of MuJoCo Warp's ray tracer: some geoms of a model as many cameras see them, in many worlds."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch

from kit.sim.kernels import wp

import mujoco_warp as mjw  # isort: skip  initialises Warp, so after kit.machine.warp

_VISIBLE_GROUPS = [0, 1, 2]  # MuJoCo's own default; collision geoms usually live in group 3
_HIDDEN = 5
POSES = {"geom_xpos": wp.vec3, "geom_xmat": wp.mat33, "cam_xpos": wp.vec3, "cam_xmat": wp.mat33,
         "light_xpos": wp.vec3, "light_xdir": wp.vec3}  # fmt: skip
"""MjData's fields that a picture is made of."""


class Layer:
    """The geoms of `model` that `shown` (ngeom,) bool names, by `rays` (views, pixels, 3), unit directions in the frame
    of the camera of each view, whose numbers are `columns`, in up to `n` worlds. `depth` says whether it is asked for.
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
        if not shown.all():
            model = copy.copy(model)
            model.geom_group[~shown] = _HIDDEN
        self._model = mjw.put_model(model)
        self._geom_rgba = self._model.geom_rgba  # the model's own
        self._still = wp.zeros((n, model.nflexvert), dtype=wp.vec3)
        # with rays of our own, so that a view need not be a camera of the model
        context = mjw.create_render_context(model, n, cam_active=[], enabled_geom_groups=_VISIBLE_GROUPS, **settings)
        context.nrender, context.has_orthographic_camera = views, False
        context.cam_id_map = wp.array(list(columns), dtype=int)
        context.seg_adr = wp.array([-1] * views, dtype=int)
        context.render_rgb = wp.array([True] * views, dtype=bool)
        context.render_depth = wp.array([depth] * views, dtype=bool)
        context.render_seg = wp.array([False] * views, dtype=bool)
        self._context = context
        self._aim([torch.arange(rays.shape[1], device=rays.device)] * views)

    def draw(
        self, poses: Mapping[str, Any], pixels: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Worlds at `poses` (k, ...), Warp arrays by the names in `POSES`; "geom_rgba" (k, ngeom) may hold each world's
        own colours. Of all rays, or of those that go through `pixels`, which are numbered in each view: 0xAARRGGBB as
        int32 (k, rays), and metres along the camera's axis, float32 of the same shape, 0 where a ray meets nothing.

        Meanwhile Python's lock is free for other threads.
        """
        k, context, device = poses["cam_xpos"].shape[0], self._context, self.rays.device
        if pixels is not None:
            self._aim(pixels)
        colours = torch.empty((k, context.total_rays), dtype=torch.int32, device=device)
        depths = torch.empty((k, context.total_rays if self.depth else 0), device=device)
        if context.total_rays:
            context.rgb_data, context.depth_data = wp.from_torch(colours, dtype=wp.uint32), wp.from_torch(depths)
            self._model.geom_rgba = poses.get("geom_rgba", self._geom_rgba)
            # what the renderer reads of mjw's Data
            scene = SimpleNamespace(nworld=k, flexvert_xpos=self._still, **poses)
            mjw.refit_bvh(self._model, scene, context)
            mjw.render(self._model, scene, context)
        return colours, depths

    def _aim(self, pixels: list[torch.Tensor]) -> None:
        """Cast rays only through those `pixels` of each view."""
        context, counts = self._context, [len(numbers) for numbers in pixels]
        rays = torch.cat([view[numbers] for view, numbers in zip(self.rays, pixels, strict=True)])
        context.total_rays = len(rays)
        if not len(rays):
            return
        context.ray, context.ray_offset = wp.from_torch(rays, dtype=wp.vec3), wp.zeros(len(rays), dtype=wp.vec3)
        context.cam_res = wp.array([(count, 1) for count in counts], dtype=wp.vec2i)
        context.rgb_adr = wp.array(np.cumsum([0, *counts[:-1]]), dtype=int)
        context.depth_adr = context.rgb_adr if self.depth else context.seg_adr
