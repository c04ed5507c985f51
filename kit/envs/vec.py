"""The tensor-native vector env of a `Task`: all inputs and outputs are tensors on the task's device."""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import torch
from gymnasium import spaces

from kit.envs import curriculum
from kit.envs.contract import BatchEnv, Info, Step
from kit.envs.curriculum import Curriculum, Stages
from kit.envs.divergence import Divergence, Recorder
from kit.envs.frames import FrameStacks
from kit.envs.groups import delivered_obs
from kit.envs.mirror import Mirror
from kit.envs.obs import POLICY, Obs, maybe_any, pick, prefixed, select, tree_map, with_prefix
from kit.envs.outputs import SPACES, TIMES, check_declared, check_first_obs, check_first_step
from kit.envs.randomize import OPTION, Randomizer
from kit.envs.task import MujocoTask, Task
from kit.envs.task_info import TaskInfo
from kit.errors import UserError


class TensorEnv(BatchEnv):
    """A vector env of `num_envs` envs of `task`."""

    def __init__(
        self,
        task: Task,
        num_envs: int,
        device: str | torch.device = "cpu",
        seed: int = 0,
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        autoreset: bool = True,
    ) -> None:
        """`dtype` is the type of floating-point observations and of rewards. Without `autoreset`, finished envs are not
        reset."""
        if not hasattr(task, "name"):
            task.name = type(task).__name__
        check_declared(task, SPACES)
        delivered = delivered_obs(task)
        task.build(num_envs, device, threads)
        check_declared(task, TIMES)
        self.task, self.num_envs, self.device, self.dtype = task, num_envs, task.device, dtype
        self.autoreset = autoreset
        self.cameras, self.episode_steps = task.cameras, task.episode_steps
        self.control_dt_s, self.video_speed = task.control_dt_s, task.video_speed
        self.score = task.score
        self.observation_space, self.frames, self.obs_groups, self._entries = delivered
        self._stacks = FrameStacks(self.frames)
        if task.mirror is not None:
            self.mirror = _delivered(task.mirror, self.observation_space, self._entries, self.device)
        self.action_space = task.action_space
        self._bounds: tuple[torch.Tensor, torch.Tensor] | None = None
        if isinstance(self.action_space, spaces.Box):
            low, high = torch.as_tensor(self.action_space.low), torch.as_tensor(self.action_space.high)
            self._bounds = low.to(self.device, task.dtype), high.to(self.device, task.dtype)
        self._all_envs = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self._return = torch.zeros(num_envs, dtype=task.dtype, device=self.device)
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._limit: torch.Tensor | None = None
        """(n,) random, shorter time limits of the first episodes, set by `start_training` if `Task.staggered`."""
        self._stages: Stages | None = None
        """Set by `start_training`; None: the task stays in the last stage of its curriculum."""
        if declared := task.curriculum or task.switched_off or type(task).curriculum:
            task.stage = torch.tensor(declared.stages - 1, device=self.device)
            self.stage = task.stage + self._extra_stages
        self._generator = torch.Generator(self.device)
        self._is_checked = False
        self._recorder: Recorder | None = None
        """Set by `start_training`, for tasks with MuJoCo physics."""
        self.randomizer: Randomizer | None = None
        if task.randomized:
            sim = task.sim if isinstance(task, MujocoTask) else None
            is_on = None if task.curriculum is None else self._in_last_stage
            self.randomizer = Randomizer(task.randomized, num_envs, task.control_dt_s, sim, self.device, is_on)
        self.reset(seed)

    @property
    def task_info(self) -> TaskInfo:
        """The task's info. If the env delivers one entry without a Dict, `TaskInfo.sees` has only that entry, as "".

        For one release, the task's attribute may also have its former name, `card`.
        """
        info, entries = getattr(self.task, "card", self.task.task_info), self._entries or ()
        bare = len(entries) == 1 and not isinstance(self.observation_space, spaces.Dict)
        return info._replace(sees={"": info.sees.get(entries[0], ())}) if bare else info

    @property
    def physics(self) -> tuple[mujoco.MjModel, int] | None:  # type: ignore[override]
        return (self.task.model, self.task.substeps) if isinstance(self.task, MujocoTask) else None

    def reset(self, seed: int | None = None) -> Obs:
        if seed is not None:
            self._generator.manual_seed(seed)
        self._return = torch.zeros_like(self._return)
        self._length = torch.zeros_like(self._length)
        self._limit = None
        self._reset_task(self._all_envs)
        obs = self.task.observe()
        if not self._is_checked:
            check_first_obs(self.task, obs, self.num_envs)
        return self._stacks.reset(tree_map(torch.clone, self._deliver(obs)))

    def start_training(self, seed: int | None = None, earlier: Mapping[str, torch.Tensor] | None = None) -> Obs:
        if earlier is not None:
            self._restore_stage(earlier)
        elif self.task.curriculum is not None:
            self._stages = self._first_stage(self.task.curriculum)
        obs = self.reset(seed)
        if isinstance(self.task, MujocoTask) and self._bounds is not None and len(self.action_space.shape or ()) == 1:
            act, dt_s = self.action_space.shape[0], self.control_dt_s  # type: ignore[index]
            self._recorder = Recorder(self.task.sim, dt_s, self.num_envs, act, self.randomizer)
        if self.task.staggered:
            high, device = self.episode_steps + 1, self.device
            self._limit = torch.randint(1, high, (self.num_envs,), generator=self._generator, device=device)
        return obs

    def step(self, action: torch.Tensor) -> Step:
        task = self.task
        if self._bounds is None:
            action = action.to(self.device)
        else:
            action = torch.clamp(action.to(self.device, task.dtype), *self._bounds)
        if self.randomizer is not None:
            self.randomizer.step(self._generator)
        if self._recorder is not None:
            self._recorder.before(action)
        task.advance(action if self.randomizer is None else self.randomizer.delayed(action))
        task.measure()

        obs = self._deliver(task.observe())
        reward = task.reward(action)
        terminated = task.terminated()
        success = task.success()
        failed, metrics = task.failed(), task.info()
        if not self._is_checked:
            check_first_step(task, self.num_envs, reward, terminated, success, failed, metrics)
            self._is_checked = True
        if failed is None:  # a copy, because the task may return its state, which the next step changes in place
            obs = tree_map(torch.clone, obs)
        else:  # terminate with zeros, because NaN or infinity would spoil the networks
            obs = select(failed, tree_map(torch.zeros_like, obs), obs)
            reward = torch.where(failed, 0.0, reward)
            terminated = terminated | failed
            success = None if success is None else success & ~failed
        obs = self._stacks.push(obs)

        self._return = self._return + reward
        self._length = self._length + 1
        if self._recorder is not None:
            self._recorder.after(failed, self._length)
        out_of_time = self._length >= (self.episode_steps if self._limit is None else self._limit)
        done = out_of_time | terminated
        truncated = done ^ terminated
        info: Info = {"final_obs": obs, "episode_return": self._return, "episode_length": self._length, **metrics}
        if success is not None:
            info["success"] = success
        self.done_envs = None
        if self._stages is not None:
            self._stages.step(done, info)
        if self.autoreset and maybe_any(done):
            # copies, because the task may return views of its state, which the reset changes in place
            names = [*metrics, *(() if success is None else ("success",))]
            reward, terminated, *copies = _copied(reward, terminated, *(info[name] for name in names))
            info |= zip(names, copies, strict=True)
            self._reset_task(done)
            self._return = torch.where(done, 0.0, self._return)
            self._length = torch.where(done, 0, self._length)
            if self._limit is not None:
                self._limit = torch.where(done, self.episode_steps, self._limit)
            obs = self._first_obs(done, obs)
        return obs, reward.to(self.dtype), terminated, truncated, info

    def _reset_task(self, envs: torch.Tensor) -> None:
        if self.randomizer is not None:
            self.randomizer.reset(envs, self._generator)
        self.task.reset(envs, self._generator)
        self.task.measure()

    def _first_obs(self, done: torch.Tensor, obs: Obs) -> Obs:
        """Put the first observations of the envs that were just reset, `done` (n,), into `obs`."""
        if not self.frames:
            return select(done, self._deliver(self.task.observe()), obs)
        env_ids = done.nonzero().flatten()  # waits for the GPU, which costs less than rendering all envs
        self.done_envs = env_ids
        if not len(env_ids):
            return obs
        return self._stacks.reset_envs(obs, env_ids, self._deliver(self.task.observe_first(env_ids), env_ids))

    def _deliver(self, obs: Obs, env_ids: torch.Tensor | None = None) -> Obs:
        """Keep the delivered entries, add noise to the policy's entries, cast floating-point entries to `dtype`.

        `env_ids` (k,): the envs of `obs`, by default all.
        """
        obs = pick(obs, self._entries, self.task.bare)
        if self.randomizer is not None:
            obs = self.randomizer.noisy(obs, self._generator, self.obs_groups.get(POLICY), env_ids)
        return tree_map(lambda x: x.to(self.dtype) if x.is_floating_point() else x, obs)

    def take_divergences(self) -> list[Divergence]:
        return [] if self._recorder is None else self._recorder.take()

    def scripted(self, name: str | None = None) -> torch.Tensor | None:
        if name is not None and name not in self.task.scripts:
            known = ", ".join(self.task.scripts) or "none"
            raise UserError(f"scripted={name!r} is no scripted policy of {self.task.name}, which has {known}.")
        return self.task.scripted() if name is None else getattr(self.task, name)()

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        return self.task.compute_reward(achieved_goal, desired_goal).to(self.dtype)

    def snapshot(self) -> dict[str, torch.Tensor]:
        return {
            **self.task.snapshot(),
            **prefixed("frames", self._stacks.state()),
            **({} if self.randomizer is None else prefixed(OPTION, self.randomizer.state())),
            **({} if self._stages is None else prefixed(curriculum.OPTION, self._stages.state())),
            **({} if self._limit is None else {"limit": self._limit.clone()}),
            "return": self._return.clone(),
            "length": self._length.clone(),
            "generator": self._generator.get_state(),
        }

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        if self.randomizer is not None:
            self.randomizer.load_state(with_prefix(OPTION, snapshot))
        self._restore_stage(snapshot)
        self.task.restore(snapshot)
        self.task.measure()
        self._stacks.load_state(with_prefix("frames", snapshot))
        self._return = snapshot["return"].to(self._return, copy=True)
        self._length = snapshot["length"].to(self._length, copy=True)
        self._limit = snapshot["limit"].to(self._length, copy=True) if "limit" in snapshot else None
        self._generator.set_state(snapshot["generator"].cpu())

    @property
    def _extra_stages(self) -> int:
        """Number of stages that follow those of the task: one if domain randomisation is on."""
        return int(bool(self.task.randomized))

    def _first_stage(self, curriculum: Curriculum) -> Stages:
        assert self.stage is not None
        return Stages(curriculum, self.stage, self.task.stage, self._extra_stages)

    def _in_last_stage(self) -> torch.Tensor:
        assert self.task.curriculum is not None and self.stage is not None
        return self.stage == self.task.curriculum.stages - 1 + self._extra_stages

    def _restore_stage(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Restore the curriculum's stage; without one in `snapshot` (evaluations, kit 0.2), use the last stage."""
        if self.task.curriculum is None:
            return
        self._stages = None
        assert self.stage is not None
        self.task.stage.fill_(self.task.curriculum.stages - 1)
        self.stage.copy_(self.task.stage + self._extra_stages)
        if state := with_prefix(curriculum.OPTION, snapshot):
            self._stages = self._first_stage(self.task.curriculum)
            self._stages.load_state(state)

    def render(self, cameras: tuple[str, ...] | None = None, height: int = 240, width: int = 320) -> torch.Tensor:
        return self.task.render(cameras or self.cameras[:1], height, width)

    def close(self) -> None:
        self.task.close()


def _copied(*values: torch.Tensor) -> list[torch.Tensor]:
    """Copy tensors (n,), all those of one dtype together, because each kernel on a GPU costs time."""
    copies = list(values)
    places: dict[torch.dtype, list[int]] = {}
    for i, value in enumerate(values):
        places.setdefault(value.dtype, []).append(i)
    for same in places.values():
        for i, copy in zip(same, torch.stack([copies[i] for i in same]).unbind(), strict=True):
            copies[i] = copy
    return copies


def _delivered(mirror: Mirror, space: spaces.Space, entries: tuple[str, ...] | None, device: torch.device) -> Mirror:
    """Return `mirror` for the observation that the env delivers, on `device`."""
    obs = {name: flip.to(device) for name, flip in mirror.obs.items()}
    if entries and not isinstance(space, spaces.Dict):
        obs = {"": obs[entries[0]]}
    return Mirror(obs, mirror.action.to(device))
