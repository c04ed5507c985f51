"""What a policy's cameras see, and where in it the policy looks."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from kit.errors import UserError, need
from kit.runs.opponents import make_env
from kit.runs.policies import load_policy
from kit.runs.run import Run

AFTER = 8
"""Steps into an episode: enough for the arm to be on its way."""
SIZE = 192
"""Pixels a side of each picture."""
GLOW = np.array([255.0, 220.0, 0.0])


def what_it_sees(run: Run, step: int | str | None = None, worlds: int = 2, after: int = AFTER) -> list[np.ndarray]:
    """Show for each of `worlds` the newest picture of every camera, and beside it the same dimmed, with a glow where
    a blurred spot would change the action; `after` so many steps of the policy of `step` (default: the best;
    0: as training began). The pictures, uint8 (H, W, 3), camera after camera."""
    need("mediapy", "notebook,video")
    import mediapy

    from kit.encoders.saliency import saliency
    from kit.envs.obs import newest_image
    from kit.envs.play import play

    trainer: Any = load_policy(run.config, run.find_or_new(step))
    actor = trainer.as_actor()
    if actor.memory(worlds):
        raise UserError(f"algo={run.config.algo!r} remembers, so that its action hangs on more than what it sees now.")
    env = make_env(run.config.replace(device="cpu"), worlds, run.config.seed)
    obs = env.reset(seed=run.config.seed)
    for transition in islice(play(env, actor, obs), after):
        obs = transition.next_obs
    seen = actor.preprocess(obs)
    glow = saliency(actor.policy, seen)
    env.close()
    pictures, titles = [], []
    for world in range(worlds):
        for name, marked in glow.items():
            picture = newest_image((seen[name] if name else seen)[world])
            light = marked[world].numpy()[..., None]
            pictures += [picture, (picture * 0.35 * (1 - light) + GLOW * light).clip(0, 255).astype(np.uint8)]
            titles += [name, "where it looks"]
    mediapy.show_images(pictures, titles, height=SIZE, columns=2 * len(glow), border=True)
    return pictures
