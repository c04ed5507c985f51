"""A task on one card: a picture, what it sees and does, what it is paid for, when an episode ends."""

from __future__ import annotations

import base64
import html
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import torch

from kit import envs
from kit.envs.obs import leaves
from kit.envs.task_info import Field, TaskInfo
from kit.errors import UserError, need
from kit.ui import style

SIZE = 300
"""Pixels a side of the picture."""
AFTER = 10
"""Steps at random into an episode, so that something happens."""


def task(env: str, env_options: Mapping[str, Any] | None = None) -> style.Page:
    """What `env` is, made from the task's own declarations; of a Gymnasium env, what can be known. A few seconds."""
    made = envs.make_vec(env, 1, seed=0, threads=1, env_options=envs.without_opponents(env, env_options or {}))
    try:
        said: TaskInfo = getattr(made, "task_info", TaskInfo())
        rows = [
            ("It sees", _parts(seen(made.observation_space, said))),
            ("It does", _parts(said.does or [_space("", made.action_space)])),
            ("It is paid", [f"<b>{weight:+.4g}</b> {html.escape(what)}" for weight, what in said.pays]),
            ("An episode", [_episode(made, said)]),
            ("Success", [html.escape(said.succeeds)] if said.succeeds else []),
            ("To train", [f"{steps:,} steps{_lessons(said)}"] if (steps := sensible_steps(env)) else []),
        ]
        picture = _picture(made)
    finally:
        made.close()
    about = _about(env)
    table = "".join(f"<b>{name}</b><div>{'<br>'.join(lines)}</div>" for name, lines in rows if lines)
    body = f"<div class='kit-card'><div class='kit-state'>{html.escape(env)}</div><div class='kit-note'>"
    body += f"{html.escape(about)}</div>"
    drawn = f"data:image/png;base64,{base64.b64encode(picture).decode()}" if picture else ""
    image = f"<img alt='{html.escape(env)}' width='{SIZE}' src='{drawn}' style='border-radius:8px'>" if picture else ""
    body += style.flex([image, f"<div class='kit-facts'>{table}</div>"]) + "</div>"
    return style.Page(f"{env}: {about}", body, picture)


def sensible_steps(env: str) -> int | None:
    """How long to train, as the task says; None if it does not, or if there is no such task."""
    try:
        return getattr(envs.find(env), "train_steps", None)
    except UserError:
        return None


def seen(space: gymnasium.Space, said: TaskInfo) -> list[Field]:
    """The observation's parts: declared rows of numbers, and what the spaces tell of everything else."""
    parts: list[Field] = []
    for path, entry in leaves("obs", space):
        name = path[4:]
        declared = said.sees.get(name, ())
        parts += [part._replace(what=f"{name}: {part.what}" if name else part.what) for part in declared]
        if not declared:
            parts.append(_space(name, entry))
    return parts


def _space(name: str, space: Any) -> Field:
    """What is known of one that nobody has described."""
    shape, of = list(getattr(space, "shape", None) or ()), f"{name}: " if name else ""
    if getattr(space, "dtype", None) == "uint8" and len(shape) >= 3:
        _, height, width = sorted(shape[-3:])
        latest = f", the latest {shape[0]}" if len(shape) == 4 else ""
        return Field(f"{of}pictures of {width} × {height} pixels{latest}", 0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return Field(f"{of}one of {space.n} choices", 1)
    bounded = isinstance(space, gymnasium.spaces.Box) and abs(space.low.min()) < 1e6
    bounds = f" from {space.low.min():.4g} to {space.high.max():.4g}" if bounded else ""
    return Field(f"{of}numbers{bounds}", math.prod(shape))


def _parts(parts: Iterable[Field]) -> list[str]:
    def unit(part: Field) -> str:
        scaled = "in units of " if part.unit[:1].isdigit() else ""
        return f" <span class='kit-dim'>{scaled}{html.escape(part.unit)}</span>" if part.unit else ""

    return [f"<b>{part.width or ''}</b> {html.escape(part.what)}{unit(part)}" for part in parts]


def _episode(env: Any, said: TaskInfo) -> str:
    seconds = env.episode_steps * env.control_dt_s
    early = f", or earlier: {said.ends}" if said.ends else ""
    return html.escape(f"ends after {env.episode_steps:,} steps, {seconds:,.0f} s{early}")


def _lessons(said: TaskInfo) -> str:
    return f" a lesson: {html.escape(said.lessons)}" if said.lessons else ""


def _about(env: str) -> str:
    """The first paragraph that its class says of itself."""
    found: Any = envs.find(env)
    if isinstance(found, gymnasium.envs.registration.EnvSpec):
        entry = found.entry_point
        found = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    marks = "#", "`" * 3, ":", "<"
    lines = [line for line in (inspect.getdoc(found) or "").splitlines() if not line.startswith(marks)]
    return " ".join("\n".join(lines).strip().split("\n\n")[0].replace("`", "").split())


def _picture(env: Any) -> bytes | None:
    """A PNG, or nothing of an env that draws none."""
    mediapy = need("mediapy", "notebook,video")
    if not env.cameras:
        return None
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(AFTER):
        env.step(torch.as_tensor(env.action_space.sample()).unsqueeze(0))
    try:
        drawn = env.render(env.cameras[:1], SIZE, SIZE)[0, 0].cpu().numpy()
    except Exception:  # somebody's env may want a screen or a package
        return None
    made: bytes = mediapy.compress_image(drawn)
    return made
