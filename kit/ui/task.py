"""A page that describes a task: an image, observations, actions, reward terms, and when an episode ends."""

from __future__ import annotations

import html
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import torch

from kit import envs
from kit.envs.obs import leaves
from kit.envs.registry import options_of
from kit.envs.task_info import Field, TaskInfo
from kit.errors import UserError, need
from kit.ui import style

SIZE = 300
"""Width and height of the image in pixels."""
AFTER = 10
"""Number of random steps before the image is taken; they move the robot out of its start pose."""


def task(env: str, env_options: Mapping[str, Any] | None = None) -> style.Page:
    """Return a page that describes `env`, from its task info or its Gymnasium spaces. Takes a few seconds."""
    vec_env = envs.make_vec(env, 1, seed=0, threads=1, env_options=envs.without_opponents(env, env_options or {}))
    try:
        info: TaskInfo = getattr(vec_env, "task_info", TaskInfo())
        rows = [
            ("Robot", [html.escape(line) for line in info.robot]),
            ("Observation", _lines(observation_fields(vec_env.observation_space, info))),
            ("Action", _lines(action_fields(vec_env.action_space, info))),
            ("Reward", [(f"<b>{pay:+.4g}</b> " if pay else "") + html.escape(term) for pay, term in info.pays]),
            ("Episode", [_episode(vec_env, info)]),
            ("Success", [html.escape(info.succeeds)] if info.succeeds else []),
            ("Recommended", [f"{steps:,} steps{_lessons(info)}"] if (steps := sensible_steps(env)) else []),
        ]
        png = _render(vec_env)
    finally:
        vec_env.close()
    about = _about(env)
    table = "".join(f"<b>{name}</b><div>{'<br>'.join(lines)}</div>" for name, lines in rows if lines)
    body = f"<div class='kit-card'><div class='kit-state'>{html.escape(env)}</div><div class='kit-note'>"
    body += f"{html.escape(about)}</div>"
    image = style.image(png, env, f"width='{SIZE}' style='border-radius:8px'") if png else ""
    body += style.flex([image, f"<div class='kit-facts'>{table}</div>"]) + "</div>"
    return style.Page(f"{env}: {about}", body, png)


def sensible_steps(env: str) -> int | None:
    """Return the task's recommended number of training steps; None if it has none or the task is unknown."""
    try:
        return getattr(envs.find(env), "train_steps", None)
    except UserError:
        return None


def option_names(env: str) -> list[str]:
    """Return the names of the task's env_options; [] if they or the task are unknown."""
    try:
        return options_of(envs.find(env))
    except UserError:
        return []


def observation_fields(space: gymnasium.Space, info: TaskInfo) -> list[Field]:
    """Return the fields of an observation. Entries without fields in the task info are described by their space."""
    fields: list[Field] = []
    for path, entry in leaves("obs", space):
        name = path[4:]
        declared = info.sees.get(name, ())
        fields += [field._replace(what=f"{name}: {field.what}" if name else field.what) for field in declared]
        if not declared:
            fields.append(_field_of_space(name, entry))
    return fields


def action_fields(space: gymnasium.Space, info: TaskInfo) -> list[Field]:
    """Return the fields of an action; without fields in the task info, `space` describes it."""
    return list(info.does) or [_field_of_space("", space)]


def _field_of_space(name: str, space: Any) -> Field:
    """Describe an observation entry or action by its space: images, choices, or numbers with their bounds."""
    shape, prefix = list(getattr(space, "shape", None) or ()), f"{name}: " if name else ""
    if getattr(space, "dtype", None) == "uint8" and len(shape) >= 3:
        sides = shape[-3:]
        sides.remove(min(sides))  # the colours, first or last
        height, width = sides
        latest = f", the latest {shape[0]}" if len(shape) == 4 else ""
        return Field(f"{prefix}images of {width} × {height} pixels{latest}", 0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return Field(f"{prefix}one of {space.n} choices", 1)
    bounded = isinstance(space, gymnasium.spaces.Box) and abs(space.low.min()) < 1e6
    bounds = f" from {space.low.min():.4g} to {space.high.max():.4g}" if bounded else ""
    return Field(f"{prefix}numbers{bounds}", math.prod(shape))


def _lines(fields: Iterable[Field]) -> list[str]:
    """Return one line of HTML per field: its number of values, their meaning and their unit."""

    def unit(field: Field) -> str:
        text = f"in units of {field.unit}" if field.unit[:1].isdigit() else field.unit
        return f" <span class='kit-dim'>{html.escape(text)}</span>" if text else ""

    return [f"<b>{field.width or ''}</b> {html.escape(field.what)}{unit(field)}" for field in fields]


def _episode(env: Any, info: TaskInfo) -> str:
    seconds = f"{env.episode_steps * env.control_dt_s:,.1f}".removesuffix(".0")
    early = f", or earlier: {info.ends}" if info.ends else ""
    return html.escape(f"ends after {env.episode_steps:,} steps, {seconds} s{early}")


def _lessons(info: TaskInfo) -> str:
    return f", in stages: {html.escape(info.lessons)}" if info.lessons else ""


def _about(env: str) -> str:
    """Return the first paragraph of the env class's docstring."""
    maker: Any = envs.find(env)
    if isinstance(maker, gymnasium.envs.registration.EnvSpec):
        entry = maker.entry_point
        maker = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    marks = "#", "`" * 3, ":", "<"
    lines = [line for line in (inspect.getdoc(maker) or "").splitlines() if not line.startswith(marks)]
    return " ".join("\n".join(lines).strip().split("\n\n")[0].replace("`", "").split())


def _render(env: Any) -> bytes | None:
    """Return an image of the env after `AFTER` random steps, as PNG; None if the env cannot be rendered."""
    mediapy = need("mediapy", "notebook,video")
    if not env.cameras:
        return None
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(AFTER):
        env.step(torch.as_tensor(env.action_space.sample()).unsqueeze(0))
    try:
        image = env.render(env.cameras[:1], SIZE, SIZE)[0, 0].cpu().numpy()
    except Exception:  # a Gymnasium env may need a display or a package
        return None
    png: bytes = mediapy.compress_image(image)
    return png
