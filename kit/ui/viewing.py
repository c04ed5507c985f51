"""Live 3-D viewer in the browser: shows a policy in its MuJoCo scene; you can act by hand, and record episodes."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from kit.config import RunConfig
from kit.envs import MujocoTask, TensorEnv
from kit.envs.obs import Obs
from kit.envs.play import Player, Stateless, play
from kit.errors import UserError, check_whole, need
from kit.runs.demonstrations import RECORD_SEED, Recorder, write
from kit.runs.evaluation import EVAL_SEED, Script
from kit.runs.opponents import make_env
from kit.runs.run import Run, load_policy, opened
from kit.tasks.fetch.task import PickAndPlace, Push
from kit.tasks.joystick.task import Joystick
from kit.tasks.reach.any_arm import AnyArm
from kit.tasks.reach.task import Reach
from kit.trust import permit
from kit.ui import bars
from kit.ui.gamepad import Gamepad
from kit.ui.totals import Totals

HOST = "127.0.0.1"
HEIGHT = 640
"""Height of the viewer in a notebook, in pixels."""
CAMERA_DISTANCE = 2.2
"""Distance of the camera from a walking robot, divided by (height of the robot's base + 0.3 m)."""
IDLE_S = 0.2
"""Seconds between checks for a connected browser."""
BARS_S, BARS_PX = 0.1, 270
"""Minimum seconds between updates of the panel with reward and action bars, and the panel's width in pixels."""
SPACING = 2.0
"""Distance between neighbouring envs, in multiples of an env's size (largest extent of its bodies along an axis)."""
ALL_ENVS = "all, side by side"

Arm = Reach | AnyArm | Push
"""Tasks in which the user can move the robot's hand."""
BY_HAND = "by hand"
BY_HAND_S = 8.0
"""Shortest duration of an episode that is moved by hand, s. In real time, the arms' episodes take 2 to 5 s."""
KEYS = (("I", "K"), ("J", "L"), ("U", "O"))
"""Pairs of keys. Each pair increases and decreases one number: x, y or z of an arm's target, or the commanded velocity
(forward, left, turn) of a walking robot.

Arrow keys are not used: viser turns the camera with them, even if a command has the same key."""
FINGERS_KEY = "G"
"""Key that closes and opens the fingers of PickAndPlace."""
NUDGE_M = 0.02
"""Distance that a key press moves the target."""
STICK_M_S = 0.3
"""Speed at which a fully deflected stick of a gamepad moves the target."""
AHEAD_M = 0.2
"""A stick of a gamepad moves the target at most this far away from the hand, along each axis."""


class Viewer:
    """Plays a policy in real time while a browser is connected, episode after episode, until `close`.

    `source`: a run or a config. With a run, its policy of `step` plays first (default: the best; 0: the initial
    policy). With a config, a scripted policy plays in its env, or you move the robot by hand. Open `url` in a browser;
    in a notebook the viewer displays itself. With `n_envs`, it shows several envs; you act and record in the first.
    Raises `UserError` for a task without MuJoCo, and for a config whose task has no scripted policy and cannot be moved
    by hand.
    """

    def __init__(
        self, source: Run | RunConfig, step: int | str | None = None, port: int = 8080, n_envs: int = 1
    ) -> None:
        check_whole("n_envs", n_envs, 1)
        check_whole("port", port, 1, 65535)
        viser, mjviser = need("viser", "view"), need("mjviser", "view")
        run = source if isinstance(source, Run) else None
        self.config = (source.config if isinstance(source, Run) else source).replace(device="cpu")
        self.name = self.config.env if run is None else run.name
        if port in self._open:
            self._open[port].close()  # waits until its port is free
        self._env = make_env(self.config, n_envs, self.config.seed + EVAL_SEED, 1)
        if not isinstance(self._env, TensorEnv) or not isinstance(self._env.task, MujocoTask):
            self._env.close()
            raise UserError(f"env={self.config.env!r} has no MuJoCo scene to view; `kit video` records a video of it.")
        self._task = self._env.task
        self._policies: dict[str, Callable[[bool], Player]] = {}
        chosen: str | None = None
        if run is not None:
            checkpoint = run.find_or_new(step)
            for number in run.steps():
                title = "before training" if run.is_untrained(run.find_or_new(number)) else f"step {number:,}"
                self._policies[title] = partial(self._trained, run, number)
                if number == (checkpoint.step if checkpoint else 0):
                    chosen = title
        if isinstance(task := self._task, Arm):
            self._policies[BY_HAND] = lambda noise: by_hand(task, self._target, self._fingers)
        for name in self._task.scripts:
            self._policies[f"scripted: {name}"] = partial(self._scripted, name)
        if not self._task.scripts and self._env.scripted() is not None:  # a task may override `scripted`
            self._policies["scripted"] = partial(self._scripted, None)
        if not self._policies:
            self._env.close()
            raise UserError(f"env={self.config.env!r} has no scripted policy and cannot be moved by hand; name a run.")
        with contextlib.redirect_stdout(io.StringIO()):  # hides viser's message; `__repr__` has the address
            self._server = viser.ViserServer(host=HOST, port=port, verbose=False)
        self.port = self._server.get_port()
        self.url = f"http://{HOST}:{self.port}"
        model = copy.copy(self._task.model)  # a copy, because materials are removed from it
        # remove materials without a texture, so that their geoms are shown in their rgba colour
        model.geom_matid[~np.isin(model.geom_matid, np.nonzero((model.mat_texid >= 0).any(1))[0])] = -1
        self._robot, self._walks = robot_body(model), model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        extent_m = np.ptp(self._task.sim.xpos[0, 1:].numpy(), axis=0).max()
        self._offsets = grid_positions(n_envs, SPACING * float(extent_m))
        if n_envs > 1:  # mjviser draws fixed bodies only once; if marked as moving, they are drawn in every env
            model.body_weldid[1:] = np.arange(1, model.nbody)
        self._scene = mjviser.ViserMujocoScene(self._server, model, num_envs=n_envs)
        self._scene.camera_tracking_enabled, self._scene._tracked_body_id = self._walks, self._robot
        self._gamepad: Gamepad | None = None
        self._is_deflected = False  # whether a stick of the gamepad was deflected in the step before
        self._totals, self._bars_due, self._full_bar = Totals(n_envs, 0), 0.0, bars.full_bar(self._env.action_space)
        self._place_camera()
        self._build(self._server.gui, chosen or next(iter(self._policies)))
        self._asked_port, self._open[port] = port, self
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"view-{self.name}", daemon=True)
        self._thread.start()

    _open: dict[int, Viewer] = {}  # noqa: RUF012 - of this process
    """Port that was asked for -> its viewer. A cell that is run again replaces its viewer."""

    def _trained(self, run: Run, step: int, noise: bool) -> Player:
        return load_policy(run.config, run.find_or_new(step)).as_actor(not noise)

    def _scripted(self, name: str | None, noise: bool) -> Player:
        return Script(self._env, name)

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._open.pop(self._asked_port, None)
        self._thread.join()
        self._server.stop()
        self._env.close()

    def __repr__(self) -> str:
        return f"{self.name} plays at {self.url}"

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        if "google.colab" in sys.modules:
            from google.colab import output

            output.serve_kernel_port_as_iframe(self.port, height=HEIGHT)
        else:
            display(HTML(frame(self.url)))
        print(self)
        if isinstance(self._task, Arm | Joystick):
            try:
                self._gamepad = Gamepad(need("ipywidgets", "notebook"))
            except UserError:
                return  # the viewer works without one
            display(self._gamepad.widget)

    def _place_camera(self) -> None:
        self._env.reset(seed=0)
        sim, camera = self._task.sim, self._server.initial_camera
        if self._walks:
            distance = CAMERA_DISTANCE * (0.3 + float(sim.xpos[0, 1, 2]))
            eye, at = distance * np.array([0.6, -0.7, 0.4]), np.zeros(3)
        elif self._env.cameras:
            number = self._task.model.camera(self._env.cameras[0]).id
            eye, ahead = sim.cam_xpos[0, number].numpy(), -sim.cam_xmat[0, number].view(3, 3)[:, 2].numpy()
            at = eye + np.linalg.norm(sim.xpos[0, 1:].numpy().mean(0) - eye) * ahead
        else:
            return
        # move the camera back, so that all envs are in view
        middle, back = self._offsets.mean(0), eye - at
        back *= 1 + 0.6 * np.linalg.norm(np.ptp(self._offsets, axis=0)) / np.linalg.norm(back)
        camera.position, camera.look_at = at + middle + back, at + middle

    def _follow_or_not(self) -> None:
        """Start or stop following the robot.

        While following, mjviser shifts the scene so that the robot is at the origin. The cameras are shifted by the
        same vector, so that the view does not jump.
        """
        follow = self._follow.value
        moved = -self._robot_position() if follow else self._robot_position()
        self._scene.camera_tracking_enabled = follow
        clients = self._server.get_clients().values()
        for camera in (self._server.initial_camera, *(client.camera for client in clients)):
            position, at = camera.position + moved, camera.look_at + moved
            camera.position, camera.look_at = position, at
        self._update_scene()

    def _robot_position(self) -> np.ndarray:
        """Return where the robot of the chosen env is in the scene, (3,)."""
        env = self._chosen_env
        offset = self._offsets[env] if self._shown_envs.value == ALL_ENVS else 0.0
        position: np.ndarray = self._task.sim.xpos[env, self._robot].numpy() + offset
        return position

    @property
    def _chosen_env(self) -> int:
        """Number of the env whose values are shown; the first while all are shown."""
        return 0 if self._shown_envs.value == ALL_ENVS else int(self._shown_envs.value.split()[-1])

    # -- controls --------------------------------------------------------------------------------------------------

    def _build(self, gui: Any, chosen: str) -> None:
        self._caption = gui.add_markdown("")
        self._policy = gui.add_dropdown("policy", list(self._policies), initial_value=chosen)
        self._policy.on_update(lambda _: self._adapt_speed())
        self._is_slow = False  # whether the speed is that of episodes moved by hand
        self._noise = gui.add_checkbox("random actions (exploration noise)", initial_value=False)
        self._speed = gui.add_slider("speed", 0.1, 3.0, 0.1, initial_value=1.0)
        self._paused = gui.add_checkbox("pause", initial_value=False)
        self._new_episode = False
        button = gui.add_button("new episode")
        button.on_click(lambda _: setattr(self, "_new_episode", True))
        self._follow = gui.add_checkbox("camera follows the robot", initial_value=self._walks)
        self._follow.on_update(lambda _: self._follow_or_not())
        n_envs = self._env.num_envs
        choices = [ALL_ENVS, *(f"env {i}" for i in range(n_envs))]
        self._shown_envs = gui.add_dropdown("envs", choices, initial_value=ALL_ENVS, visible=n_envs > 1)
        self._shown_envs.on_update(lambda _: self._draw())
        panel = gui.add_panel()
        with panel.add_tab("reward and actions"):
            self._bars = gui.add_html("")
        panel.dock_left()
        panel.set_width(BARS_PX)
        gui.main_panel.dock_right()  # floating, it would cover the robot
        gui.main_panel.set_width(BARS_PX)
        self._joystick: list[Any] = []
        self._fingers: Any = None
        self._adapt_speed()
        if isinstance(self._task, Arm):
            hand_w = self._task.hand_w[0].tolist()
            self._target = self._server.scene.add_transform_controls(
                "/fixed_bodies/target", scale=0.15, position=hand_w, disable_rotations=True
            )
            if isinstance(self._task, PickAndPlace):
                self._fingers = fingers = gui.add_checkbox(f"close the fingers ({FINGERS_KEY})", initial_value=False)
                toggle = gui.add_command("close or open the fingers", hotkey=FINGERS_KEY)
                toggle.on_trigger(lambda _: setattr(fingers, "value", not fingers.value))
            self._add_keys(gui, ("target x", "target y", "target z"), self._move_target)
        elif isinstance(self._task, Joystick):
            with gui.add_folder("joystick"):
                self._steer = gui.add_checkbox("steer with these sliders", initial_value=False)
                names = ("forward, m/s", "left, m/s", "turn, rad/s")
                limits = zip(names, self._task.most_speed, strict=True)
                self._joystick = [gui.add_slider(name, -most, most, 0.05, initial_value=0.0) for name, most in limits]
            self._add_keys(gui, names, self._move_slider)
        with gui.add_folder("record demonstrations", expand_by_default=False):
            self._recording = gui.add_checkbox("record", initial_value=False)
            self._folder = gui.add_text("folder", initial_value="demonstrations")
            self._save_button = gui.add_button("save", disabled=True)
            self._recorded, self._saved = gui.add_markdown("no episode recorded"), ""
        self._save_button.on_click(lambda _: self._save())
        self._episodes: list[tuple[str, Any]] = []  # (policy, episode)

    def _add_keys(self, gui: Any, names: tuple[str, ...], move: Callable[[int, int], None]) -> None:
        """Add a key for more and one for less of each value in `names`; they call `move(index, 1 or -1)`."""
        keys = "; ".join(f"**{more} {less}** {name}" for name, (more, less) in zip(names, KEYS, strict=True))
        gui.add_markdown(f"Keys, after a click into the scene: {keys}")
        for index, (name, (more, less)) in enumerate(zip(names, KEYS, strict=True)):
            gui.add_command(f"{name}: more", hotkey=more).on_trigger(lambda _, i=index: move(i, 1))
            gui.add_command(f"{name}: less", hotkey=less).on_trigger(lambda _, i=index: move(i, -1))

    def _adapt_speed(self) -> None:
        """Slow down episodes moved by hand, so that they last `BY_HAND_S` at least; play others in real time."""
        is_slow = self._policy.value == BY_HAND
        if is_slow != self._is_slow:
            episode_s = self._task.episode_steps * self._env.control_dt_s if is_slow else BY_HAND_S
            self._speed.value = max(self._speed.min, min(1.0, round(episode_s / BY_HAND_S, 1)))
        self._is_slow = is_slow

    def _move_target(self, axis: int, sign: int) -> None:
        position = np.array(self._target.position)
        position[axis] += sign * NUDGE_M
        self._target.position = position

    def _move_slider(self, axis: int, sign: int) -> None:
        slider, self._steer.value = self._joystick[axis], True
        slider.value = float(np.clip(slider.value + 0.2 * sign * slider.max, slider.min, slider.max))

    def _obey_gamepad(self) -> None:
        """Steer, or move the target, by the sticks. Left: forward and sideways; right: turn, or up and down."""
        if self._gamepad is None:
            return
        sticks = self._gamepad.sticks()
        was_deflected, self._is_deflected = self._is_deflected, bool(sticks.any())
        if not self._is_deflected and not was_deflected:  # not used: sliders and mouse decide
            return
        if isinstance(self._task, Joystick):
            self._steer.value = True
            for slider, stick in zip(self._joystick, (sticks[1], -sticks[0], -sticks[2]), strict=True):
                slider.value = round(float(stick) * slider.max, 2)
        elif isinstance(self._task, Arm):
            moved = np.array([sticks[1], -sticks[0], sticks[3]]) * STICK_M_S * self._env.control_dt_s
            hand_w = self._task.hand_w[0].numpy()
            ahead = np.array(self._target.position) + moved - hand_w
            self._target.position = hand_w + ahead.clip(-AHEAD_M, AHEAD_M)

    def _save(self) -> None:
        """Save the recorded episodes as a dataset in the folder whose name is entered."""
        saved, self._episodes = self._episodes, []  # episodes that end meanwhile are for the next save
        if not saved:  # a second click
            return
        policies = ", ".join(dict.fromkeys(policy for policy, _ in saved))
        try:
            path = write(Path(self._folder.value), self._env, self.config, policies, (episode for _, episode in saved))
        except (UserError, OSError) as error:
            self._episodes, self._recorded.content = saved + self._episodes, str(error)
            return
        self._saved = self._recorded.content = f"episodes saved: {len(saved)}, in {path}"
        self._save_button.disabled = not self._episodes

    def _new_recorder(self) -> Recorder | None:
        """Return a recorder if "record" is ticked. If Minari is missing, say so and untick it."""
        if not self._recording.value:
            return None
        try:
            return Recorder(self._env, 1)
        except UserError as error:
            self._recording.value, self._recorded.content = False, str(error)
            return None

    # -- playing ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Play until the viewer is closed. An error, such as of a damaged checkpoint, is shown as the caption."""
        try:
            self._play()
        except Exception as error:
            self._caption.content = f"The viewer stopped ({type(error).__name__}: {error}); open it again."
            raise

    def _play(self) -> None:
        torch.set_num_threads(1)
        restart, loaded = True, None
        while not self._closed.is_set():
            if not self._server.get_clients():
                self._closed.wait(IDLE_S)
                continue
            requested = self._policy.value, self._noise.value, self._recording.value
            if requested != loaded:  # start a new episode, so that recorded episodes are whole
                player, restart, loaded = self._policies[requested[0]](requested[1]), True, requested
            if restart or self._new_episode:
                restart, self._new_episode, recorder = False, False, self._new_recorder()
                episode = int(self._totals.episode[0]) + 1
                seed = self.config.seed + (EVAL_SEED if recorder is None else RECORD_SEED) + episode
                transitions = play(self._env, player, self._env.reset(seed=seed))
                self._totals = Totals(self._env.num_envs, episode)
                self._place_target()
                self._draw()
            due = time.monotonic() + self._env.control_dt_s / self._speed.value
            self._obey_gamepad()
            if isinstance(self._task, Joystick) and self._steer.value:
                self._task.steer(torch.tensor([slider.value for slider in self._joystick]))
            if not self._paused.value:
                transition = next(transitions)
                self._totals.add(transition)
                if recorder is not None and (whole := recorder.add(transition)):
                    self._episodes.extend((requested[0], each) for each in whole)
                    new = f"episodes recorded: {len(self._episodes)}"
                    self._recorded.content = f"{self._saved}; {new}" if self._saved else new
                    self._save_button.disabled = False
                if transition.ended[0]:
                    self._place_target()
                self._draw()
            self._closed.wait(max(0.0, due - time.monotonic()))

    def _place_target(self) -> None:
        """Put the target of `by_hand` where the hand is."""
        if isinstance(self._task, Arm):
            self._target.position = self._task.hand_w[0].numpy()

    def _draw(self) -> None:
        """Draw the scene and the caption, and the bars if they are due."""
        env, totals = self._chosen_env, self._totals
        self._caption.content = totals.caption(env)
        self._update_scene()
        if totals.step and time.monotonic() >= self._bars_due:
            self._bars_due = time.monotonic() + BARS_S
            step, total = ({name: float(x[env]) for name, x in terms.items()} for terms in (totals.step, totals.total))
            action = totals.action[env].flatten().numpy()
            rewards = bars.reward_bars(step, total, totals.most)
            actions = bars.field_bars(self._task.task_info.does, action, np.full(len(action), self._full_bar), "a")
            self._bars.content = f"<style>{bars.CSS}</style>{rewards}{actions}"

    def _update_scene(self) -> None:
        self._scene.env_idx, self._scene.show_only_selected = self._chosen_env, self._shown_envs.value != ALL_ENVS
        arrays = [self._task.sim.field(name).numpy() for name in ("xpos", "xmat", "mocap_pos", "mocap_quat")]
        if not self._scene.show_only_selected:
            for i in (0, 2):
                arrays[i] = arrays[i] + self._offsets[:, None]
        self._scene.update_from_arrays(*arrays)


def frame(url: str) -> str:
    """Return a frame with the viewer at `url` as HTML. The viewer is dark if the page's text is light."""
    is_dark = "getComputedStyle(parentElement).color.match(/[0-9]+/)[0]>127"
    load = f"if(!src)src='{url}'+({is_dark}?'?darkMode':'')"  # the empty frame's load event sets the address
    return f'<div><iframe onload="{load}" width="100%" height="{HEIGHT}" frameborder="0"></iframe></div>'


def by_hand(task: Arm, target: Any, fingers: Any = None) -> Player:
    """Return a player that moves the hand, in the first env, towards `target`, dragged in the viewer.

    `fingers`: a checkbox, whether they are closed; for PickAndPlace.
    """

    def act(_: Obs) -> torch.Tensor:
        target_w = torch.as_tensor(np.array(target.position), dtype=task.dtype)
        action = task.toward(target_w.expand(task.n, 3))
        if fingers is not None and not fingers.value:
            action[0, -1] = 1.0
        action[1:] = 0.0
        return action

    return Stateless(act)


def robot_body(model: mujoco.MjModel) -> int:
    """Return the id of the body that the camera follows: a free robot's base, else the end of the longest chain."""
    moving = np.nonzero(model.body_weldid)[0].tolist()
    if not moving or model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
        return moving[0] if moving else 0

    def depth(body: int) -> int:
        return 0 if body == 0 else 1 + depth(int(model.body_parentid[body]))

    return max(moving, key=depth)


def grid_positions(n: int, spacing_m: float) -> np.ndarray:
    """Return the positions of `n` envs in a square grid, (n, 3); the first is at the origin."""
    columns = math.ceil(math.sqrt(n))
    return spacing_m * np.array([(i % columns, i // columns, 0.0) for i in range(n)])


def view(
    run: Run | str | Path | None = None,
    step: int | str | None = None,
    port: int = 8080,
    trust: bool = False,
    *,
    env: str = "Reach",
    env_options: dict[str, Any] | None = None,
    n_envs: int = 1,
) -> Viewer:
    """Show a policy live in 3-D in this notebook: that of `run`, a scripted policy of `env`, or your own actions.

    `step`: the policy to begin with; default: the best. A panel shows the reward, its terms and the actions as bars.
    `n_envs`: show several envs, side by side or one of them; you act and record in the first.

    Arms (Reach, Push, `reach:ROBOT` and the like): choose the policy "by hand", then drag the target, or click into the
    scene and move it with the keys I K, J L and U O; in PickAndPlace, G closes the fingers. Joystick tasks: steer a
    policy with the sliders, or with the same keys. Both obey the sticks of a gamepad at your computer, too: press
    one of its buttons, and it appears below the viewer. Tick
    "record" to keep whole episodes, and save them as a dataset for `kit.RunConfig(dataset=...)`. On a phone the
    controls cover the lower part of the scene; a tap on their head folds them.

    On a remote machine the viewer works in Colab, or through `ssh -L`. Needs the pip extra `view`. `trust` as in
    `kit.resume`.
    """
    if run is not None:
        return Viewer(opened(run, trust), step, port, n_envs)
    config = RunConfig(env=env, env_options=env_options or {})
    permit(config, trust)
    return Viewer(config, step, port, n_envs)
