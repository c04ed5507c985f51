"""Saliency maps: the regions of camera images that influence a policy's actions."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from kit.errors import UserError, need
from kit.machine.settings import one_thread
from kit.runs.opponents import make_env
from kit.runs.run import Run, load_policy

AFTER = 8
"""Default number of steps played before the images are taken, enough for a robot arm to move."""
SIZE = 192
"""Height of each shown image in pixels."""
GLOW = np.array([255.0, 220.0, 0.0])
"""RGB colour of the influential regions."""


@one_thread()
def what_it_sees(run: Run, step: int | str | None = None, n_envs: int = 2, after: int = AFTER) -> list[np.ndarray]:
    """Show each camera's image and its saliency map, in `n_envs` envs, after playing `after` steps.

    A saliency map is the darkened image, yellow where blurring the image changes the policy's action. `step` chooses
    the policy (default: the best; 0: the initial policy). Returns the images, uint8 (H, W, 3), in the order shown.
    Raises `UserError` for a recurrent policy.
    """
    mediapy: Any = need("mediapy", "notebook,video")

    from kit.encoders.saliency import saliency
    from kit.envs.obs import newest_image
    from kit.envs.play import play

    trainer: Any = load_policy(run.config, run.find_or_new(step))
    actor = trainer.as_actor()
    if actor.initial_state(n_envs):
        raise UserError(f"algo={run.config.algo!r} is recurrent: its actions depend on more than the current image.")
    env = make_env(run.config.replace(device="cpu"), n_envs, run.config.seed)
    try:
        obs = env.reset(seed=run.config.seed)
        for transition in islice(play(env, actor, obs), after):
            obs = transition.next_obs
        policy_obs = actor.preprocess(obs)
        maps = saliency(actor.policy, policy_obs)
    finally:
        env.close()
    images, titles = [], []
    for i in range(n_envs):
        for name, values in maps.items():
            image = newest_image((policy_obs[name] if name else policy_obs)[i])
            glow = values[i].numpy()[..., None]
            images += [image, (image * 0.35 * (1 - glow) + GLOW * glow).clip(0, 255).astype(np.uint8)]
            titles += [name, "where it looks"]
    mediapy.show_images(images, titles, height=SIZE, columns=2 * len(maps), border=True)
    return images
