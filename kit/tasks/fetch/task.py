"""Push, PickAndPlace and Slide: goal tasks of a Fetch arm, as in Gymnasium-Robotics (Plappert et al., 2018)."""

from __future__ import annotations

from types import MappingProxyType

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from kit.envs.obs import Obs
from kit.envs.randomize import ActionDelay, ModelTerm, ObservationNoise
from kit.envs.task import MujocoTask
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.errors import UserError
from kit.sim import Simulator
from kit.tasks.fetch.model import CAMERAS, HAND_BODY, HAND_QUAT, MOCAP, OBJECT, SUBSTEPS, build_scene
from kit.tasks.reach.model import ARM, FINGER_OPEN_M, FINGERS, GOAL, HAND
from kit.tasks.reach.task import joint_speeds_towards

SUCCESS_M = 0.05
"""Distance between object and goal below which an episode succeeds."""
STEP_M = 0.05
"""Largest displacement of the hand per step, along each axis."""
CLEAR_M = 0.1
"""Least horizontal distance between object and hand at the start."""
TRIES = 64
"""Number of positions drawn for the object. The first that is far enough from the hand is used.

Slide rejects 79 % of the draws. If it rejects all (one in five million episodes), it takes the first draw."""
LIFTED = 0.5
"""PickAndPlace: share of goals above the table."""
LIFT_M = 0.45
"""PickAndPlace: largest height of a goal above the table."""
PUSH_START_M, HOVER_M, HALF_BLOCK_M = 0.07, 0.08, 0.025
"""Scripted policies: distance behind the object where a push starts, height of free moves above the object, and half
the block's width."""
XY_TOLERANCE_M, PUSH_Z_TOLERANCE_M, GRASP_Z_TOLERANCE_M = 0.02, 0.03, 0.01
"""Scripted policies: largest distance from the planned place, horizontally, and in height for a push and a grasp."""
PUSH_GAIN = 0.5
"""Scripted push: displacement of the hand per distance between object and goal."""
REWARDS, CONTROLS = ("sparse", "dense"), ("hand", "joints")

SEES = MappingProxyType({
    "observation": (
        Field("position of the hand", 3, "m"),
        Field("position of the object", 3, "m"),
        Field("vector from the hand to the object", 3, "m"),
        Field("opening of the fingers", 2, "m"),
        Field("orientation of the object, Euler angles", 3, "rad"),
        Field("velocity of the object, relative to the hand", 3, "m per step"),
        Field("angular velocity of the object", 3, "rad per step"),
        Field("velocity of the hand", 3, "m per step"),
        Field("velocity of the fingers", 2, "m per step"),
    ),
    "achieved_goal": (Field("position of the object", 3, "m"),),
    "desired_goal": (Field("position of the goal", 3, "m"),),
})  # fmt: skip
"""Fields of the observation, in order; world frame."""


class Push(MujocoTask):
    """A Fetch arm pushes a block on a table to a goal position, with closed fingers.

    Observations, actions, rewards, start states and goals are those of Gymnasium-Robotics' FetchPush-v4. Each of the 25
    steps per second moves the hand by up to 5 cm along each axis (world frame): a weld constraint pulls the hand to
    that position. The fourth action opens (1) or closes (-1) the fingers, where the task uses them.

    With `control="joints"` the first seven actions are joint velocities of up to 1 rad/s instead, as in Reach.

    `reward`: "sparse" is -1 per step while the object is more than 5 cm from the goal, else 0; "dense" is minus their
    distance in metres. An episode takes 50 steps and is a success if the object is at the goal in its last step.

    The suffix _w marks positions in the world frame.
    """

    name = "Push"
    substeps = SUBSTEPS
    episode_steps = 50
    cameras = CAMERAS
    shadows = False
    score = "success_rate"
    train_steps = 800_000
    random_terms = MappingProxyType({
        "mass": ModelTerm(("body_mass", "body_inertia"), low=0.8, high=1.25, each=True),
        "friction": ModelTerm(("geom_friction",), low=0.7, high=1.4),
        "delay": ActionDelay(low=0, high=1),
        "noise": ObservationNoise(low=-0.002, high=0.002),
    })  # fmt: skip

    scene: tuple[str, float, tuple[float, float, float], float] = ("push.xml", 0.405, (1.25, 0.53, 0.4), 0.0)
    """Arguments of `build_scene`."""
    object_range_m = 0.15
    """Largest distance of the object from the hand at the start, along each axis."""
    goal_range_m = 0.15
    """Largest distance of the goal from the hand at the start, along each axis."""
    goal_offset_m = 0.0
    """Offset of the goals along x."""
    lifts = False
    """Whether some goals are above the table."""
    verb = "push the block along the table"
    scripts: tuple[str, ...] = ("behind",)

    def __init__(self, reward: str = "sparse", control: str = "hand") -> None:
        for name, value, valid in (("reward", reward, REWARDS), ("control", control, CONTROLS)):
            if value not in valid:
                raise UserError(f"env_options {name}={value!r} must be {' or '.join(valid)}.")
        self.sparse, self.joints = reward == "sparse", control == "joints"
        self.start = build_scene(*self.scene, joints=self.joints)
        self.model = self.start.model
        move = Field("displacement of the hand", 3, f"{STEP_M} m")
        if self.joints:
            move, self.scripts = Field("joint velocities of the arm", len(ARM), "rad/s"), ()
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (move.width + 1,), np.float32)
        self.observation_space = spaces.Dict({name: numbers(fields) for name, fields in SEES.items()})
        self.task_info = TaskInfo(
            sees=SEES,
            does=(move, Field("opening of the fingers", 1)),
            pays=((-1.0, f"per step while the object is more than {100 * SUCCESS_M:.0f} cm from its goal")
                  if self.sparse else (-1.0, "per step and metre between object and goal"),),
            succeeds=f"{self.verb}: in the last step the object is within {100 * SUCCESS_M:.0f} cm of the goal",
        )  # fmt: skip

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        model, tensor = self.model, lambda x: torch.as_tensor(x, dtype=sim.dtype, device=sim.device)
        goal = int(model.body(GOAL).mocapid[0])
        joint = model.joint(f"{OBJECT}:joint")
        qpos, dof = int(joint.qposadr[0]), int(joint.dofadr[0])
        arm = [model.joint(name) for name in ARM]
        assert [j.dofadr[0] for j in arm] == list(range(len(ARM))), "qvel must begin with the arm's joints"
        hand = model.site(HAND).id
        # Views of the simulator's memory, always current:
        self.hand_w, self.object_w = sim.site_xpos[:, hand], sim.site_xpos[:, model.site(OBJECT).id]
        self.goal_w = sim.mocap_pos[:, goal]
        self._object_mat = sim.site_xmat[:, model.site(OBJECT).id].view(sim.n, 3, 3)
        self._object_velocity, self._object_spin = sim.qvel[:, dof : dof + 3], sim.qvel[:, dof + 3 : dof + 6]
        if not self.joints:
            mocap, body = int(model.body(MOCAP).mocapid[0]), model.body(HAND_BODY).id
            self._pull_w, self._pull_quat = sim.mocap_pos[:, mocap], sim.mocap_quat[:, mocap]
            self._body_w, self._body_quat = sim.xpos[:, body], sim.xquat[:, body]
        self._finger_qpos, self._finger_qvel = self._fingers(sim.qpos, "qposadr"), self._fingers(sim.qvel, "dofadr")
        self._arm_qvel = sim.qvel[:, : len(ARM)]
        self._joint_ids = torch.tensor([j.id for j in arm], device=sim.device)
        self._object_qpos, self._goal_mocap = qpos, goal  # indices
        self._start_qpos, self._start_qvel = tensor(self.start.qpos), tensor(self.start.qvel)
        self._up = tensor([0.0, 0.0, 1.0])
        self._start_hand_w, self._hand_quat = tensor(self.start.hand_w), tensor(HAND_QUAT)

    def _fingers(self, values: torch.Tensor, address: str) -> torch.Tensor:
        """Return the fingers' columns of `values` as a view (n, 2); zeros if they cannot move."""
        if self.model.nv == len(ARM) + 6:  # the arm and the object's free joint only
            return values.new_zeros(len(values), len(FINGERS))
        first = int(getattr(self.model.joint(FINGERS[0]), address)[0])
        return values[:, first : first + len(FINGERS)]

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim = self.sim
        u = torch.rand(sim.n, 4, generator=generator, dtype=sim.dtype, device=sim.device)
        qpos = self._start_qpos.repeat(sim.n, 1)
        qpos[:, self._object_qpos : self._object_qpos + 2] = self._start_hand_w[:2] + self._offset(generator)
        goal_w = self._start_hand_w.repeat(sim.n, 1)
        goal_w[:, :2] += self.goal_range_m * (2 * u[:, :2] - 1)
        goal_w[:, 0] += self.goal_offset_m
        goal_w[:, 2] = self.start.object_z
        if self.lifts:
            goal_w[:, 2] += torch.where(u[:, 2] < LIFTED, LIFT_M * u[:, 3], 0.0)
        mocap_pos = sim.mocap_pos.clone()
        mocap_pos[:, self._goal_mocap] = goal_w
        qvel = self._start_qvel.expand(sim.n, -1).contiguous()
        sim.reset(mask, qpos=qpos, qvel=qvel, mocap_pos=mocap_pos)

    def _offset(self, generator: torch.Generator) -> torch.Tensor:
        """Draw offsets (n, 2), m, from the square of `object_range_m`, at least `CLEAR_M` long.

        As in the originals, which draw until an offset is long enough; here `TRIES` draws are made at once.
        """
        u = torch.rand(self.n, TRIES, 2, generator=generator, dtype=self.dtype, device=self.device)
        offsets = self.object_range_m * (2 * u - 1)
        first = (offsets.norm(dim=2) >= CLEAR_M).to(torch.uint8).argmax(1)
        return offsets.take_along_dim(first.view(-1, 1, 1), 1).squeeze(1)

    def act(self, action: torch.Tensor) -> None:
        if self.joints:
            self.sim.ctrl[:, : len(ARM)] = action[:, : len(ARM)]
            self.sim.ctrl[:, len(ARM) :] = FINGER_OPEN_M * (action[:, len(ARM) :] + 1) / 2
            return
        self._pull_w.copy_(self._body_w + STEP_M * action[:, :3])
        self._pull_quat.copy_(self._body_quat + self._hand_quat)  # as in the original; MuJoCo normalises the sum
        if self.model.nu:
            self.sim.ctrl.copy_(self._finger_qpos + action[:, 3:])

    def measure(self) -> None:
        self._distance = (self.object_w - self.goal_w).norm(dim=1)

    def observe(self) -> Obs:
        dt, hand_w, object_w = self.control_dt_s, self.hand_w, self.object_w
        axes_w, anchors_w = self.sim.xaxis[:, self._joint_ids], self.sim.xanchor[:, self._joint_ids]
        jacobian_t = torch.linalg.cross(axes_w, hand_w.unsqueeze(1) - anchors_w)  # (n, 7, 3)
        hand_velocity = (jacobian_t * self._arm_qvel.unsqueeze(2)).sum(1)
        spin_w = (self._object_mat @ self._object_spin.unsqueeze(2)).squeeze(2)  # qvel has it in the object's frame
        observation = torch.cat(
            [
                hand_w, object_w, object_w - hand_w, self._finger_qpos, euler(self._object_mat),
                dt * (self._object_velocity - hand_velocity), dt * spin_w, dt * hand_velocity, dt * self._finger_qvel,
            ],
            dim=1,
        )  # fmt: skip
        return {"achieved_goal": object_w.clone(), "desired_goal": self.goal_w.clone(), "observation": observation}

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.compute_reward(self.object_w, self.goal_w)

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        distance = (achieved_goal - desired_goal).norm(dim=1)
        return (distance <= SUCCESS_M).to(distance.dtype) - 1 if self.sparse else -distance

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool, device=self.device)

    def success(self) -> torch.Tensor:
        return self._distance < SUCCESS_M

    def behind(self) -> torch.Tensor:
        """Scripted policy: move behind the object, then push it straight to the goal. Returns actions (n, 4)."""
        to_goal = self._flat(self.goal_w - self.object_w)
        left = to_goal.norm(dim=1, keepdim=True)
        ahead = to_goal / left.clamp(min=1e-6)
        hand = self._flat(self.hand_w - self.object_w)
        along = (hand * ahead).sum(1, keepdim=True)
        aside = hand - along * ahead
        on_line = aside.norm(dim=1, keepdim=True) < XY_TOLERANCE_M
        is_behind = on_line & (along < 0) & (self._height < PUSH_Z_TOLERANCE_M)
        start = self.object_w - PUSH_START_M * ahead
        near = self._flat(start - self.hand_w).norm(dim=1, keepdim=True) < XY_TOLERANCE_M
        start = start + torch.where(near, 0.0, HOVER_M) * self._up
        done = left < SUCCESS_M / 2
        target_w = torch.where(is_behind, self.hand_w + PUSH_GAIN * left * ahead - 2 * aside, start)
        return self.toward(torch.where(done, self.hand_w, target_w))

    @property
    def _height(self) -> torch.Tensor:
        """Height of the hand above the object, m, (n, 1)."""
        return (self.hand_w - self.object_w)[:, 2:]

    def _flat(self, vector: torch.Tensor) -> torch.Tensor:
        """Return `vector` (n, 3) with a height of 0."""
        return vector * (1 - self._up)

    def toward(self, target_w: torch.Tensor, fingers: torch.Tensor | float = -1.0) -> torch.Tensor:
        """Return actions (n, 4 or 8) that move the hand to `target_w` (n, 3). `fingers` (n, 1): 1 open, -1 close."""
        if self.joints:
            move = joint_speeds_towards(self.sim, self._joint_ids, self.hand_w, target_w)
        else:
            move = ((target_w - self.hand_w) / STEP_M).clamp(-1, 1)
        return torch.cat([move, torch.ones_like(move[:, :1]) * fingers], dim=1)

    def info(self) -> dict[str, torch.Tensor]:
        return {"distance": self._distance}


class PickAndPlace(Push):
    """A Fetch arm carries a block to a goal position, half of the time in the air; as FetchPickAndPlace-v4."""

    name = "PickAndPlace"
    train_steps = 100_000
    scene = ("pick_and_place.xml", 0.405, (1.25, 0.53, 0.4), 0.2)
    lifts = True
    verb = "carry the block"
    scripts = ("grasp",)

    def grasp(self) -> torch.Tensor:
        """Scripted policy: lower the open hand onto the object, close it, carry the object to the goal."""
        off = self.object_w - self.hand_w
        aside, above = self._flat(off).norm(dim=1, keepdim=True), -off[:, 2:]
        over = self.object_w + torch.where(aside < XY_TOLERANCE_M, 0.0, HOVER_M) * self._up
        inside = (aside < XY_TOLERANCE_M) & (above.abs() < GRASP_Z_TOLERANCE_M)
        closed = self._finger_qpos.sum(1, keepdim=True) < 2 * HALF_BLOCK_M + GRASP_Z_TOLERANCE_M / 2
        return self.toward(
            torch.where(inside & closed, self.hand_w + self.goal_w - self.object_w, over),
            torch.where(inside, -1.0, 1.0),
        )


class Slide(Push):
    """A Fetch arm hits a puck, which slides to a goal position out of the arm's reach; as FetchSlide-v4."""

    name = "Slide"
    train_steps = 3_000_000
    scene = ("slide.xml", 0.05, (1.7, 1.1, 0.41), -0.02)
    object_range_m = 0.1
    goal_range_m = 0.3
    goal_offset_m = 0.4
    verb = "hit the puck, which slides"
    scripts = ()


def euler(mat: torch.Tensor) -> torch.Tensor:
    """Return the Euler angles (n, 3), rad, of rotation matrices (n, 3, 3), as Gymnasium-Robotics' `mat2euler`.

    The originals treat gimbal lock, a second angle of exactly ±90°, separately; this function does not.
    """
    y = torch.atan2(mat[:, 0, 2], torch.hypot(mat[:, 2, 2], mat[:, 1, 2]))
    return torch.stack([torch.atan2(-mat[:, 1, 2], mat[:, 2, 2]), y, torch.atan2(-mat[:, 0, 1], mat[:, 0, 0])], dim=1)
