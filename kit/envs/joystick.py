"""Joystick tasks: a legged robot follows the velocity a joystick asks for. What all robots share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
import torch

from kit.envs.joystick_models import CAMERAS, FEET, SITE_BASE
from kit.envs.joystick_worlds import WorldParameters
from kit.envs.task import Task
from kit.sim import Simulator

CONTROL_DT_S = 0.02
ACTION_SCALE_RAD = 0.5
"""A joint's target is its home position plus this much times the action."""
SOFT_LIMITS = 0.95
"""Part of a joint's range that costs nothing."""
PUSH_EVERY_S = (5.0, 10.0)
START_M, START_SPEED = 0.5, 0.5
"""Half widths of the uniform start position, m, and of the six base velocities, m/s and rad/s."""
NOISE = {"linvel_b": 0.1, "gyro_b": 0.2, "down_b": 0.05, "joints": 0.03, "joint_velocities": 1.5}
"""Half width of the uniform noise on what is observed, in its units."""

Rewards = Mapping[str, tuple[float, Callable[[Any], torch.Tensor]]]
"""Name -> weight and term, a function of the task."""


class Joystick(Task):
    """Follow a command (n, 3): velocity forward and to the left, m/s, and turning to the left, rad/s, as the robot
    sees it. It changes during an episode. 50 Hz; 20 s per episode, less if the robot falls.

    The action (n, joints) in [-1, 1] moves joint targets around the home pose; the actuators' own position control
    follows them. The names and weights of the rewards, the noise and the ranges of what is randomised are those that
    MuJoCo Playground documents for its flat-terrain joystick tasks.

    Start states, commands, noise and pushes (every body is given the same extra velocity within one control step)
    vary on every simulator. Friction, masses and joints vary, anew in every episode, where worlds have a model of
    their own: on MuJoCo Warp. In C all worlds share one model, as compiled.

    What a world remembers from step to step is in `_memory`; random numbers come from the env's generator.
    """

    episode_steps = 1000
    cameras = CAMERAS

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
    clocked = False
    """Whether the feet follow a gait clock, which then is seen as a cosine and a sine per foot."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.model = model
        self.substeps = round(CONTROL_DT_S / model.opt.timestep)
        self._sensors = {
            model.sensor(i).name: slice(int(model.sensor_adr[i]), int(model.sensor_adr[i] + model.sensor_dim[i]))
            for i in range(model.nsensor)
        }
        self._feet = sum(name.endswith("_contact") and name.startswith("foot") for name in self._sensors)
        width = 12 + 3 * model.nu + 2 * self._feet * self.clocked
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (model.nu,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        model, n, joints, feet = self.model, sim.n, self.model.nu, self._feet
        self._readings = {name: sim.sensordata[:, columns] for name, columns in self._sensors.items()}
        first, contact = self._sensors["foot0_linvel_w"].start, self._sensors["foot0_contact"].start
        self.feet_velocity_w = sim.sensordata[:, first : first + 3 * feet].unflatten(1, (feet, 3))  # m/s
        self._feet_contact = sim.sensordata[:, contact : contact + 4 * feet].unflatten(1, (feet, 4))  # count, force
        self._base_site = model.site(SITE_BASE).id
        self._foot_sites = self.indices([model.site(FEET.format(foot)).id for foot in range(feet)])
        self._home_qpos = self.constant(model.key("home").qpos)
        self.home = self._home_qpos[7:]
        low, high = self.constant(model.jnt_range[1:]).T
        middle, half = (low + high) / 2, (high - low) / 2
        self.soft_low, self.soft_high = middle - SOFT_LIMITS * half, middle + SOFT_LIMITS * half
        self._noise_scale = self.constant(np.repeat(list(NOISE.values()), (3, 3, 3, joints, joints)))
        self._noise = torch.zeros(n, len(self._noise_scale), dtype=sim.dtype, device=sim.device)
        self._worlds = None if sim.parameter("body_mass") is None else WorldParameters(self)
        self._mass = self.constant(model.body_mass).unsqueeze(0) if self._worlds is None else self._worlds.mass

        def zeros(*shape: int, dtype: torch.dtype = sim.dtype) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=sim.device)

        self.command, self._command_left = zeros(3), zeros()  # _left: seconds until the next
        self._push_left = zeros()
        self.action, self.previous_action = zeros(joints), zeros(joints)
        self.air_time = zeros(feet)  # seconds since the foot was last on the ground
        self._last_contact, self._peak = zeros(feet, dtype=torch.bool), zeros(feet)
        self.phase, self._phase_rate = zeros(feet), zeros(1)  # rad in [-π, π), rad/s
        self._memory = {
            "command": self.command, "command_left": self._command_left, "push_left": self._push_left,
            "action": self.action, "previous_action": self.previous_action, "air_time": self.air_time,
            "last_contact": self._last_contact, "peak": self._peak, "phase": self.phase, "phase_rate": self._phase_rate,
            "noise": self._noise,
        }  # fmt: skip

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self._generator, n, nv = generator, self.sim.n, self.model.nv
        qpos, qvel = self._home_qpos.repeat(n, 1), self._home_qpos.new_zeros(n, nv)
        yaw = self.uniform((n,), -math.pi, math.pi)
        qpos[:, :2] += self.uniform((n, 2), -START_M, START_M)
        qpos[:, 3], qpos[:, 6] = torch.cos(yaw / 2), torch.sin(yaw / 2)
        qpos[:, 7:] *= self.uniform((n, self.model.nu), *self.start_joint_scale)
        qvel[:, :6] = self.uniform((n, 6), -START_SPEED, START_SPEED)

        fresh = {name: torch.zeros_like(value) for name, value in self._memory.items()}
        fresh["command"], fresh["command_left"] = self.first_command(), self.command_duration()
        fresh["push_left"] = self.uniform((n,), *PUSH_EVERY_S)
        fresh["noise"] = self.draw_noise()
        fresh["phase"][:, 1::2] = -math.pi  # half a step apart
        fresh["phase_rate"] = 2 * math.pi * self.uniform((n, 1), 1.25, 1.5)
        for name, value in self._memory.items():
            value.copy_(torch.where(mask.view(-1, *[1] * (value.ndim - 1)), fresh[name], value))
        if self._worlds is not None:
            self._worlds.draw(mask)
        self.sim.reset(mask, qpos=qpos, qvel=qvel, ctrl=qpos[:, 7:])

    def draw_noise(self) -> torch.Tensor:
        """Of what is observed, as wide as the measured part of an observation."""
        return self.uniform(self._noise.shape, -1.0, 1.0) * self._noise_scale

    def act(self, action: torch.Tensor) -> None:
        contact, peak = self.contact, self.swing_peak
        self.air_time.masked_fill_(contact, 0.0).add_(CONTROL_DT_S)
        self._peak.copy_(peak.masked_fill_(contact, 0.0))
        self._last_contact.copy_(contact)
        self.phase.add_(self._phase_rate * CONTROL_DT_S + math.pi).remainder_(2 * math.pi).sub_(math.pi)
        self.previous_action.copy_(self.action)
        self.action.copy_(action)
        self._change_command()
        self._push()
        self._noise.copy_(self.draw_noise())
        self.sim.ctrl.copy_(self.home + ACTION_SCALE_RAD * action)

    def _change_command(self) -> None:
        self._command_left -= CONTROL_DT_S
        due = self._command_left <= 0
        self.command.copy_(torch.where(due.unsqueeze(1), self.next_command(), self.command))
        self._command_left.copy_(torch.where(due, self.command_duration(), self._command_left))

    def _push(self) -> None:
        self._push_left -= CONTROL_DT_S
        due, n = self._push_left <= 0, self.sim.n
        angle, speed = self.uniform((n,), -math.pi, math.pi), self.uniform((n,), *self.push_speed) * due
        change_w = torch.stack([speed * torch.cos(angle), speed * torch.sin(angle)], 1)  # (n, 2), m/s
        self.sim.xfrc_applied[..., :2] = self._mass.unsqueeze(2) * change_w.unsqueeze(1) / CONTROL_DT_S  # F = m Δv/Δt
        self._push_left.copy_(torch.where(due, self.uniform((n,), *PUSH_EVERY_S), self._push_left))

    @abstractmethod
    def first_command(self) -> torch.Tensor:
        """Commands (n, 3) for the start of an episode."""

    @abstractmethod
    def next_command(self) -> torch.Tensor:
        """Commands (n, 3) to change to."""

    @abstractmethod
    def command_duration(self) -> torch.Tensor:
        """Seconds (n,) for which a command stays."""

    def observe(self) -> torch.Tensor:
        measured = torch.cat([
            self.sensor("linvel_b"),  # 3  m/s
            self.sensor("gyro_b"),  # 3  rad/s
            -self.sim.site_xmat[:, self._base_site, 2],  # 3  which way is down
            self.joints - self.home,  # joints  rad
            self.sim.qvel[:, 6:],  # joints  rad/s
        ], dim=1)  # fmt: skip
        return torch.cat([
            measured + self._noise,
            self.action,  # joints  the latest
            self.command,  # 3
            *([torch.cos(self.phase), torch.sin(self.phase)] if self.clocked else []),  # feet, feet
        ], dim=1)  # fmt: skip

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(self.sim.n, dtype=self.sim.dtype, device=self.sim.device)
        for weight, term in self.rewards.values():
            total += weight * term(self)
        return (total * CONTROL_DT_S).clamp(min=self.least_reward)

    def terminated(self) -> torch.Tensor:
        return self.sensor("torso_up_w")[:, 2] < 0.0

    def info(self) -> dict[str, torch.Tensor]:
        moving = (self.command[:, :2] - self.sensor("linvel_b")[:, :2]).norm(dim=1)
        return {"velocity_error": moving, "turning_error": (self.command[:, 2] - self.sensor("gyro_b")[:, 2]).abs()}

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self._memory.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self._memory.items():
            value.copy_(state[name])

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
    def moving(self) -> torch.Tensor:
        """Whether the command asks for any motion, (n,) bool."""
        return self.command.norm(dim=1) > 0.01

    @property
    def contact(self) -> torch.Tensor:
        """Feet on the ground, (n, feet) bool."""
        return self._feet_contact[..., 0] > 0

    @property
    def first_contact(self) -> torch.Tensor:
        """Feet that have come down after more than one step in the air, (n, feet) bool."""
        return (self.air_time > 1.5 * CONTROL_DT_S) & (self.contact | self._last_contact)

    @property
    def feet_force(self) -> torch.Tensor:
        """Force between feet and ground (n, feet, 3), N."""
        return self._feet_contact[..., 1:]

    @property
    def feet_z_w(self) -> torch.Tensor:
        """Height of the feet (n, feet), m."""
        return self.sim.site_xpos[..., 2].index_select(1, self._foot_sites)

    @property
    def swing_peak(self) -> torch.Tensor:
        """Greatest height of each foot since it left the ground (n, feet), m."""
        return torch.maximum(self._peak, self.feet_z_w)

    def indices(self, values: list[int]) -> torch.Tensor:
        """On the device once: a list as an index is sent there each time, and the GPU is waited for."""
        return torch.tensor(values, device=self.sim.device)

    def constant(self, values: object) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=self.sim.dtype, device=self.sim.device)

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> torch.Tensor:
        options = {"generator": self._generator, "dtype": self.sim.dtype, "device": self.sim.device}
        return low + (high - low) * self.draw(torch.rand, shape, **options)
