"""A policy live in the browser: MuJoCo's scene to look at from anywhere, with its checkpoints and a joystick."""

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
from kit.runs.policies import load_policy
from kit.runs.run import Run, opened
from kit.tasks.joystick.task import Joystick

HEIGHT = 640
"""Of the view in a notebook, pixels."""
WALKER = 2.2
"""Metres of distance for a metre of a robot's height."""
NOBODY_S = 0.2
"""Between looks whether somebody has come to see."""


class Viewer:
    """Plays `run`'s policy of `step` (default: the best; 0: as training began) in real time, over and over, while
    somebody looks.

    `url` is where; in a notebook it shows itself. `close` ends it. Raises `UserError` for a task without MuJoCo.
    """

    def __init__(self, run: Run, step: int | str | None = None, port: int = 8080, host: str = "127.0.0.1") -> None:
        viser, mjviser = need("viser", "view"), need("mjviser", "view")
        self.run = run
        self._env = make_env(run.config.replace(device="cpu"), 1, run.config.seed + EVAL_SEED, 1)
        if not isinstance(self._env, TensorEnv) or not isinstance(self._env.task, MujocoTask):
            self._env.close()
            raise UserError(f"env={run.config.env!r} has no MuJoCo scene to walk about in; `kit video` films it.")
        self._task = self._env.task
        self._policies = {
            "before training" if run.is_untrained(run.find_or_new(number)) else f"step {number:,}": number
            for number in run.steps()
        }
        found = run.find_or_new(step)
        first = found.step if found else 0
        chosen = next(name for name, number in self._policies.items() if number == first)
        self._server = viser.ViserServer(host=host, port=port, verbose=False)
        self.port = self._server.get_port()
        self.url = f"http://{host}:{self.port}"
        model = copy.copy(self._task.model)  # to whose looks changes are made
        model.geom_matid[~np.isin(model.geom_matid, np.nonzero((model.mat_texid >= 0).any(1))[0])] = -1  # rgba says it
        self._scene = mjviser.ViserMujocoScene(self._server, model, num_envs=1)
        self._scene.camera_tracking_enabled = self._walks = model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        self._look()
        self._build(self._server.gui, chosen)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play, name=f"view-{run.name}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is closed."""
        self._thread.join()

    def close(self) -> None:
        self._over.set()
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

    def _look(self) -> None:
        """As the task's first camera does, if it has one; a robot that walks, from where it is."""
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

    # -- what can be set -------------------------------------------------------------------------------------------

    def _build(self, gui: Any, chosen: str) -> None:
        self._said = gui.add_markdown("")
        self._policy = gui.add_dropdown("policy", list(self._policies), initial_value=chosen)
        self._noise = gui.add_checkbox("with its noise", initial_value=False)
        self._speed = gui.add_slider("speed", 0.1, 3.0, 0.1, initial_value=1.0)
        self._still = gui.add_checkbox("stand still", initial_value=False)
        self._anew = False
        button = gui.add_button("new episode")
        button.on_click(lambda _: setattr(self, "_anew", True))
        self._joystick: list[Any] = []
        if isinstance(self._task, Joystick):
            with gui.add_folder("joystick"):
                self._own = gui.add_checkbox("I steer", initial_value=False)
                names = ("ahead, m/s", "to the left, m/s", "turning, rad/s")
                limits = zip(names, self._task.most_speed, strict=True)
                self._joystick = [gui.add_slider(name, -most, most, 0.05, initial_value=0.0) for name, most in limits]

    # -- what happens ----------------------------------------------------------------------------------------------

    def _play(self) -> None:
        torch.set_num_threads(1)
        begin, loaded, episode = True, None, 0
        while not self._over.is_set():
            if not self._server.get_clients():
                self._over.wait(NOBODY_S)
                continue
            asked = self._policies[self._policy.value], self._noise.value
            if asked != loaded:
                policy = load_policy(self.run.config, self.run.find_or_new(asked[0]))
                actor, begin, loaded = policy.as_actor(not asked[1]), True, asked
            if begin or self._anew:
                episode, self._anew, step, returned = episode + 1, False, 0, 0.0
                obs = self._env.reset(seed=self.run.config.seed + EVAL_SEED + episode)
                steps, begin = play(self._env, actor, obs, episodes=1), False
                self._said.content = f"episode {episode}, step 0"
                self._show()
            due = time.monotonic() + self._env.control_dt_s / self._speed.value
            if isinstance(self._task, Joystick) and self._own.value:
                self._task.steer(torch.tensor([slider.value for slider in self._joystick]))
            if not self._still.value:
                played = next(steps)
                step, returned, begin = step + 1, returned + float(played.reward[0]), bool(played.ended[0])
                said = played.info.get("success") if begin else None
                success = "" if said is None else "**success**" if said[0] else "no success"
                self._said.content = f"episode {episode}, step {step}, return {returned:.2f} {success}"
                if not begin:
                    self._show()
            self._over.wait(max(0.0, due - time.monotonic()))

    def _show(self) -> None:
        sim = self._task.sim
        arrays = [sim.field(name).numpy() for name in ("xpos", "xmat", "mocap_pos", "mocap_quat")]
        self._scene.update_from_arrays(*arrays)


def view(run: Run | str | Path, step: int | str | None = None, port: int = 8080, trust: bool = False) -> Viewer:
    """The policy of `step` (default: the best) of `run` live in this notebook; on a machine far away, in Colab's own
    window for ports, or with `ssh -L`. Needs the extra `view`. `trust` as in `kit.resume`."""
    return Viewer(opened(run, trust), step, port)
