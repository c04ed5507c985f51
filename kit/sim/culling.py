"""Pixel culling: find the pixels that can show a moving geom, from the geoms' bounding spheres."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import torch


class PixelCulling:
    """Finds the pixels of fixed cameras that can show moving geoms. `moving` (ngeom,) bool is True for these geoms.

    `views` are the numbers of the cameras in the model, `fovy` their vertical fields of view in degrees. Skipping the
    other pixels saves time, because a ray that hits nothing costs almost as much as a ray that hits a geom.
    """

    def __init__(self, model: mujoco.MjModel, moving: np.ndarray, views: Sequence[int], fovy: Sequence[float],
                 height: int, width: int) -> None:  # fmt: skip
        self.height, self.width = height, width
        self._geoms = torch.as_tensor(np.flatnonzero(moving))
        self._radii = torch.as_tensor(model.geom_rbound[moving], dtype=torch.float32)
        self._views = torch.as_tensor(list(views))
        self._pixel = torch.tan(torch.deg2rad(torch.as_tensor(list(fovy), dtype=torch.float32)) / 2) / (height / 2)
        self.bounded = bool((self._radii > 0).all())
        """Whether all moving geoms have a bounding sphere. A plane has no sphere and can appear on every pixel."""

    def rays(self, geom_xpos: torch.Tensor, cam_xpos: torch.Tensor, cam_xmat: torch.Tensor) -> list[torch.Tensor]:
        """Return for each view the indices of pixels (row-major) that can show a moving geom in any of k worlds.

        `geom_xpos` (k, ngeom, 3) differs between worlds; `cam_xpos` (ncam, 3) and `cam_xmat` (ncam, 3, 3) do not.
        """
        centres = geom_xpos[:, self._geoms].flatten(0, 1)  # (k × g, 3)
        radii = self._radii.repeat(len(geom_xpos))
        offsets = centres - cam_xpos[self._views].unsqueeze(1)  # (v, k × g, 3)
        right, up, back = torch.einsum("vgi,vij->jvg", offsets, cam_xmat[self._views])
        pixel = self._pixel.unsqueeze(1)
        columns = _covered(right, -back, radii, pixel, self.width)  # (v, k × g, width)
        rows = _covered(-up, -back, radii, pixel, self.height)
        covered = torch.bmm(rows.transpose(1, 2), columns) > 0
        return [view.flatten().nonzero().flatten() for view in covered]


def _covered(
    aside: torch.Tensor, ahead: torch.Tensor, radii: torch.Tensor, pixel: torch.Tensor, count: int
) -> torch.Tensor:
    """Return which pixels along one axis of the image each sphere can cover: float (v, g, count), 0 or 1.

    `aside`, `ahead`: the sphere's centre along this axis and in front of the camera, m; `pixel`: pixel width at 1 m.
    """
    half = torch.asin((radii / torch.hypot(aside, ahead)).clamp(max=1.0))
    angle = torch.atan2(aside, ahead)
    near = ahead <= radii  # beside or around the camera: it can cover any pixel
    first = torch.where(near, -torch.inf, torch.tan(angle - half) / pixel + count / 2 - 1.5)
    last = torch.where(near, torch.inf, torch.tan(angle + half) / pixel + count / 2 + 0.5)
    number = torch.arange(count)
    inside = (number >= first.unsqueeze(-1)) & (number <= last.unsqueeze(-1)) & (ahead > -radii).unsqueeze(-1)
    return inside.float()
