"""Live 3-D viewer in the browser: shows a policy in its MuJoCo scene, with controls for checkpoint and joystick."""

from __future__ import annotations

import copy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from kit.envs import MujocoTask, TensorEnv
from kit.envs.play import play
from kit.errors import UserError, need
from kit.runs.evaluation import EVAL_SEED
from kit.runs.opponents import make_env
from kit.runs.run import Run, load_policy, opened
from kit.tasks.joystick.task import Joystick

HOST = "127.0.0.1"
HEIGHT = 640
"""Height of the viewer in a notebook, in pixels."""
WALKER = 2.2
"""Distance of the camera from a walking robot, divided by (height of the robot's base + 0.3 m)."""
IDLE_S = 0.2
"""Seconds between checks for a connected browser."""


class Viewer:
    """Plays the policy of `step` (default: the best; 0: the initial policy) in real time while a browser is connected.

    It plays episode after episode until `close`. Open `url` in a browser; in a notebook the viewer displays itself.
    Raises `UserError` for a task without MuJoCo.
    """

    def __init__(self, run: Run, step: int | str | None = None, port: int = 8080) -> None:
        viser, mjviser = need("viser", "view"), need("mjviser", "view")
        self.run = run
        self._env = make_env(run.config.replace(device="cpu"), 1, run.config.seed + EVAL_SEED, 1)
        if not isinstance(self._env, TensorEnv) or not isinstance(self._env.task, MujocoTask):
            self._env.close()
            raise UserError(f"env={run.config.env!r} has no MuJoCo scene to view; `kit video` records a video of it.")
        self._task = self._env.task
        self._policies = {
            "before training" if run.is_untrained(run.find_or_new(number)) else f"step {number:,}": number
            for number in run.steps()
        }
        checkpoint = run.find_or_new(step)
        first = checkpoint.step if checkpoint else 0
        chosen = next(name for name, number in self._policies.items() if number == first)
        self._server = viser.ViserServer(host=HOST, port=port, verbose=False)
        self.port = self._server.get_port()
        self.url = f"http://{HOST}:{self.port}"
        model = copy.copy(self._task.model)  # a copy, because materials are removed from it
        # remove materials without a texture, so that their geoms are shown in their rgba colour
        model.geom_matid[~np.isin(model.geom_matid, np.nonzero((model.mat_texid >= 0).any(1))[0])] = -1
        self._scene = mjviser.ViserMujocoScene(self._server, model, num_envs=1)
        self._scene.camera_tracking_enabled = self._walks = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        self._place_camera()
        self._build(self._server.gui, chosen)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._play, name=f"view-{run.name}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._server.stop()
        self._env.close()

    def __repr__(self) -> str:
        return f"{self.run.name} plays at {self.url}"

    def _ipython_display_(self) -> None:
        from IPython.display import IFrame, display

        if "google.colab" in sys.modules:
            from google.colab import output

            output.serve_kernel_port_as_iframe(self.port, height=HEIGHT)
        else:
            display(IFrame(self.url, "100%", HEIGHT))
        print(self)

    def _place_camera(self) -> None:
        self._env.reset(seed=0)
        sim, camera = self._task.sim, self._server.initial_camera
        if self._walks:
            far = WALKER * (0.3 + float(sim.xpos[0, 1, 2]))
            camera.position, camera.look_at = (0.6 * far, -0.7 * far, 0.4 * far), (0.0, 0.0, 0.0)
        elif self._env.cameras:
            number = self._task.model.camera(self._env.cameras[0]).id
            eye, ahead = sim.cam_xpos[0, number], -sim.cam_xmat[0, number].view(3, 3)[:, 2]
            at = eye + (sim.xpos[0, 1:].mean(0) - eye).norm() * ahead
            camera.position, camera.look_at = eye.tolist(), at.tolist()

    # -- controls --------------------------------------------------------------------------------------------------

    def _build(self, gui: Any, chosen: str) -> None:
        self._caption = gui.add_markdown("")
        self._policy = gui.add_dropdown("policy", list(self._policies), initial_value=chosen)
        self._noise = gui.add_checkbox("random actions (exploration noise)", initial_value=False)
        self._speed = gui.add_slider("speed", 0.1, 3.0, 0.1, initial_value=1.0)
        self._paused = gui.add_checkbox("pause", initial_value=False)
        self._new_episode = False
        button = gui.add_button("new episode")
        button.on_click(lambda _: setattr(self, "_new_episode", True))
        self._joystick: list[Any] = []
        if isinstance(self._task, Joystick):
            with gui.add_folder("joystick"):
                self._steer = gui.add_checkbox("steer with these sliders", initial_value=False)
                names = ("forward, m/s", "left, m/s", "turn, rad/s")
                limits = zip(names, self._task.most_speed, strict=True)
                self._joystick = [gui.add_slider(name, -most, most, 0.05, initial_value=0.0) for name, most in limits]

    # -- playing ---------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        torch.set_num_threads(1)
        restart, loaded, episode = True, None, 0
        while not self._closed.is_set():
            if not self._server.get_clients():
                self._closed.wait(IDLE_S)
                continue
            requested = self._policies[self._policy.value], self._noise.value
            if requested != loaded:
                policy = load_policy(self.run.config, self.run.find_or_new(requested[0]))
                actor, restart, loaded = policy.as_actor(not requested[1]), True, requested
            if restart or self._new_episode:
                episode, self._new_episode, step, episode_return = episode + 1, False, 0, 0.0
                obs = self._env.reset(seed=self.run.config.seed + EVAL_SEED + episode)
                transitions, restart = play(self._env, actor, obs, episodes=1), False
                self._caption.content = f"episode {episode}, step 0"
                self._update_scene()
            due = time.monotonic() + self._env.control_dt_s / self._speed.value
            if isinstance(self._task, Joystick) and self._steer.value:
                self._task.steer(torch.tensor([slider.value for slider in self._joystick]))
            if not self._paused.value:
                transition = next(transitions)
                step, restart = step + 1, bool(transition.ended[0])
                episode_return += float(transition.reward[0])
                flags = transition.info.get("success") if restart else None
                success = "" if flags is None else "**success**" if flags[0] else "no success"
                self._caption.content = f"episode {episode}, step {step}, return {episode_return:.2f} {success}"
                if not restart:
                    self._update_scene()
            self._closed.wait(max(0.0, due - time.monotonic()))

    def _update_scene(self) -> None:
        sim = self._task.sim
        arrays = [sim.field(name).numpy() for name in ("xpos", "xmat", "mocap_pos", "mocap_quat")]
        self._scene.update_from_arrays(*arrays)


def view(run: Run | str | Path, step: int | str | None = None, port: int = 8080, trust: bool = False) -> Viewer:
    """Show the policy of `step` (default: the best) of `run` live in this notebook.

    On a remote machine the viewer works in Colab, or through `ssh -L`. Needs the pip extra `view`. `trust` as in
    `kit.resume`.
    """
    return Viewer(opened(run, trust), step, port)
