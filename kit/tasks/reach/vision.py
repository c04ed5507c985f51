"""ReachVision: the Reach task with camera images as observations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces

from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs
from kit.envs.task_info import numbers
from kit.errors import UserError
from kit.tasks.reach.model import FINGER_OPEN_M
from kit.tasks.reach.task import SEES, Reach

EYES = ("front", "side", "top")
"""Default cameras of the observation."""
JOINTS = (*SEES[:2], SEES[-1])
"""Fields of the observation entry "joints": joint angles, joint velocities, and gripper."""


class ReachVision(Reach):
    """The Fetch arm of Reach must find its goal, a red ball, in camera images.

    The observation has one entry per camera, uint8 (frames, 3, size, size). With `joints` it also has the entry
    "joints" (15,): joint angles (rad), joint velocities (rad/s) and gripper (1 open, 0 closed). The positions of ball
    and hand are not observed.

    The groups "critic" and "teacher" see only "state" (24,), the observation of Reach. A critic that sees the state
    during training (asymmetric actor-critic, Pinto et al., 2017) needs no convolutions. A policy trained on Reach can
    be the teacher of a vision policy. `critic_state=True` is an older way to write env_options obs_groups=["critic"];
    it names the entry "critic_state".
    """

    name = "ReachVision"
    train_steps = 300_000
    goal_radius_m = 0.06  # the ball is then about 4 of 64 pixels wide
    bare = False

    def __init__(
        self,
        cameras: Sequence[str] = EYES,
        size: int = 64,
        frames: int = 4,
        joints: bool = True,
        critic_state: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(cameras, str) or not cameras or not set(cameras) <= set(self.cameras):
            raise UserError(f"env_options cameras={cameras!r} must be a list of some of {', '.join(self.cameras)}.")
        if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 512:
            raise UserError(f"env_options size={size!r} must be a whole number of pixels from 8 to 512.")
        self.eyes, self.size, self.joints = tuple(cameras), size, joints
        self.state_entry = "critic_state" if critic_state else "state"
        self.frames = dict.fromkeys(self.eyes, frames)
        entries: dict[str, spaces.Space] = dict.fromkeys(self.eyes, spaces.Box(0, 255, (3, size, size), np.uint8))
        if joints:
            entries["joints"] = numbers(JOINTS)
        state = (self.state_entry,)
        self.obs_groups = {POLICY: tuple(entries), CRITIC: state, TEACHER: state}
        self.groups = (POLICY, CRITIC) if critic_state else (POLICY,)
        self.observation_space = spaces.Dict({**entries, self.state_entry: numbers(SEES)})
        self.task_info = Reach.task_info._replace(sees={"joints": JOINTS, self.state_entry: SEES})

    def observe(self) -> Obs:  # type: ignore[override]
        return self._observe(None)

    def observe_first(self, env_ids: torch.Tensor) -> Obs:
        return self._observe(env_ids)

    def _observe(self, env_ids: torch.Tensor | None) -> Obs:
        """Return the observations (k, ...) of the envs `env_ids` (k,); None means all envs."""
        images = self.sim.render(self.eyes, self.size, self.size, worlds=env_ids).movedim(-1, 2)  # (k, eyes, 3, h, w)
        obs: dict[str, Obs] = dict(zip(self.eyes, images.unbind(1), strict=True))
        if self.joints:
            gripper = (self._finger_m / FINGER_OPEN_M).unsqueeze(1)
            obs["joints"] = _rows(torch.cat([self._angles, self._velocities, gripper], dim=1), env_ids)
        if self.state_entry in self.delivered:
            obs[self.state_entry] = _rows(super().observe(), env_ids)
        return obs


def _rows(values: torch.Tensor, env_ids: torch.Tensor | None) -> torch.Tensor:
    return values if env_ids is None else values.index_select(0, env_ids)
