"""Check and film your own task before training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.config import RunConfig
from kit.envs import check
from kit.trust import refresh


def check_task(
    env: str,
    env_options: Mapping[str, Any] | None = None,
    steps: int = 500,
    say: check.Say = check.passed,
    video: str | Path | None = None,
) -> None:
    """Check the task or Gymnasium env `env` with random actions; `say` gets one line per check that it passes.

    See `kit.envs.check.check_task` for the checks. `video`: record a film (mp4) of random actions there; needs the
    extra `video`. Raises `UserError` at the first failed check.
    """
    if video is not None:
        from kit.runs.video import check_film, record_random

        check_film(Path(video))
    if isinstance(env, str):
        refresh(RunConfig(env=env))
    check.check_task(env, env_options, steps, say)
    if video is not None:
        say(f"a film of random actions: {record_random(env, env_options or {}, Path(video))}")
