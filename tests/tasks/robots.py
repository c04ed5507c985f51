"""Robots made for tests, as files: a quadruped in MJCF and URDF, and an arm with two fingers."""

from __future__ import annotations

from pathlib import Path

LEG = """
    <body name="{name}_hip" pos="{x} {y} 0">
      <joint name="{name}_hip" axis="1 0 0" range="-0.8 0.8" actuatorfrcrange="-35 35"/>
      <geom type="sphere" size="0.04" mass="0.5"/>
      <body name="{name}_thigh">
        <joint name="{name}_thigh" axis="0 1 0" range="-1 3" actuatorfrcrange="-35 35"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.025" mass="0.6"/>
        <body name="{name}_shin" pos="0 0 -0.2">
          <joint name="{name}_knee" axis="0 1 0" range="-2.6 -0.2" actuatorfrcrange="-35 35"/>
          <geom type="capsule" fromto="0 0 0 0 0 -0.17" size="0.015" mass="0.2"/>
          <geom type="sphere" pos="0 0 -0.2" size="0.02" mass="0.05"/>
        </body>
      </body>
    </body>"""
LEGS = {"fl": (0.2, 0.12), "fr": (0.2, -0.12), "rl": (-0.2, 0.12), "rr": (-0.2, -0.12)}
HOME = {f"{leg}_{joint}": angle for leg in LEGS for joint, angle in (("thigh", 0.8), ("knee", -1.6))}
"""Standing pose: thighs back, knees bent; hips at 0. The trunk is then 2 · 0.2 · cos(0.8) + 0.02 m high."""


def dog(path: Path, leg: str = LEG, extra: str = "", names: tuple[str, ...] = tuple(LEGS)) -> Path:
    """Write a quadruped of 10.4 kg: a box as trunk, four legs of three joints. It has no keyframe and no motors."""
    legs = "".join(leg.format(name=name, x=LEGS[name][0], y=LEGS[name][1]) for name in names)
    path.write_text(f"""<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <geom name="ground" type="plane" size="5 5 0.1"/>
    <body name="trunk" pos="0 0 0.5">
      <freejoint/><geom type="box" size="0.25 0.1 0.05" mass="5"/>{legs}
    </body>
  </worldbody>{extra}
</mujoco>""")
    return path


def urdf_dog(path: Path) -> Path:
    """Write the same quadruped in URDF, where the root link does not move."""
    links, joints = [_link("trunk", 5, '<box size="0.5 0.2 0.1"/>')], []
    for name, (x, y) in LEGS.items():
        links += [
            _link(f"{name}_hip", 0.5, '<sphere radius="0.04"/>'),
            _link(f"{name}_thigh", 0.6, '<cylinder radius="0.025" length="0.2"/>', z=-0.1),
            _link(f"{name}_shin", 0.25, '<sphere radius="0.02"/>', z=-0.2),
        ]
        joints += [
            _joint(f"{name}_hip", "trunk", f"{name}_hip", (x, y, 0), "1 0 0", (-0.8, 0.8)),
            _joint(f"{name}_thigh", f"{name}_hip", f"{name}_thigh", (0, 0, 0), "0 1 0", (-1, 3)),
            _joint(f"{name}_knee", f"{name}_thigh", f"{name}_shin", (0, 0, -0.2), "0 1 0", (-2.6, -0.2)),
        ]
    path.write_text(f'<robot name="dog">{"".join(links + joints)}</robot>')
    return path


def _link(name: str, mass: float, shape: str, z: float = 0.0) -> str:
    origin = f'<origin xyz="0 0 {z}"/>'
    inertia = 'ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"'
    return (
        f'<link name="{name}"><inertial>{origin}<mass value="{mass}"/><inertia {inertia}/></inertial>'
        f"<collision>{origin}<geometry>{shape}</geometry></collision></link>"
    )


def _joint(
    name: str, parent: str, child: str, at: tuple[float, float, float], axis: str, limits: tuple[float, float]
) -> str:
    return (
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{at[0]} {at[1]} {at[2]}"/><axis xyz="{axis}"/>'
        f'<limit lower="{limits[0]}" upper="{limits[1]}" effort="35" velocity="20"/></joint>'
    )


def arm(path: Path, extra: str = "") -> Path:
    """Write an arm with a turning base, three elbows and two sliding fingers."""
    path.write_text(f"""<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="base" pos="0 0 0.1">
      <geom type="cylinder" size="0.06 0.1" mass="2"/>
      <body name="turret" pos="0 0 0.1">
        <joint name="pan" axis="0 0 1" range="-3 3"/><geom type="sphere" size="0.05" mass="1"/>
        <body name="upper">
          <joint name="shoulder" axis="0 1 0" range="-1.5 1.5"/>
          <geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.03" mass="1"/>
          <body name="lower" pos="0 0 0.3">
            <joint name="elbow" axis="0 1 0" range="-2 2"/>
            <geom type="capsule" fromto="0 0 0 0 0 0.25" size="0.025" mass="0.5"/>
            <body name="palm" pos="0 0 0.28">
              <joint name="wrist" axis="0 1 0" range="-2 2"/><geom type="box" size="0.03 0.03 0.02" mass="0.2"/>
              <body name="left" pos="0 0.02 0.04">
                <joint name="left" type="slide" axis="0 1 0" range="0 0.02"/><geom size="0.01" mass="0.02"/>
              </body>
              <body name="right" pos="0 -0.02 0.04">
                <joint name="right" type="slide" axis="0 -1 0" range="0 0.02"/><geom size="0.01" mass="0.02"/>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="pan" ctrlrange="-30 30" ctrllimited="true"/>
    <motor joint="shoulder" gear="10" ctrlrange="-3 3" ctrllimited="true"/>
    <position joint="elbow" kp="50" forcerange="-15 15" forcelimited="true"/>
  </actuator>{extra}
</mujoco>""")
    return path
