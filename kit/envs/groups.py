"""Observation groups: who sees which entries of a task's observation, as rsl_rl's `obs_groups`.

    class MyTask(Task):
        obs_groups = {"policy": ("joints",), "critic": ("joints", "privileged"), "teacher": ("privileged",)}

    kit.train(env="my_tasks:MyTask", env_options={"obs_groups": ["critic", "teacher"]})

An env delivers the union of the policy's group and of the groups asked for; nothing else is computed. Where that is a
single entry it is the observation, not a Dict of one (unless the task's `bare` is false).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
from gymnasium import spaces

from kit.envs.frames import stacked_space
from kit.envs.obs import POLICY, Groups, pick_space
from kit.errors import UserError

if TYPE_CHECKING:
    from kit.envs.task import Task

OPTION = "obs_groups"
"""Among env_options."""

class Delivery(NamedTuple):
    """What an env gives of a task's observation."""

    observation_space: gymnasium.Space
    """With frames stacked."""
    frames: Mapping[str, int]
    obs_groups: Groups
    """Of what is delivered; empty where everybody sees all of it."""
    entries: tuple[str, ...] | None
    """To be picked from what the task observes (`kit.envs.obs.pick`); None for all."""


def delivery(task: Task) -> Delivery:
    """What an env gives of `task`. Raises `UserError` for groups of entries that there are not."""
    space, frames = task.observation_space, task.frames
    check(task.obs_groups, space)
    if not task.obs_groups:
        return Delivery(stacked_space(space, frames), frames, {}, None)
    names = task.delivered
    groups = {group: tuple(task.obs_groups[group]) for group in task.groups if group in task.obs_groups}
    picked = pick_space(space, names, task.bare)
    if not isinstance(picked, spaces.Dict):
        frames = {"": frames[names[0]]} if names[0] in frames else {}
        return Delivery(stacked_space(picked, frames), frames, {}, names)
    frames = {name: count for name, count in frames.items() if name in names}
    split = any(set(seen) != set(names) for seen in groups.values())
    return Delivery(stacked_space(picked, frames), frames, groups if split else {}, names)


def requested(env: str, task: Task, option: Any) -> tuple[str, ...]:
    """The groups that `option`, the value of env_options `obs_groups`, asks for, the policy's first."""
    others = [group for group in task.obs_groups if group != POLICY]
    if not others:
        raise UserError(f"env_options obs_groups={option!r}: env={env!r} has no groups besides the policy's.")
    if not isinstance(option, list | tuple):
        raise UserError(f"env_options obs_groups={option!r} must be a list of some of {', '.join(others)}.")
    for group in option:
        if group not in (POLICY, *others):
            raise UserError(
                f"env_options obs_groups {group!r} is not one of env={env!r}'s groups; it has {', '.join(others)}."
            )
    return POLICY, *(group for group in others if group in option)


def check(groups: Groups, space: gymnasium.Space) -> None:
    """Raise `UserError` unless `groups` share out entries of `space`."""
    if not groups:
        return
    if not isinstance(space, spaces.Dict):
        raise UserError(f"obs_groups={dict(groups)!r} share out the entries of a Dict, and this env gives {space}.")
    if not groups.get(POLICY):
        raise UserError(f"obs_groups={dict(groups)!r} must say what the policy sees: write a group 'policy'.")
    for group, names in groups.items():
        for name in names:
            if name not in space.spaces:
                raise UserError(
                    f"obs_groups {group!r} names {name!r}, which is no entry of the observation; it has "
                    f"{', '.join(space.spaces)}."
                )
