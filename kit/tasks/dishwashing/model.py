"""MuJoCo model of a sink with a plate, and a sponge on a tool with three slide joints.

World z is 0 at the top of the plate. The sponge's position is the centre of its underside. The sponge collides only
with `base`, an invisible flat disc whose top is at z = 0. Therefore the sponge never hits the plate's edge. Dirt is a
grid of thin boxes on the plate, without contacts; the task sets their colours.
"""

from __future__ import annotations

from functools import cache

import mujoco
import numpy as np

from kit.sim.studio import looking, studio

PLATE, WELL, BASE, SPONGE, FORCE = "plate", "well", "base", "sponge", "sponge_force"
DIRT = "dirt{}"
SLIDES = ("tool_x", "tool_y", "tool_z")

PLATE_M, WELL_M = 0.135, 0.12
"""Radius of a dinner plate, and of its well: the flat part in the middle, which can be dirty."""
GRID = 8
"""Number of dirt cells along each axis of the square around the well. Cells with their centre outside the well are left
out."""
CELL_M = 2 * WELL_M / GRID
REACH_M = 0.12
"""Greatest distance of the sponge from the centre of the sink, along x and along y."""
HOVER_M = 0.06
"""Greatest height of the sponge above the plate."""
BASE_M = 0.3
"""Radius of the invisible disc `base`, greater than the sponge's reach. The drawn mat has radius `PLATE_M` + 0.03."""
MOST_SPEED_MPS = 0.4
"""Greatest commanded speed of the sponge along x and along y."""
LIFT_N, MOST_PRESS_N = 10.0, 50.0
"""Greatest force of the tool: upward, and downward."""
SLIDE_N = 60.0
"""Greatest force of the slides along x and y."""
FRICTION = 0.4
"""Friction coefficient between a wet sponge and glazed ceramic; an assumption."""

CAMERAS = ("view", "eye")
_CAMERA_POSES = {  # camera position and target, world frame, m; vertical field of view, degrees
    "view": ((0.30, -0.46, 0.44), (0.0, 0.02, 0.0), 40),
    "eye": ((0.0, -0.22, 0.55), (0.0, 0.0, 0.0), 33),
}
_RUBBER = (0.40, 0.44, 0.48, 1)
_STEEL, _COUNTER = (0.66, 0.69, 0.72, 1), (0.32, 0.36, 0.40, 1)
CHINA_RGB, RIM_RGB = (0.93, 0.92, 0.88), (0.80, 0.83, 0.86)
_GEOM = mujoco.mjtObj.mjOBJ_GEOM
_FOUND, _FORCE = 1, 2  # bits that select what a contact sensor reports
_NET_FORCE = 3  # reduction mode of a contact sensor: the sum over all contacts, in the world frame


def cells() -> np.ndarray:
    """Return the centres (cells, 2) of the dirt cells, relative to the centre of the plate, m."""
    line = (np.arange(GRID) + 0.5) * CELL_M - WELL_M
    y, x = np.meshgrid(line, line, indexing="ij")
    centres = np.stack([x.ravel(), y.ravel()], 1)
    return centres[np.linalg.norm(centres, axis=1) < WELL_M]


@cache
def build_model() -> mujoco.MjModel:
    """Build the model of one sink. The plate is a mocap body, positioned by the task."""
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.005
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # constraint islands are useless with one contact, and finding them takes a third of the time
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    studio(spec, floor=False)
    _add_sink(spec)
    _add_plate(spec)
    _add_tool(spec)
    # The contact has no friction, because a sliding MuJoCo contact with friction lifts off and bounces. The task
    # applies friction as an external force.
    spec.add_pair(name=PLATE, geomname1=SPONGE, geomname2=BASE, condim=1, solref=[0.03, 1.0])
    spec.add_sensor(name=FORCE, type=mujoco.mjtSensor.mjSENS_CONTACT, objtype=_GEOM, objname=SPONGE, reftype=_GEOM,
                    refname=BASE, intprm=[_FOUND | _FORCE, _NET_FORCE, 1])  # fmt: skip
    for name, (eye, target, fovy) in _CAMERA_POSES.items():
        spec.worldbody.add_camera(name=name, pos=eye, fovy=fovy, quat=looking(np.subtract(target, eye)))
    return spec.compile()


def _add_visual(
    body: mujoco.MjsBody, name: str, pos: tuple[float, ...], size: tuple[float, ...], rgba: tuple[float, ...],
    kind: mujoco.mjtGeom = mujoco.mjtGeom.mjGEOM_BOX,
) -> mujoco.MjsGeom:  # fmt: skip
    """Add a shape without contacts and without mass."""
    return body.add_geom(name=name, type=kind, pos=pos, size=[*size, *[0.0] * (3 - len(size))], rgba=rgba,
                         contype=0, conaffinity=0, mass=0)  # fmt: skip


def _add_sink(spec: mujoco.MjSpec) -> None:
    inner, deep, thick = 0.27, 0.06, 0.006
    world, low, middle = spec.worldbody, -0.022 - thick, -0.022 + deep / 2
    _add_visual(world, "sink_floor", (0, 0, low), (inner, inner, thick), _STEEL)
    for axis, name in enumerate(("x", "y")):
        for side in (-1, 1):
            at, size = [0.0, 0.0, middle], [inner, inner, deep / 2]
            at[axis], size[axis] = side * (inner + thick), thick
            _add_visual(world, f"sink_{name}{side}", tuple(at), tuple(size), _STEEL)
            at, size = [0.0, 0.0, middle + deep / 2 - 0.01], [0.75, 0.75, 0.01]
            at[axis], size[axis] = side * (inner + 0.24 + 2 * thick), 0.24
            if axis:
                size[0] = inner + 2 * thick
            _add_visual(world, f"counter_{name}{side}", tuple(at), tuple(size), _COUNTER)


def _add_plate(spec: mujoco.MjSpec) -> None:
    plate = spec.worldbody.add_body(name=PLATE, mocap=True)
    disc = mujoco.mjtGeom.mjGEOM_CYLINDER
    base = plate.add_geom(name=BASE, type=disc, pos=(0, 0, -0.01), size=(BASE_M, 0.01, 0))
    base.contype = base.conaffinity = 0  # contacts only by the explicit pair
    base.group = 3  # not drawn
    _add_visual(plate, "mat", (0, 0, -0.012), (PLATE_M + 0.03, 0.009), _RUBBER, disc)
    _add_visual(plate, PLATE, (0, 0, -0.01), (PLATE_M, 0.01), (*RIM_RGB, 1), disc)
    _add_visual(plate, WELL, (0, 0, -0.0005), (WELL_M, 0.001), (*CHINA_RGB, 1), disc)
    for number, (x, y) in enumerate(cells()):
        _add_visual(plate, DIRT.format(number), (x, y, 0.0), (CELL_M / 2, CELL_M / 2, 0.0012), (0.45, 0.24, 0.08, 1))


def _add_tool(spec: mujoco.MjSpec) -> None:
    """Add the tool of 1 kg, gravity-compensated: the sponge, and a rod that leans away from the cameras."""
    tool = spec.worldbody.add_body(name="tool", gravcomp=1)
    for name, axis in zip(SLIDES, np.eye(3), strict=True):
        across = name != "tool_z"
        tool.add_joint(name=name, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis, limited=True,
                       range=(-REACH_M, REACH_M) if across else (-0.02, HOVER_M),
                       damping=[0.0 if across else 200.0, 0, 0])  # fmt: skip
        motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.ctrllimited = motor.forcelimited = True
        if across:
            motor.set_to_velocity(kv=500.0)
            motor.ctrlrange, motor.forcerange = (-MOST_SPEED_MPS, MOST_SPEED_MPS), (-SLIDE_N, SLIDE_N)
        else:
            motor.set_to_motor()
            motor.gear = [-1.0, 0, 0, 0, 0, 0]  # a positive force, in N, pushes down
            motor.ctrlrange = motor.forcerange = (-LIFT_N, MOST_PRESS_N)
    ball = tool.add_geom(name=SPONGE, type=mujoco.mjtGeom.mjGEOM_SPHERE, pos=(0, 0, 0.03), size=(0.03, 0, 0), mass=1.0)
    ball.contype = ball.conaffinity = 0
    ball.group = 3  # not drawn
    _add_visual(tool, "scourer", (0, 0, 0.004), (0.034, 0.024, 0.004), (0.16, 0.45, 0.24, 1))
    _add_visual(tool, "foam", (0, 0, 0.018), (0.034, 0.024, 0.010), (0.96, 0.80, 0.22, 1))
    rod = _add_visual(tool, "rod", (0, 0, 0), (0.008,), (0.22, 0.25, 0.29, 1), mujoco.mjtGeom.mjGEOM_CAPSULE)
    rod.fromto = [0, 0, 0.03, 0, 0.22, 0.16]
