"""Lighting, floor, sky and fixed cameras of all scenes."""

from __future__ import annotations

import mujoco
import numpy as np

SKY_RGB = (0.93, 0.95, 0.97), (0.62, 0.72, 0.82)  # at the horizon, overhead
FLOOR_RGB = (0.55, 0.59, 0.64), (0.50, 0.54, 0.59)  # the two greys of the tiles
SOFT_RGB = (0.76, 0.78, 0.80), (0.70, 0.73, 0.76)
"""Tile colours of the floor for moving cameras, drawn without lines, which would flicker."""


def studio(spec: mujoco.MjSpec, floor: bool | str = True, soft: bool = False) -> None:
    """Replace the lights and sky of `spec` by soft light from the camera, one directional light and a plain sky.

    `floor` True adds an infinite ground plane "floor" at z = 0, with contacts; the name of a geom gives that geom the
    floor's material instead. `soft`: a pale floor without lines, for moving cameras.
    """
    for light in list(spec.lights):
        spec.delete(light)
    for texture in [t for t in spec.textures if t.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX]:
        spec.delete(texture)
    spec.visual.headlight.ambient = [0.33, 0.33, 0.35]
    spec.visual.headlight.diffuse = [0.25, 0.25, 0.25]
    spec.visual.headlight.specular = [0.0, 0.0, 0.0]
    spec.add_texture(name="studio/sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, width=128, height=768,
                     builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT, rgb1=SKY_RGB[0], rgb2=SKY_RGB[1])  # fmt: skip
    spec.worldbody.add_light(name="studio/key", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
                             pos=[2, -2, 5], dir=[-0.45, 0.35, -1.0], diffuse=[0.52, 0.51, 0.48],
                             specular=[0.2, 0.2, 0.2], castshadow=True)  # fmt: skip
    if floor:
        _tile(spec, floor, soft)


def looking(direction: np.ndarray) -> np.ndarray:
    """Return the quaternion of a camera that looks along `direction`; the image's vertical is the world's z axis.

    If the camera looks straight down or up, the image's vertical is the world's x axis.
    """
    z = -direction / np.linalg.norm(direction)
    x = np.cross((0, 0, 1) if abs(z[2]) < 0.99 else (1, 0, 0), z)
    x /= np.linalg.norm(x)
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, np.stack([x, np.cross(z, x), z], axis=1).ravel())
    return quat


def _tile(spec: mujoco.MjSpec, floor: bool | str, soft: bool) -> None:
    one, two = SOFT_RGB if soft else FLOOR_RGB
    lines = mujoco.mjtMark.mjMARK_NONE if soft else mujoco.mjtMark.mjMARK_EDGE
    spec.add_texture(name="studio/tiles", type=mujoco.mjtTexture.mjTEXTURE_2D, width=256, height=256,
                     builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER, rgb1=one, rgb2=two,
                     mark=lines, markrgb=[0.61, 0.65, 0.70])  # fmt: skip
    tiles = spec.add_material(name="studio/tiles", texuniform=True, texrepeat=[1.0, 1.0],
                              specular=0.0, shininess=0.0)  # fmt: skip
    tiles.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "studio/tiles"
    if isinstance(floor, str):
        ground = spec.geom(floor)
    else:
        ground = spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05])
    ground.material = "studio/tiles"
    ground.rgba = [0.5, 0.5, 0.5, 1.0]  # MuJoCo's default, which means: use the material's colour
