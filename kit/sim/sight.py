"""Which pixels may show something that moves: those on which the bounding sphere of such a geom falls."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import torch


class Sight:
    """Of `views` that stand still (their columns among the cameras, their fields of view `fovy` in degrees) on the
    geoms `moving` (ngeom,) bool. A ray costs most of what it costs also where it meets nothing."""

    def __init__(self, model: mujoco.MjModel, moving: np.ndarray, views: Sequence[int], fovy: Sequence[float],
                 height: int, width: int) -> None:  # fmt: skip
        self.height, self.width = height, width
        self._geoms = torch.as_tensor(np.flatnonzero(moving))
        self._radii = torch.as_tensor(model.geom_rbound[moving], dtype=torch.float32)
        self._views = torch.as_tensor(list(views))
        self._pixel = torch.tan(torch.deg2rad(torch.as_tensor(list(fovy), dtype=torch.float32)) / 2) / (height / 2)
        self.bounded = bool((self._radii > 0).all())
        """Else there is a plane or the like, and every pixel may show it."""

    def rays(self, geom_xpos: torch.Tensor, cam_xpos: torch.Tensor, cam_xmat: torch.Tensor) -> list[torch.Tensor]:
        """For each view the numbers of its pixels (row by row) that show a geom in any of the worlds: `geom_xpos`
        (k, ngeom, 3), and of one world `cam_xpos` (ncam, 3) and `cam_xmat` (ncam, 3, 3)."""
        places = geom_xpos[:, self._geoms].flatten(0, 1)  # (k × g, 3)
        radii = self._radii.repeat(len(geom_xpos))
        away = places - cam_xpos[self._views].unsqueeze(1)  # (v, k × g, 3)
        right, up, back = torch.einsum("vgi,vij->jvg", away, cam_xmat[self._views])
        pixel = self._pixel.unsqueeze(1)
        columns = _covered(right, -back, radii, pixel, self.width)  # (v, k × g, width)
        rows = _covered(-up, -back, radii, pixel, self.height)
        shown = torch.bmm(rows.transpose(1, 2), columns) > 0
        return [view.flatten().nonzero().flatten() for view in shown]


def _covered(
    aside: torch.Tensor, ahead: torch.Tensor, radii: torch.Tensor, pixel: torch.Tensor, count: int
) -> torch.Tensor:
    """Along one side of the picture, the pixels (v, g, count) float, 0 or 1, that a sphere may touch whose centre lies
    so far to that side and ahead of the camera, m; a `pixel` is so wide at a distance of 1 m."""
    half = torch.asin((radii / torch.hypot(aside, ahead)).clamp(max=1.0))
    angle = torch.atan2(aside, ahead)
    near = ahead <= radii  # beside or around the camera: it may be anywhere
    first = torch.where(near, -torch.inf, torch.tan(angle - half) / pixel + count / 2 - 1.5)
    last = torch.where(near, torch.inf, torch.tan(angle + half) / pixel + count / 2 + 0.5)
    number = torch.arange(count)
    inside = (number >= first.unsqueeze(-1)) & (number <= last.unsqueeze(-1)) & (ahead > -radii).unsqueeze(-1)
    return inside.float()
