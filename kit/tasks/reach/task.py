"""Reach: move the hand of a Fetch arm to a goal position."""

from __future__ import annotations

from types import MappingProxyType

import gymnasium
import numpy as np
import torch
from torch.linalg import vecdot

from kit.envs.randomize import ActionDelay, ModelTerm, ObservationNoise
from kit.envs.task import MujocoTask
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.sim import Simulator
from kit.tasks.reach.model import ARM, CAMERAS, FINGER_OPEN_M, FINGERS, GOAL, HAND, REST, build_model, goal_bank

SUCCESS_M = 0.15
"""Distance to the goal below which the task succeeds and the gripper closes automatically."""
PRECISE_M = 0.05
"""Distance to the goal for the metric "within_5cm"."""
CLOSED_M = 0.005
"""Finger position below which the gripper counts as closed; the episode then ends."""
START_NOISE_RAD = 0.1

PROGRESS_PER_M = 5.0
SUCCESS_BONUS = 1.0
PRECISION_BONUS = 1.0
EFFORT_COST = 0.002

HAND_GAIN_PER_S, HAND_SPEED_MPS = 4.0, 0.8
"""Scripted policy: speed of the hand per metre of distance, and its limit."""
DAMPING_M = 0.1
"""Scripted policy: damping of the least squares; larger values move the joints less near singular poses."""

CENTRE_W = (1.15, 0.75, 0.85)
"""Centre of the hand's workspace, m; observed positions are relative to this point."""

SEES = (
    Field("joint angles of the arm", len(ARM), "rad"),
    Field("joint velocities of the arm", len(ARM), "rad/s"),
    Field("position of the hand, from the centre of its workspace", 3, "0.5 m"),
    Field("position of the goal, from the centre of the workspace", 3, "0.5 m"),
    Field("vector from the hand to the goal", 3, "0.25 m"),
    Field("opening of the gripper, 1 open, 0 closed", 1),
)
"""Fields of the observation, in order."""


class Reach(MujocoTask):
    """A Fetch arm moves its hand to a goal position, by 7 joint velocities of up to 1 rad/s at 20 Hz.

    The episode is a success once the hand is within 15 cm of the goal. The gripper then closes automatically, in about
    half a second; during this time the hand can move closer to the goal. The episode ends when the gripper is closed.

    The task has no state besides the physics. The goal is the position of the mocap marker. Once the goal is reached,
    the finger command stays at 0; this marks the goal as reached. The suffix _w marks positions in the world frame.
    """

    name = "Reach"
    substeps = 25
    episode_steps = 100
    cameras = CAMERAS
    shadows = False
    scripts = ("straight",)
    train_steps = 100_000
    random_terms = MappingProxyType({
        "mass": ModelTerm(("body_mass", "body_inertia"), low=0.8, high=1.25, each=True),
        "damping": ModelTerm(("dof_damping",), low=0.5, high=2.0, log=True),
        "gain": ModelTerm(("actuator_gainprm", "actuator_biasprm"), low=0.8, high=1.25, each=True),
        "delay": ActionDelay(low=0, high=1),
        "noise": ObservationNoise(low=-0.01, high=0.01),
    })  # fmt: skip
    task_info = TaskInfo(
        sees={"": SEES},
        does=(Field("joint velocities of the arm", len(ARM), "rad/s"),),
        pays=(
            (PROGRESS_PER_M, "per metre that the hand moves closer to the goal"),
            (SUCCESS_BONUS, f"once, when the hand comes within {100 * SUCCESS_M:.0f} cm of the goal"),
            (
                PRECISION_BONUS,
                "when the gripper has closed: 1 if the hand is exactly at the goal, falling linearly to 0 at "
                f"{100 * SUCCESS_M:.0f} cm",
            ),
            (-EFFORT_COST, "per step, times the sum of squared actions"),
        ),
        ends="the gripper has closed",
        succeeds=f"the hand has come within {100 * SUCCESS_M:.0f} cm of the goal",
    )

    goal_radius_m = 0.03

    def __init__(self) -> None:
        self.model = build_model(self.goal_radius_m)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(ARM),), np.float32)
        self.observation_space: gymnasium.Space = numbers(SEES)

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        model = self.model
        joints = [model.joint(name) for name in (*ARM, *FINGERS)]
        assert [joint.qposadr[0] for joint in joints] == list(range(9)), "qpos must hold the arm's joints, then fingers"
        arm = self._arm = len(ARM)
        # views of the simulator's memory, always current
        self.hand_w = sim.site_xpos[:, model.site(HAND).id]
        self._goal_w = sim.mocap_pos[:, model.body(GOAL).mocapid[0]]
        self._angles, self._velocities, self._finger_m = sim.qpos[:, :arm], sim.qvel[:, :arm], sim.qpos[:, arm]
        self._arm_command, self._finger_command = sim.ctrl[:, :arm], sim.ctrl[:, arm:]
        self._joint_ids = torch.tensor([joint.id for joint in joints[:arm]], device=sim.device)
        self._bank_w = torch.as_tensor(goal_bank(), dtype=sim.dtype, device=sim.device)
        self._rest = torch.as_tensor(REST, dtype=sim.dtype, device=sim.device)
        self._centre_w = torch.as_tensor(CENTRE_W, dtype=sim.dtype, device=sim.device)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim, n = self.sim, self.sim.n
        noise = torch.rand(n, self._arm, generator=generator, dtype=sim.dtype, device=sim.device)
        choice = torch.randint(len(self._bank_w), (n,), generator=generator, device=sim.device)
        qpos = torch.full((n, self.model.nq), FINGER_OPEN_M, dtype=sim.dtype, device=sim.device)
        qpos[:, : self._arm] = self._rest + START_NOISE_RAD * (2 * noise - 1)
        ctrl = torch.full_like(sim.ctrl, FINGER_OPEN_M)
        ctrl[:, : self._arm] = 0.0
        goal_w = self._bank_w[choice].unsqueeze(1)
        sim.reset(mask, qpos=qpos, ctrl=ctrl, mocap_pos=goal_w)

    def act(self, action: torch.Tensor) -> None:
        self._distance_before = self._distance
        self._finger_command.masked_fill_(self._reached.unsqueeze(1), 0.0)
        self._arm_command.copy_(action)

    def measure(self) -> None:
        self._to_goal_w = self._goal_w - self.hand_w
        self._distance = self._to_goal_w.norm(dim=1)
        self._near = self._distance < SUCCESS_M
        self._closing = self._finger_command[:, 0] == 0.0  # the close command has been sent
        self._reached = self._closing | self._near
        self._closed = self._closing & (self._finger_m < CLOSED_M)

    def observe(self) -> torch.Tensor:
        return torch.cat(
            [
                self._angles,
                self._velocities,
                2 * (self.hand_w - self._centre_w),
                2 * (self._goal_w - self._centre_w),
                4 * self._to_goal_w,
                (self._finger_m / FINGER_OPEN_M).unsqueeze(1),
            ],
            dim=1,
        )

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        progress = self._distance_before - self._distance
        entered = self._near & ~self._closing  # `act` sends the close command one step after the hand comes near
        precision = (1 - self._distance / SUCCESS_M).clamp(min=0.0) * self._closed
        self._terms = {
            "progress": PROGRESS_PER_M * progress,
            "success": SUCCESS_BONUS * entered.to(progress.dtype),
            "precision": PRECISION_BONUS * precision,
            "effort": -EFFORT_COST * vecdot(action, action),
        }
        return sum(self._terms.values(), start=torch.zeros_like(progress))

    def terminated(self) -> torch.Tensor:
        return self._closed

    def success(self) -> torch.Tensor:
        return self._reached

    def straight(self) -> torch.Tensor:
        """Scripted policy: move the hand straight to the goal. Returns actions (n, 7)."""
        return self.toward(self._goal_w)

    def toward(self, target_w: torch.Tensor) -> torch.Tensor:
        """Return actions (n, 7) that move the hand in a straight line to `target_w` (n, 3), world frame, m."""
        return joint_speeds_towards(self.sim, self._joint_ids, self.hand_w, target_w)

    def info(self) -> dict[str, torch.Tensor]:
        rewards = {f"reward/{name}": term for name, term in self._terms.items()}
        return {"distance": self._distance, "within_5cm": self._distance < PRECISE_M, **rewards}


def joint_speeds_towards(
    sim: Simulator, joint_ids: torch.Tensor, hand_w: torch.Tensor, target_w: torch.Tensor
) -> torch.Tensor:
    """Return joint velocities (n, joints), rad/s, at most 1, that move a hand in a straight line to its target.

    `joint_ids` (joints,): hinges from the base to the hand. `hand_w` and `target_w` (n, 3): world frame, m. Damped
    least squares (Wampler, 1986): joint velocities J^T (J J^T + damping^2)^-1 v for the hand's velocity v.
    """
    axes_w, anchors_w = sim.xaxis[:, joint_ids], sim.xanchor[:, joint_ids]
    jacobian_t = torch.linalg.cross(axes_w, hand_w.unsqueeze(1) - anchors_w)  # (n, joints, 3)
    to_target_w = target_w - hand_w
    distance = to_target_w.norm(dim=1, keepdim=True).clamp(min=1e-6)
    velocity_w = to_target_w / distance * (HAND_GAIN_PER_S * distance).clamp(max=HAND_SPEED_MPS)
    square = jacobian_t.mT @ jacobian_t + DAMPING_M**2 * torch.eye(3, dtype=target_w.dtype, device=target_w.device)
    # `solve` would wait for a GPU, to check that the matrix can be inverted; with the damping it can
    action = (jacobian_t @ torch.linalg.solve_ex(square, velocity_w.unsqueeze(2))[0]).squeeze(2)
    return action / action.abs().amax(1, keepdim=True).clamp(min=1.0)
