"""Joystick tasks: a legged robot follows the velocity a joystick asks for. What all robots share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
import torch

from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs
from kit.envs.randomize import ActionDelay, ModelTerm
from kit.envs.task import MujocoTask, maybe_any
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.errors import UserError
from kit.sim import Simulator
from kit.tasks.joystick import cameras as views
from kit.tasks.joystick.model import FEET, SITE_BASE

CONTROL_DT_S = 0.02
GRAVITY_MPS2 = 9.81
FORCE_NM = 20.0
"""Unit in which the actuators' forces are seen."""
ACTION_SCALE_RAD = 0.5
"""A joint's target is its home position plus this much times the action."""
SOFT_LIMITS = 0.95
"""Field of a joint's range that costs nothing."""
PUSH_EVERY_S = (5.0, 10.0)
STEPS_PER_S = (1.25, 1.5)
"""Of each foot, by the gait clock."""
START_M, START_SPEED = 0.5, 0.5
"""Half widths of the uniform start position, m, and of the six base velocities, m/s and rad/s."""
BRISK = (1 / 3, 2 / 3)
"""What a robot that is always moving is asked for, as shares of the most speed."""
SUCCESS_MPS = 0.25
"""Mean velocity error of an episode, m/s, below which the robot has followed."""
NOISE = {"linvel_b": 0.1, "gyro_b": 0.2, "down_b": 0.05, "joints": 0.03, "joint_velocities": 1.5}
"""Half width of the uniform noise on what is observed, in its units."""

Rewards = Mapping[str, tuple[float, Callable[[Any], torch.Tensor]]]
"""Name -> weight and term, a function of the task."""


class Joystick(MujocoTask):
    """Follow a command (n, 3): velocity forward and to the left, m/s, and turning to the left, rad/s, as the robot
    sees it. It changes during an episode. 50 Hz; 20 s per episode, less if the robot falls.

    The action (n, joints) in [-1, 1] moves joint targets around the home pose; the actuators' own position control
    follows them. The names and weights of the rewards, the noise and the ranges of what is randomised are those that
    MuJoCo Playground documents for its flat-terrain joystick tasks.

    Critics and teachers may know "privileged" besides: what is observed without its noise, and what only the simulator
    knows (contacts, forces, pushes, friction, mass).

    Start states, commands, noise and pushes (every body is given the same extra velocity within one control step)
    always vary. Friction, masses, joints and the delay of actions vary with env_options `randomize`, see `terms`.

    `always_moving` is a first lesson: every command asks for a brisk pace in some direction. The task's own ask for
    nothing, or for so much that a first step is worth no more than standing, and teach a beginner to stand.

    An episode is a success if the robot does not fall and its velocity along the ground is off by less than 0.25 m/s
    on average. The return is no proof of that: a Go1 that stands still earns 15, and succeeds in one episode of twenty.

    What a world remembers from step to step is in `_memory`, columns of one tensor; random numbers come from the env's
    generator, all of a step at once.
    """

    episode_steps = 1000
    obs_groups = MappingProxyType({
        POLICY: ("state",), CRITIC: ("state", "privileged"), TEACHER: ("state", "privileged"),
    })  # fmt: skip
    groups = (POLICY,)
    score = "success_rate"
    cameras = views.CAMERAS

    scene: views.Scene
    rewards: ClassVar[Rewards]
    """The reward of a step is their weighted sum times its 0.02 seconds."""
    least_reward = -math.inf
    swing_height_m: float
    """How high a foot should rise."""
    air_time_s: tuple[float, float]
    """A step's least time in the air to be paid for, and the most that is paid for."""
    most_foot_force_n = math.inf
    push_speed: tuple[float, float]
    """Least and most speed that a push gives, m/s."""
    start_joint_scale = (1.0, 1.0)
    """An episode starts with the home pose's joint angles scaled by factors from this range."""
    joint_friction_scale: tuple[float, float]
    most_speed: tuple[float, float, float]
    """That is asked for: ahead and to the left, m/s, turning, rad/s."""
    command_chances = 3
    """How many random numbers a new command takes."""
    lessons = ""
    """For its card."""
    clocked = False
    """Whether the feet follow a gait clock, which then is seen as a cosine and a sine per foot."""

    def __init__(self, model: mujoco.MjModel, always_moving: bool) -> None:
        if not isinstance(always_moving, bool):
            raise UserError(f"env_options always_moving={always_moving!r} must be true or false.")
        self._always_moving = always_moving
        self.model = model
        self.random_terms = {  # the ranges that MuJoCo Playground documents; of delay kit's own
            "friction": ModelTerm(("pair_friction",), low=0.4, high=1.0, how="set", rows=_on_the_floor, columns=2),
            "mass": ModelTerm(("body_mass", "body_inertia"), low=0.9, high=1.1, each=True),
            "payload": ModelTerm(("body_mass",), low=-1.0, high=1.0, how="add", rows=_torso),
            "joint_friction": ModelTerm(("dof_frictionloss",), low=self.joint_friction_scale[0],
                                        high=self.joint_friction_scale[1], each=True),
            "armature": ModelTerm(("dof_armature",), low=1.0, high=1.05, each=True),
            "delay": ActionDelay(low=0, high=1),
        }  # fmt: skip
        self.substeps = round(CONTROL_DT_S / model.opt.timestep)
        self._sensors = {
            model.sensor(i).name: slice(int(model.sensor_adr[i]), int(model.sensor_adr[i] + model.sensor_dim[i]))
            for i in range(model.nsensor)
        }
        self._feet = sum(name.endswith("_contact") and name.startswith("foot") for name in self._sensors)
        seen = (
            Field("velocity ahead, to the left, up", 3, "m/s"),
            Field("turning", 3, "rad/s"),
            Field("which way is down", 3),
            Field("joint angles, from home", model.nu, "rad"),
            Field("joint velocities", model.nu, "rad/s"),
            Field("the latest action", model.nu, f"{ACTION_SCALE_RAD} rad"),
            Field("the command: velocity ahead, to the left, turning", 3, "m/s, rad/s"),
            *([Field("gait clock, cosines and sines", 2 * self._feet)] if self.clocked else []),
        )
        known = (
            Field("velocity ahead, to the left, up, without noise", 3, "m/s"),
            Field("turning, without noise", 3, "rad/s"),
            Field("which way is down, without noise", 3),
            Field("joint angles, from home, without noise", model.nu, "rad"),
            Field("joint velocities, without noise", model.nu, "rad/s"),
            Field("height of the base", 1, "m"),
            Field("forces of the actuators", model.nu, f"{FORCE_NM:g} N m"),
            Field("feet on the ground", self._feet),
            Field("time since the foot was on the ground", self._feet, "s"),
            Field("height of the feet", self._feet, "m"),
            Field("velocity of each foot, world frame", 3 * self._feet, "m/s"),
            Field("force between each foot and the ground, world frame, of the robot's weight", 3 * self._feet),
            Field("velocity that a push gives in this step, world frame", 2, "m/s"),
            Field("friction of the feet on the ground", 1),
            Field("mass, of the model's", 1),
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (model.nu,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"state": numbers(seen), "privileged": numbers(known)})
        self.task_info = TaskInfo(
            sees={"state": seen, "privileged": known},
            does=(Field("where joints are to go, from home", model.nu, f"{ACTION_SCALE_RAD} rad"),),
            pays=[(weight, _said(term)) for weight, term in self.rewards.values()],
            ends="the robot falls",
            succeeds=f"it does not fall and is off by less than {SUCCESS_MPS} m/s on average",
            lessons=self.lessons,
        )

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        model, n, joints, feet = self.model, sim.n, self.model.nu, self._feet
        self._readings = {name: sim.sensordata[:, columns] for name, columns in self._sensors.items()}
        first, contact = self._sensors["foot0_linvel_w"].start, self._sensors["foot0_contact"].start
        self.feet_velocity_w = sim.sensordata[:, first : first + 3 * feet].unflatten(1, (feet, 3))  # m/s
        self._feet_contact = sim.sensordata[:, contact : contact + 4 * feet].unflatten(1, (feet, 4))  # count, force
        self._base_site = model.site(SITE_BASE).id
        self._torso = _torso(model)[0]
        self._foot_sites = self.indices([model.site(FEET.format(foot)).id for foot in range(feet)])
        self._home_qpos = self.constant(model.key("home").qpos)
        self.home = self._home_qpos[7:]
        low, high = self.constant(model.jnt_range[1:]).T
        middle, half = (low + high) / 2, (high - low) / 2
        self.soft_low, self.soft_high = middle - SOFT_LIMITS * half, middle + SOFT_LIMITS * half
        most_noise = self.constant(np.repeat(list(NOISE.values()), (3, 3, 3, joints, joints)))
        self._least_noise, self._noise_width = -most_noise, 2 * most_noise
        self._most_speed = self.constant(self.most_speed)
        self._mass = self._parameter("body_mass")
        self._tell_all = "privileged" in self.delivered
        if self._tell_all:
            self.actuator_force = sim.actuator_force  # (n, joints), N m
            self._friction, self._floor_pairs = self._parameter("pair_friction"), self.indices(_on_the_floor(model))
        self._weights = self.constant([weight for weight, _ in self.rewards.values()]) * CONTROL_DT_S

        self._widths = {
            "command": 3, "action": joints, "previous_action": joints, "noise": len(self._noise_width),
            "air_time": feet, "last_contact": feet, "peak": feet, "phase": feet, "phase_rate": 1,
            "errors": 3, "command_left": 1, "push_left": 1,
        }  # fmt: skip
        self._all_memory = torch.zeros(n, sum(self._widths.values()), dtype=sim.dtype, device=sim.device)
        self._memory = memory = self._named(self._all_memory)
        self.command, self.action, self.previous_action = memory["command"], memory["action"], memory["previous_action"]
        self.air_time = memory["air_time"]  # seconds since the foot was last on the ground
        self.phase = memory["phase"]  # rad in [-π, π)
        self._errors = memory["errors"]  # sums over an episode's steps: velocity, m/s; turning, rad/s; 1
        self._timers = self._all_memory[:, -2:]  # seconds until the next command, and until the next push

    def _parameter(self, field: str) -> torch.Tensor:
        """The model's `field` (n, ...) where it is randomised, else (1, ...), one for all."""
        own = any(isinstance(term, ModelTerm) and field in term.fields for term in self.randomized.values())
        return self.sim.parameter(field) if own else self.constant(getattr(self.model, field)).unsqueeze(0)

    def _named(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """The columns of `memory` by name."""
        return dict(zip(self._widths, memory.split(list(self._widths.values()), 1), strict=True))

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self._generator, n, joints = generator, self.sim.n, self.model.nu
        place, yaw, bend, velocity, command, command_left, push_left, noise, phase_rate = self.chances(
            2, 1, joints, 6, self.command_chances, 1, 1, len(self._noise_width), 1
        )
        qpos, qvel = self._home_qpos.repeat(n, 1), self._home_qpos.new_zeros(n, self.model.nv)
        half_yaw = between(yaw[:, 0], -math.pi / 2, math.pi / 2)
        qpos[:, :2] += between(place, -START_M, START_M)
        qpos[:, 3], qpos[:, 6] = torch.cos(half_yaw), torch.sin(half_yaw)
        qpos[:, 7:] *= between(bend, *self.start_joint_scale)
        qvel[:, :6] = between(velocity, -START_SPEED, START_SPEED)

        all_fresh = torch.zeros_like(self._all_memory)
        fresh = self._named(all_fresh)
        fresh["command"][:] = self.moving_command(command) if self._always_moving else self.first_command(command)
        fresh["command_left"][:] = self.command_duration(command_left)
        fresh["push_left"][:] = between(push_left, *PUSH_EVERY_S)
        torch.addcmul(self._least_noise, noise, self._noise_width, out=fresh["noise"])
        fresh["phase_rate"][:] = 2 * math.pi * between(phase_rate, *STEPS_PER_S)
        fresh["phase"][:, 1::2] = -math.pi  # half a step apart
        fresh["phase"].copy_(wrapped(fresh["phase"] - fresh["phase_rate"] * CONTROL_DT_S))  # so, after the first step
        self._all_memory.copy_(torch.where(mask.unsqueeze(1), all_fresh, self._all_memory))
        self.sim.reset(mask, qpos=qpos, qvel=qvel, ctrl=qpos[:, 7:])

    def act(self, action: torch.Tensor) -> None:
        noise, command, command_left, push = self.chances(len(self._noise_width), self.command_chances, 1, 3)
        memory = self._memory
        self.air_time.masked_fill_(self.contact, 0.0).add_(CONTROL_DT_S)
        memory["peak"].copy_(self.swing_peak.masked_fill(self.contact, 0.0))
        memory["last_contact"].copy_(self.contact)
        if self.clocked:
            self.phase.copy_(wrapped(self.phase + memory["phase_rate"] * CONTROL_DT_S))
        self.previous_action.copy_(self.action)
        self.action.copy_(action)
        torch.addcmul(self._least_noise, noise, self._noise_width, out=memory["noise"])
        self.sim.xfrc_applied.zero_()
        due = self._timers.sub_(CONTROL_DT_S) <= 0
        if maybe_any(due):
            self._change_command(due[:, :1], command, command_left)
            self._push(due[:, 1:], push)
        torch.add(self.home, action, alpha=ACTION_SCALE_RAD, out=self.sim.ctrl)

    def advance(self, action: torch.Tensor) -> None:
        super().advance(action)
        velocity = (self.command[:, :2] - self.sensor("linvel_b")[:, :2]).norm(dim=1)
        turning = (self.command[:, 2] - self.sensor("gyro_b")[:, 2]).abs()
        self._errors.add_(torch.stack([velocity, turning, torch.ones_like(turning)], 1))

    def steer(self, command: torch.Tensor) -> None:
        """Ask for `command` (3,) in every world until its episode is over."""
        self.command.copy_(command)
        self._memory["command_left"].fill_(math.inf)

    def _change_command(self, due: torch.Tensor, command: torch.Tensor, left: torch.Tensor) -> None:
        """In the worlds of `due` (n, 1)."""
        changed = self.moving_command(command) if self._always_moving else self.next_command(command)
        self.command.copy_(torch.where(due, changed, self.command))
        timer = self._memory["command_left"]
        timer.copy_(torch.where(due, self.command_duration(left), timer))

    def _push(self, due: torch.Tensor, chance: torch.Tensor) -> None:
        """The robots of the worlds of `due` (n, 1)."""
        angle, speed = between(chance[:, :1], -math.pi, math.pi), between(chance[:, 1:2], *self.push_speed)
        change_w = torch.cat([torch.cos(angle), torch.sin(angle)], 1) * (speed * due)  # (n, 2), m/s
        self.sim.xfrc_applied[..., :2] = self._mass.unsqueeze(2) * change_w.unsqueeze(1) / CONTROL_DT_S  # F = m Δv/Δt
        timer = self._memory["push_left"]
        timer.copy_(torch.where(due, between(chance[:, 2:], *PUSH_EVERY_S), timer))

    def chances(self, *widths: int) -> tuple[torch.Tensor, ...]:
        """Random numbers in [0, 1), (n, width) each, drawn in one go: a step needs many, and each draw takes as long as
        an operation on all of them."""
        options: Any = {"generator": self._generator, "dtype": self.sim.dtype, "device": self.sim.device}
        return torch.rand(self.sim.n, sum(widths), **options).split(list(widths), 1)

    def moving_command(self, chance: torch.Tensor) -> torch.Tensor:
        """Commands (n, 3) of a first lesson: a third to two thirds of the most speed in any direction, turning at up to
        half of the most."""
        angle, share = between(chance[:, 0], -math.pi, math.pi), between(chance[:, 1], *BRISK)
        return torch.stack([share * angle.cos(), share * angle.sin(), chance[:, 2] - 0.5], 1) * self._most_speed

    @abstractmethod
    def first_command(self, chance: torch.Tensor) -> torch.Tensor:
        """Commands (n, 3) for the start of an episode, from `chance` (n, command_chances)."""

    @abstractmethod
    def next_command(self, chance: torch.Tensor) -> torch.Tensor:
        """Commands (n, 3) to change to."""

    @abstractmethod
    def command_duration(self, chance: torch.Tensor) -> torch.Tensor:
        """Seconds for which a command stays, of the shape of `chance`."""

    def measure(self) -> None:
        self.joint_offset = self.joints - self.home  # (n, joints), rad
        self.contact = self._feet_contact[..., 0] > 0
        """Feet on the ground, (n, feet) bool."""
        self.first_contact = (self.air_time > 1.5 * CONTROL_DT_S) & (self.contact | (self._memory["last_contact"] > 0))
        """Feet that have come down after more than one step in the air, (n, feet) bool."""
        self.feet_z_w = self.sim.site_xpos[..., 2].index_select(1, self._foot_sites)
        """Height of the feet (n, feet), m."""
        self.swing_peak = torch.maximum(self._memory["peak"], self.feet_z_w)
        """Greatest height of each foot since it left the ground (n, feet), m."""
        self.moving = self.command.norm(dim=1) > 0.01
        """Whether the command asks for any motion, (n,) bool."""
        self._fallen = self.has_fallen()
        self._mean_errors = self._errors[:, :2] / self._errors[:, 2:].clamp(min=1.0)

    def has_fallen(self) -> torch.Tensor:
        """(n,) bool."""
        return self.sensor("torso_up_w")[:, 2] < 0.0

    def observe(self) -> Obs:
        measured = torch.cat([
            self.sensor("linvel_b"),
            self.sensor("gyro_b"),
            -self.sim.site_xmat[:, self._base_site, 2],
            self.joint_offset,
            self.sim.qvel[:, 6:],
        ], dim=1)  # fmt: skip
        state = torch.cat([
            measured + self._memory["noise"],
            self.action,
            self.command,
            *([torch.cos(self.phase), torch.sin(self.phase)] if self.clocked else []),
        ], dim=1)  # fmt: skip
        return {"state": state, "privileged": self._privileged(measured)} if self._tell_all else {"state": state}

    def _privileged(self, measured: torch.Tensor) -> torch.Tensor:
        """What only the simulator knows (n, privileged), after `measured` without noise (n, 9 + 2 joints)."""
        mass_kg = self._mass.sum(1, keepdim=True)  # (n or 1, 1)
        pushed_mps = self.sim.xfrc_applied[:, self._torso, :2] * CONTROL_DT_S / self._mass[:, self._torso, None]
        return torch.cat([
            measured,
            self.sim.site_xpos[:, self._base_site, 2:],
            self.actuator_force / FORCE_NM,
            self.contact,
            self.air_time,
            self.feet_z_w,
            self.feet_velocity_w.flatten(1),
            self.feet_force_w.flatten(1) / (mass_kg * GRAVITY_MPS2),
            pushed_mps,
            self._friction[..., 0].index_select(1, self._floor_pairs).mean(1, keepdim=True).expand(self.n, 1),
            (mass_kg / float(self.model.body_mass.sum())).expand(self.n, 1),
        ], dim=1)  # fmt: skip

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        self._paid = torch.stack([term(self) for _, term in self.rewards.values()], 1).mul_(self._weights)
        return self._paid.sum(1).clamp_(min=self.least_reward)

    def terminated(self) -> torch.Tensor:
        return self._fallen

    def success(self) -> torch.Tensor:
        return ~self._fallen & (self._mean_errors[:, 0] < SUCCESS_MPS)

    def info(self) -> dict[str, torch.Tensor]:
        """Errors are means over the episode so far, m/s along the ground and rad/s. Terms are what each was worth
        before `least_reward`."""
        velocity, turning = self._mean_errors.unbind(1)
        paid = {f"reward/{name}": term for name, term in zip(self.rewards, self._paid.unbind(1), strict=True)}
        return {"velocity_error": velocity, "turning_error": turning, "falls_per_minute": self._fallen, **paid}

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self._memory.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self._memory.items():
            value.copy_(state[name].view_as(value) if name in state else torch.zeros_like(value))  # 0.1 had no errors

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        poses = views.poses(self.sim, self.scene, self.heading_w, self.command, self.moving)
        return self.sim.render(cameras, height, width, shadows=self.shadows, poses=poses)

    # What the rewards look at, all of leading size n.

    def sensor(self, name: str) -> torch.Tensor:
        return self._readings[name]

    def touching(self, *sensors: str) -> torch.Tensor:
        """Whether any of these contact sensors found one, (n,) bool."""
        return torch.cat([self.sensor(name)[:, :1] for name in sensors], 1).amax(1) > 0

    @property
    def joints(self) -> torch.Tensor:
        """Joint angles (n, joints), rad."""
        return self.sim.qpos[:, 7:]

    @property
    def feet_force_w(self) -> torch.Tensor:
        """Force between feet and ground (n, feet, 3), N."""
        return self._feet_contact[..., 1:]

    @property
    def heading_w(self) -> torch.Tensor:
        """Where the robot faces along the ground, unit vectors (n, 2)."""
        ahead: torch.Tensor = self.sim.site_xmat[:, self._base_site, :2, 0]
        return ahead / ahead.norm(dim=1, keepdim=True).clamp(min=1e-6)

    def indices(self, values: list[int]) -> torch.Tensor:
        """On the device once: a list as an index is sent there each time, and the GPU is waited for."""
        return torch.tensor(values, device=self.sim.device)

    def constant(self, values: object) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=self.sim.dtype, device=self.sim.device)

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> torch.Tensor:
        """(n, ...)"""
        return between(self.chances(math.prod(shape[1:]))[0].view(shape), low, high)


def _on_the_floor(model: mujoco.MjModel) -> list[int]:
    """Contact pairs with the ground."""
    return [i for i in range(model.npair) if model.pair(i).name.endswith("_floor")]


def _torso(model: mujoco.MjModel) -> list[int]:
    return [int(model.site_bodyid[model.site("torso").id])]


def wrapped(angle: torch.Tensor) -> torch.Tensor:
    """The same angle in [-π, π)."""
    return (angle + math.pi).remainder(2 * math.pi) - math.pi


def between(chance: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Uniform in [low, high), from `chance` in [0, 1)."""
    return low + (high - low) * chance


def _said(term: Callable[..., Any]) -> str:
    """What a term is, in words."""
    text = (term.__doc__ or term.__name__.replace("_", " ")).split("\n\n")[0].rstrip(".")
    return text[:1].lower() + text[1:]
