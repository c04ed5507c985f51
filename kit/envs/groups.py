"""Observation groups: which network sees which entries of the observation, like rsl_rl's `obs_groups`.

    class MyTask(Task):
        obs_groups = {"policy": ("joints",), "critic": ("joints", "privileged"), "teacher": ("privileged",)}

    kit.train(env="my_tasks:MyTask", env_options={"obs_groups": ["critic", "teacher"]})

An env delivers the entries of the policy's group and of the requested groups; other entries are not computed. A single
entry is delivered without the Dict, unless the task's `bare` is False.
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
"""Name of this option in env_options."""


class DeliveredObs(NamedTuple):
    """The part of a task's observation that the env delivers, with frame stacks."""

    observation_space: gymnasium.Space
    frames: Mapping[str, int]
    obs_groups: Groups
    """Groups over the delivered entries; empty if every group sees all of them."""
    entries: tuple[str, ...] | None
    """Entries to take from `Task.observe` (see `kit.envs.obs.pick`); None for all."""


def delivered_obs(task: Task) -> DeliveredObs:
    """Return the observation that the env of `task` delivers. Raises `UserError` for unknown entries in groups."""
    space, frames = task.observation_space, task.frames
    check(task.obs_groups, space)
    if not task.obs_groups:
        return DeliveredObs(stacked_space(space, frames), frames, {}, None)
    names = task.delivered
    groups = {group: tuple(task.obs_groups[group]) for group in task.groups if group in task.obs_groups}
    picked = pick_space(space, names, task.bare)
    if not isinstance(picked, spaces.Dict):
        frames = {"": frames[names[0]]} if names[0] in frames else {}
        return DeliveredObs(stacked_space(picked, frames), frames, {}, names)
    frames = {name: count for name, count in frames.items() if name in names}
    differ = any(set(seen) != set(names) for seen in groups.values())
    return DeliveredObs(stacked_space(picked, frames), frames, groups if differ else {}, names)


def check_option(env: str, task: Task, option: Any) -> tuple[str, ...]:
    """Check `option`, the value of env_options `obs_groups`; return the group names, "policy" first."""
    others = [group for group in task.obs_groups if group != POLICY]
    if not others:
        raise UserError(f"env_options obs_groups={option!r}: env={env!r} has no group besides 'policy'; leave it out.")
    if not isinstance(option, list | tuple):
        raise UserError(f"env_options obs_groups={option!r} must be a list of some of {', '.join(others)}.")
    for group in option:
        if group not in (POLICY, *others):
            raise UserError(
                f"env_options obs_groups {group!r} is not one of env={env!r}'s groups; it has {', '.join(others)}."
            )
    return POLICY, *(group for group in others if group in option)


def check(groups: Groups, space: gymnasium.Space) -> None:
    """Raise `UserError` unless `groups` is empty, or has a policy group and names entries of the Dict `space`."""
    if not groups:
        return
    if not isinstance(space, spaces.Dict):
        raise UserError(f"obs_groups={dict(groups)!r} needs a Dict observation space, but this env has {space}.")
    if not groups.get(POLICY):
        raise UserError(f"obs_groups={dict(groups)!r} has no group 'policy'; add one with the policy's entries.")
    for group, names in groups.items():
        if not names:
            raise UserError(f"obs_groups {group!r} has no entries; name some, or leave the group out.")
        for name in names:
            if name not in space.spaces:
                raise UserError(
                    f"obs_groups {group!r} names {name!r}, which is not an entry of the observation; it has "
                    f"{', '.join(space.spaces)}."
                )
