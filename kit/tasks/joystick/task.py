"""Base class of the joystick tasks: a legged robot tracks a commanded velocity."""

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

from kit.envs.curriculum import Curriculum
from kit.envs.mirror import ROTATION, SCALAR, VECTOR, Mirror, Part, flip, robot_partners
from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs, maybe_any
from kit.envs.randomize import ActionDelay, ModelTerm
from kit.envs.task import MujocoTask
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.errors import UserError, check_names
from kit.sim import Simulator
from kit.tasks.joystick import cameras as views
from kit.tasks.joystick.model import FEET, SITE_BASE

CONTROL_DT_S = 0.02
GRAVITY_MPS2 = 9.81
FORCE_NM = 20.0
"""Unit of the observed actuator forces."""
ACTION_SCALE_RAD = 0.5
"""Joint target = home position + ACTION_SCALE_RAD * action."""
SOFT_LIMITS = 0.95
"""Soft joint limits, as a fraction of the joint's range; only angles beyond them are penalised."""
PUSH_EVERY_S = (5.0, 10.0)
"""Range of the time between two pushes of the robot."""
STEPS_PER_S = (1.25, 1.5)
"""Range of the gait clock's frequency: steps of each foot per second."""
START_M = 0.5
"""Start of an episode: x and y are uniform in ±START_M."""
BRISK = (1 / 3, 2 / 3)
"""Range of the commanded speed with `always_moving`, as a fraction of `most_speed`."""
SUCCESS_MPS = 0.25
"""An episode is a success if its mean velocity error, m/s, is smaller."""
NOISE = {"linvel_b": 0.1, "gyro_b": 0.2, "down_b": 0.05, "joints": 0.03, "joint_velocities": 1.5}
"""Observation noise is uniform in ± these values, in the units of the observation."""

LESSONS = "commands of medium speed first; all commands once the robot follows these"

Rewards = Mapping[str, tuple[float, Callable[[Any], torch.Tensor]]]
"""Reward name -> (weight, term). A term is a function: task -> values (n,)."""


class Joystick(MujocoTask):
    """Track a velocity command (n, 3) with a legged robot: forward and left, m/s, and turning to the left, rad/s.

    The command is in the robot's frame and changes during an episode. Control runs at 50 Hz. An episode lasts 20 s, or
    ends when the robot falls.

    The action (n, joints) in [-1, 1] sets joint targets around the home pose. Names and weights of the rewards, noise
    and ranges of randomisation are those that MuJoCo Playground documents for its flat-terrain joystick tasks.

    The observation groups "critic" and "teacher" also have the entry "privileged": the measurements without noise, and
    simulator state (contacts, forces, pushes, friction, mass).

    Start states, commands, noise and pushes are always random. Friction, masses, joint properties and action delay are
    random only with env_options `randomize`.

    Training starts with easier commands, the first stage of a curriculum (`kit.envs.curriculum`): each is a medium
    speed in a random direction. Many of the task's own commands are zero or a high speed, and an untrained policy would
    learn to stand still. `always_moving=True` keeps the easier commands, also in evaluations.

    `weights` replaces weights of reward terms by name, such as {"feet_clearance": 0.0}; 0 switches a term off.

    An episode is a success if the robot does not fall and the mean error of its velocity along the ground is less than
    0.25 m/s. A Go1 that stands still earns a return of 15 and succeeds in one episode of twenty.
    """

    episode_steps = 1000
    obs_groups = MappingProxyType({
        POLICY: ("state",), CRITIC: ("state", "privileged"), TEACHER: ("state", "privileged"),
    })  # fmt: skip
    groups = (POLICY,)
    score = "success_rate"
    cameras = views.CAMERAS
    curriculum: Curriculum | None = Curriculum(stages=2, at_least=0.5)

    scene: views.Scene
    rewards: ClassVar[Rewards]
    """Reward terms. The reward of a step is their weighted sum times the step's 0.02 s."""
    least_reward = -math.inf
    """Lower bound of the reward of a step."""
    swing_height_m: float
    """Target height of a foot in the middle of its swing."""
    air_time_s: tuple[float, float]
    """(low, high) of `feet_air_time`: a foot that touches down earns min(air time, high) minus low."""
    most_foot_force_n = math.inf
    """Vertical force on a foot, N; `contact_force` penalises only the part above it."""
    push_speed: tuple[float, float]
    """Range of the velocity that a push adds, m/s."""
    start_speed = 0.5
    """At the start of an episode the base's six velocities, in m/s and rad/s, are uniform in ± this value."""
    start_joint_scale = (1.0, 1.0)
    """Range of random factors on the home pose's joint angles at the start of an episode."""
    joint_friction_scale: tuple[float, float]
    """Range of the randomisation term "joint_friction"."""
    most_speed: tuple[float, float, float]
    """Greatest commanded velocity: forward and left, m/s; turning, rad/s."""
    command_chances = 3
    """Number of random numbers from which a command is drawn."""
    ends = "the robot falls"
    """Condition that ends an episode, for `TaskInfo.ends`."""
    clocked = False
    """Whether a gait clock tells each foot when to step. The clock is observed as a cosine and a sine per foot."""

    def __init__(self, model: mujoco.MjModel, always_moving: bool, weights: Mapping[str, float] | None = None) -> None:
        if not isinstance(always_moving, bool):
            raise UserError(f"env_options always_moving={always_moving!r} must be true or false.")
        self._always_moving = always_moving
        if always_moving:
            self.curriculum = None
        self.terms = reweighted(self.rewards, {} if weights is None else weights)
        self.model = model
        self.random_terms = {  # documented by MuJoCo Playground, except for "motor_gains" and "delay"
            "friction": ModelTerm(("pair_friction",), low=0.4, high=1.0, how="set", rows=_floor_pairs, columns=2),
            "mass": ModelTerm(("body_mass", "body_inertia"), low=0.9, high=1.1, each=True),
            "payload": ModelTerm(("body_mass",), low=-1.0, high=1.0, how="add", rows=_torso),
            "joint_friction": ModelTerm(("dof_frictionloss",), low=self.joint_friction_scale[0],
                                        high=self.joint_friction_scale[1], each=True),
            "armature": ModelTerm(("dof_armature",), low=1.0, high=1.05, each=True),
            "motor_gains": ModelTerm(("actuator_gainprm", "actuator_biasprm"), low=0.8, high=1.2, each=True),
            "delay": ActionDelay(low=0, high=1),
        }  # fmt: skip
        self.substeps = round(CONTROL_DT_S / model.opt.timestep)
        self._sensors = {
            model.sensor(i).name: slice(int(model.sensor_adr[i]), int(model.sensor_adr[i] + model.sensor_dim[i]))
            for i in range(model.nsensor)
        }
        self._feet = sum(name.endswith("_contact") and name.startswith("foot") for name in self._sensors)
        self.mirror = self._mirror()
        measured = (
            Field("velocity ahead, to the left, up", 3, "m/s"),
            Field("angular velocity", 3, "rad/s"),
            Field("direction of gravity in the robot's frame", 3),
            Field("joint angles, relative to the home pose", model.nu, "rad"),
            Field("joint velocities", model.nu, "rad/s"),
        )
        seen = (
            *measured,
            Field("the latest action", model.nu, f"{ACTION_SCALE_RAD} rad"),
            Field("the command: velocity ahead, to the left, turning", 3, "m/s, rad/s"),
            *([Field("gait clock, cosines and sines", 2 * self._feet)] if self.clocked else []),
        )
        privileged = (
            *(field._replace(what=f"{field.what}, without noise") for field in measured),
            Field("height of the base", 1, "m"),
            Field("forces of the actuators", model.nu, f"{FORCE_NM:g} N m"),
            Field("feet on the ground", self._feet),
            Field("time since the foot was on the ground", self._feet, "s"),
            Field("height of the feet", self._feet, "m"),
            Field("velocity of each foot, world frame", 3 * self._feet, "m/s"),
            Field("force between each foot and the ground, world frame, divided by the robot's weight", 3 * self._feet),
            Field("velocity added by a push in this step, world frame", 2, "m/s"),
            Field("friction of the feet on the ground", 1),
            Field("mass, divided by the nominal mass", 1),
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (model.nu,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"state": numbers(seen), "privileged": numbers(privileged)})
        self.task_info = TaskInfo(
            sees={"state": seen, "privileged": privileged},
            does=(Field("joint targets, relative to the home pose", model.nu, f"{ACTION_SCALE_RAD} rad"),),
            pays=[
                *((weight, f"per second, {name}: {_first_line(term)}") for name, (weight, term) in self.terms.items()),
                *([(0.0, "A step whose terms sum to less than 0 pays 0.")] if self.least_reward == 0 else []),
            ],
            ends=self.ends,
            succeeds=f"the robot does not fall and its mean velocity error is less than {SUCCESS_MPS} m/s",
            lessons=LESSONS if self.curriculum else "",
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
        # MuJoCo gives joints without limits the range (0, 0). Not infinite, because the middle is computed below.
        ranges = np.where(model.jnt_limited[1:, None], model.jnt_range[1:], (-1e6, 1e6))
        low, high = self.constant(ranges).T
        middle, half = (low + high) / 2, (high - low) / 2
        self.soft_low, self.soft_high = middle - SOFT_LIMITS * half, middle + SOFT_LIMITS * half
        most_noise = self.constant(np.repeat(list(NOISE.values()), (3, 3, 3, joints, joints)))
        self._least_noise, self._noise_width = -most_noise, 2 * most_noise
        self._most_speed = self.constant(self.most_speed)
        self._mass = self._parameter("body_mass")
        self._delivers_privileged = "privileged" in self.delivered
        if self._delivers_privileged:
            self.actuator_force = sim.actuator_force  # (n, joints), N m
            self._friction, self._floor_pair_ids = self._parameter("pair_friction"), self.indices(_floor_pairs(model))
        self._weights = self.constant([weight for weight, _ in self.terms.values()]) * CONTROL_DT_S

        self._widths = {
            "command": 3, "action": joints, "previous_action": joints, "noise": len(self._noise_width),
            "air_time": feet, "last_contact": feet, "peak": feet, "phase": feet, "phase_rate": 1,
            "errors": 3, "command_left": 1, "push_left": 1,
        }  # fmt: skip
        # the task's state between steps: columns of one tensor
        self._all_memory = torch.zeros(n, sum(self._widths.values()), dtype=sim.dtype, device=sim.device)
        self._memory = memory = self._named(self._all_memory)
        self.command, self.action, self.previous_action = memory["command"], memory["action"], memory["previous_action"]
        self.air_time = memory["air_time"]  # seconds since the foot was last on the ground
        self.phase = memory["phase"]  # rad in [-π, π)
        self._errors = memory["errors"]  # sums over an episode: velocity error, turning error, number of steps
        self._timers = self._all_memory[:, -2:]  # seconds until the next command, and until the next push

    def _mirror(self) -> Mirror | None:
        """Return the mirror images of observation and action; None for a robot without left and right."""
        found = robot_partners(self.model, "home", [FEET.format(i) for i in range(self._feet)])
        if found is None:
            return None
        joints, feet = found
        of_feet: Part = ([3 * foot + i for foot in feet[0] for i in range(3)], VECTOR[1] * self._feet)
        measured = (VECTOR, ROTATION, VECTOR, joints, joints)
        command: Part = (VECTOR[0], (1.0, -1.0, -1.0))
        clock = (feet, feet) if self.clocked else ()
        push: Part = ((0, 1), (1.0, -1.0))
        privileged = (*measured, SCALAR, joints, feet, feet, feet, of_feet, of_feet, push, SCALAR, SCALAR)
        return Mirror(
            {"state": flip(*measured, joints, command, *clock), "privileged": flip(*privileged)}, flip(joints)
        )

    def _parameter(self, field: str) -> torch.Tensor:
        """Return a field of the model: (n, ...) if the field is randomised, else (1, ...)."""
        varies = any(isinstance(term, ModelTerm) and field in term.fields for term in self.randomized.values())
        return self.sim.parameter(field) if varies else self.constant(getattr(self.model, field)).unsqueeze(0)

    def _named(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return name -> columns of `memory`, as views."""
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
        qvel[:, :6] = between(velocity, -self.start_speed, self.start_speed)

        all_fresh = torch.zeros_like(self._all_memory)
        fresh = self._named(all_fresh)
        fresh["command"][:] = self._in_stage(self.first_command, command)
        fresh["command_left"][:] = self.command_duration(command_left)
        fresh["push_left"][:] = between(push_left, *PUSH_EVERY_S)
        torch.addcmul(self._least_noise, noise, self._noise_width, out=fresh["noise"])
        fresh["phase_rate"][:] = 2 * math.pi * between(phase_rate, *STEPS_PER_S)
        fresh["phase"][:, 1::2] = -math.pi  # left and right feet are half a cycle apart
        fresh["phase"].copy_(wrapped(fresh["phase"] - fresh["phase_rate"] * CONTROL_DT_S))  # `act` adds one step
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
        """Set `command` (3,) in every env, until the env's episode ends."""
        self.command.copy_(command)
        self._memory["command_left"].fill_(math.inf)

    def _change_command(self, due: torch.Tensor, command: torch.Tensor, left: torch.Tensor) -> None:
        """Draw a new command in the envs where `due` (n, 1) bool is True."""
        changed = self._in_stage(self.next_command, command)
        self.command.copy_(torch.where(due, changed, self.command))
        timer = self._memory["command_left"]
        timer.copy_(torch.where(due, self.command_duration(left), timer))

    def _push(self, due: torch.Tensor, chance: torch.Tensor) -> None:
        """Push the robots where `due` (n, 1) bool is True."""
        angle, speed = between(chance[:, :1], -math.pi, math.pi), between(chance[:, 1:2], *self.push_speed)
        change_w = torch.cat([torch.cos(angle), torch.sin(angle)], 1) * (speed * due)  # (n, 2), m/s
        self.sim.xfrc_applied[..., :2] = self._mass.unsqueeze(2) * change_w.unsqueeze(1) / CONTROL_DT_S  # F = m Δv/Δt
        timer = self._memory["push_left"]
        timer.copy_(torch.where(due, between(chance[:, 2:], *PUSH_EVERY_S), timer))

    def chances(self, *widths: int) -> tuple[torch.Tensor, ...]:
        """Return random numbers in [0, 1), (n, width) for each of `widths`, from a single draw, which is faster."""
        options: Any = {"generator": self._generator, "dtype": self.sim.dtype, "device": self.sim.device}
        return torch.rand(self.sim.n, sum(widths), **options).split(list(widths), 1)

    def _in_stage(self, draw: Callable[[torch.Tensor], torch.Tensor], chance: torch.Tensor) -> torch.Tensor:
        """Return commands (n, 3) of the current stage; `draw` returns those of the final stage."""
        if self._always_moving:
            return self.moving_command(chance)
        if self.curriculum is None:
            return draw(chance)
        return torch.where(self.stage == 0, self.moving_command(chance), draw(chance))

    def moving_command(self, chance: torch.Tensor) -> torch.Tensor:
        """Return commands (n, 3) for `always_moving`.

        The speed is 1/3 to 2/3 of `most_speed`, in any direction; the turning speed is up to half of the greatest.
        """
        angle, share = between(chance[:, 0], -math.pi, math.pi), between(chance[:, 1], *BRISK)
        return torch.stack([share * angle.cos(), share * angle.sin(), chance[:, 2] - 0.5], 1) * self._most_speed

    @abstractmethod
    def first_command(self, chance: torch.Tensor) -> torch.Tensor:
        """Return commands (n, 3) for the start of an episode, from random numbers `chance` (n, command_chances)."""

    @abstractmethod
    def next_command(self, chance: torch.Tensor) -> torch.Tensor:
        """Return commands (n, 3) that replace the current ones, from random numbers `chance` (n, command_chances)."""

    @abstractmethod
    def command_duration(self, chance: torch.Tensor) -> torch.Tensor:
        """Return the time until the next command, s, from random numbers `chance`, in the shape of `chance`."""

    def measure(self) -> None:
        self.joint_offset = self.joints - self.home  # (n, joints), rad
        self.contact = self._feet_contact[..., 0] > 0
        """Whether each foot is on the ground, (n, feet) bool."""
        self.first_contact = (self.air_time > 1.5 * CONTROL_DT_S) & (self.contact | (self._memory["last_contact"] > 0))
        """Whether each foot touched down in this step after more than one env step in the air, (n, feet) bool."""
        self.feet_z_w = self.sim.site_xpos[..., 2].index_select(1, self._foot_sites)
        """Height of the feet (n, feet), m."""
        self.swing_peak = torch.maximum(self._memory["peak"], self.feet_z_w)
        """Greatest height of each foot since it left the ground, (n, feet), m."""
        self.moving = self.command.norm(dim=1) > 0.01
        """Whether the command is not zero, (n,) bool."""
        self._fallen = self.has_fallen()
        self._mean_errors = self._errors[:, :2] / self._errors[:, 2:].clamp(min=1.0)

    def has_fallen(self) -> torch.Tensor:
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
        if self._delivers_privileged:
            return {"state": state, "privileged": self._privileged(measured)}
        return {"state": state}

    def _privileged(self, measured: torch.Tensor) -> torch.Tensor:
        """Return the privileged observation: `measured` (n, 9 + 2 joints) without noise, then simulator state."""
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
            self._friction[..., 0].index_select(1, self._floor_pair_ids).mean(1, keepdim=True).expand(self.n, 1),
            (mass_kg / float(self.model.body_mass.sum())).expand(self.n, 1),
        ], dim=1)  # fmt: skip

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        self._paid = torch.stack([term(self) for _, term in self.terms.values()], 1).mul_(self._weights)
        return self._paid.sum(1).clamp_(min=self.least_reward)

    def terminated(self) -> torch.Tensor:
        return self._fallen

    def success(self) -> torch.Tensor:
        return ~self._fallen & (self._mean_errors[:, 0] < SUCCESS_MPS)

    def info(self) -> dict[str, torch.Tensor]:
        """Return the episode's mean errors so far (velocity, m/s; turning, rad/s), falls, and reward terms."""
        velocity, turning = self._mean_errors.unbind(1)
        paid = {f"reward/{name}": term for name, term in zip(self.terms, self._paid.unbind(1), strict=True)}
        return {"velocity_error": velocity, "turning_error": turning, "falls_per_minute": self._fallen, **paid}

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self._memory.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self._memory.items():
            # Snapshots of kit 0.1 have no "errors".
            value.copy_(state[name].view_as(value) if name in state else torch.zeros_like(value))

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        poses = views.poses(self.sim, self.scene, self.heading_w, self.command, self.moving)
        return self.sim.render(cameras, height, width, shadows=self.shadows, poses=poses)

    # Inputs of the reward terms; the first dimension is n.

    def sensor(self, name: str) -> torch.Tensor:
        return self._readings[name]

    def touching(self, *sensors: str) -> torch.Tensor:
        """Return (n,) bool: True if any of these contact sensors reports a contact."""
        return torch.cat([self.sensor(name)[:, :1] for name in sensors], 1).amax(1) > 0

    @property
    def joints(self) -> torch.Tensor:
        """Joint angles (n, joints), rad."""
        return self.sim.qpos[:, 7:]

    @property
    def feet_force_w(self) -> torch.Tensor:
        """Force between each foot and the ground, (n, feet, 3), N."""
        return self._feet_contact[..., 1:]

    @property
    def heading_w(self) -> torch.Tensor:
        """Horizontal direction that the robot faces, unit vectors (n, 2)."""
        ahead: torch.Tensor = self.sim.site_xmat[:, self._base_site, :2, 0]
        return ahead / ahead.norm(dim=1, keepdim=True).clamp(min=1e-6)

    def indices(self, values: list[int]) -> torch.Tensor:
        """Return an index tensor on the device. Indexing with a list would synchronise with the GPU at every use."""
        return torch.tensor(values, device=self.sim.device)

    def constant(self, values: object) -> torch.Tensor:
        """Return `values` as a tensor on the device, with the simulator's dtype."""
        return torch.as_tensor(np.asarray(values), dtype=self.sim.dtype, device=self.sim.device)


def _floor_pairs(model: mujoco.MjModel) -> list[int]:
    """Return the ids of the contact pairs with the ground."""
    return [i for i in range(model.npair) if model.pair(i).name.endswith("_floor")]


def _torso(model: mujoco.MjModel) -> list[int]:
    return [int(model.site_bodyid[model.site("torso").id])]


def reweighted(rewards: Rewards, weights: Mapping[str, float]) -> Rewards:
    """Return `rewards` with the weights in `weights` (name -> number). Raises `UserError` for an unknown name."""
    if not isinstance(weights, Mapping):
        raise UserError(f"env_options weights={weights!r} must map names of reward terms to numbers.")
    check_names("env_options weights", weights, "the task", rewards)
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UserError(f"env_options weights {name}={weight!r} must be a number.")
    return {name: (float(weights.get(name, weight)), term) for name, (weight, term) in rewards.items()}


def wrapped(angle: torch.Tensor) -> torch.Tensor:
    """Wrap `angle`, rad, to [-π, π)."""
    return (angle + math.pi).remainder(2 * math.pi) - math.pi


def between(chance: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Scale uniform numbers `chance` from [0, 1) to [low, high)."""
    return low + (high - low) * chance


def _first_line(term: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring, with a small first letter and without the full stop."""
    text = (term.__doc__ or term.__name__.replace("_", " ")).split("\n\n")[0].rstrip(".")
    return text[:1].lower() + text[1:]
