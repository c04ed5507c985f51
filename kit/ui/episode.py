"""Scrubber: one recorded episode with a slider over its steps: frame, reward terms, observation, action, value."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from kit.envs.obs import leaves
from kit.envs.task_info import Field, TaskInfo
from kit.errors import UserError, need
from kit.machine.settings import one_thread
from kit.runs.evaluation import EVAL_SEED
from kit.runs.opponents import make_env
from kit.runs.run import Run, load_policy
from kit.runs.video import failures_first
from kit.ui import bars, style
from kit.ui.gallery import find_run
from kit.ui.headless import nobody_there
from kit.ui.learning import Curve
from kit.ui.plots import TEXT, draw, term_colours
from kit.ui.task import action_fields, observation_fields

if TYPE_CHECKING:
    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Obs

MAX_FRAMES, SIZE, QUALITY = 100, 320, 75
"""Maximum number of frames of an episode, their width and height in pixels, and JPEG quality: about 1 MB."""
SHOWN = 8
"""Number of reward terms in the chart, the largest."""
STILLS = 5
"""Number of frames in the still picture of an episode."""
WIDTH, CHART = 900, 150
"""Width of the scrubber and height of its chart in pixels."""
CSS = f"""
.kit-episode{{max-width:{WIDTH}px;overflow:visible}}
.kit-step{{display:grid;grid-template-columns:{SIZE}px minmax(0,1fr);gap:14px;font:13px/1.4 system-ui,sans-serif}}
.kit-step img{{border-radius:8px;display:block;width:100%}}
.kit-episode .slider-container{{overflow:visible}}
.kit-episode svg{{display:block;width:calc(100% - 12px);margin:0 6px}}
.kit-episode .noUi-handle:before{{content:'';position:absolute;left:calc(50% - 1px);top:auto;bottom:100%;
  height:{CHART + 14}px;width:0;border-left:1.5px dashed currentColor;opacity:.6;background:none;pointer-events:none}}
@media(max-width:640px){{.kit-step{{grid-template-columns:1fr}}}}
"""


@dataclass(frozen=True)
class Episode:
    """One episode of a policy, step by step. In a notebook it displays itself with a slider over its steps.

    In a notebook executed without a user it is a picture: `STILLS` frames, and the reward terms below them.
    """

    title: str
    frames: list[bytes]
    """JPEGs, one before every `stride`-th step."""
    stride: int
    observations: np.ndarray
    """(steps, k): the observation given to the policy, without images."""
    actions: np.ndarray
    """(steps, j): the actions that the env gets, clipped to the action space."""
    rewards: dict[str, np.ndarray]
    """The reward (steps,) as "reward", and its terms (steps,) by name."""
    values: np.ndarray | None
    """(steps,): value estimate of the critic, in units of the reward; None for policies without one."""
    observation_fields: list[Field]
    action_fields: list[Field]
    full_bar: float
    """Value at which an action's bar is full: the largest in the action space, 1 if it has no limit."""

    def __repr__(self) -> str:
        steps, total = len(self.actions), self.rewards["reward"].sum()
        frames = f", a frame every {self.stride} steps" if self.stride > 1 else ""
        return f"{self.title}: {steps} steps{frames}, return {total:.2f}"

    @property
    def colours(self) -> dict[str, str]:
        """Colours of the reward's largest terms, which the chart shows; the reward and the other terms are grey."""
        terms = sorted(set(self.rewards) - {"reward"}, key=lambda name: -abs(self.rewards[name]).sum())
        colours = term_colours(terms)
        return dict.fromkeys(["reward", *terms], style.GREY) | {name: colours[name] for name in sorted(terms[:SHOWN])}

    def picture(self) -> Any:
        """Return a matplotlib figure: frames spread over the episode, and the reward terms below."""
        from PIL import Image

        shown = np.linspace(0, len(self.frames) - 1, STILLS).round().astype(int)
        empty = np.zeros((0, 2))
        title = f"{self}; steps {', '.join(str(i * self.stride) for i in shown)}"
        figure, (top, below) = draw([Curve(title, empty, empty), Curve("reward", empty, empty)], 1, (9.4, 2.2))
        top.imshow(np.concatenate([np.asarray(Image.open(io.BytesIO(self.frames[i]))) for i in shown], 1))
        top.set_axis_off()
        below.plot(self.rewards["reward"], color=TEXT, linewidth=4, alpha=0.4, label="reward")
        for name, colour in self.colours.items():
            if colour != style.GREY:
                below.plot(self.rewards[name], color=colour, linewidth=1.4, label=name)
        below.set_xlabel("step of the episode", color=TEXT)
        figure.legend(loc="outside right lower", frameon=False, labelcolor=TEXT, fontsize=8)
        return figure

    def _ipython_display_(self) -> None:
        from IPython.display import display

        picture = self.picture()
        if nobody_there():
            display(picture)
            return
        shown = self.view(need("ipywidgets", "notebook"))._repr_mimebundle_() | {"text/plain": repr(self)}
        display(shown | {"image/png": base64.b64encode(picture._repr_png_()).decode()}, raw=True)

    def view(self, w: Any) -> Any:
        """Return the scrubber as a widget. `w`: ipywidgets."""
        last, wide = len(self.frames) - 1, w.Layout(width="100%", margin="0")
        slider = w.IntSlider(max=last, readout=False, layout=wide)
        play = w.Play(max=last, interval=100, show_repeat=False)
        w.jslink((play, "value"), (slider, "value"))
        above, below = (self._page(w, slider, texts) for texts in zip(*self._pages(), strict=True))
        css = w.HTML(f"<style>{style.CSS}{bars.CSS}{CSS}</style>", layout=w.Layout(display="none"))
        title = w.HTML(style.heading(repr(self)), layout=wide)
        view = w.VBox([css, title, above, w.HTML(self._chart(), layout=wide), slider, play, below])
        view.add_class("kit-episode")
        return view

    @staticmethod
    def _page(w: Any, slider: Any, texts: Sequence[str]) -> Any:
        """Return a widget that shows the one of `texts` (HTML) that `slider` selects."""
        wide = w.Layout(width="100%", margin="0")
        if hasattr(w, "Stack"):  # ipywidgets 8: the browser changes the page, without this process
            page = w.Stack([w.HTML(text, layout=wide) for text in texts], selected_index=0, layout=wide)
            w.jslink((slider, "value"), (page, "selected_index"))
        else:
            page = w.HTML(texts[0], layout=wide)
            slider.observe(lambda change: setattr(page, "value", texts[change.new]), "value")
        return page

    def _pages(self) -> Iterator[tuple[str, str]]:
        """Yield the HTML of each frame: the image beside the rewards and the action, and the observation."""
        totals = {name: values.cumsum() for name, values in self.rewards.items()}
        most = tuple(max(abs(x).max() for x in terms.values()) for terms in (self.rewards, totals))
        full_action = np.full(self.actions.shape[1], self.full_bar)
        full_observation = abs(self.observations).max(0)
        for frame, jpeg in enumerate(self.frames):
            step = min(frame * self.stride, len(self.actions) - 1)
            reward, total = ({name: float(x[step]) for name, x in terms.items()} for terms in (self.rewards, totals))
            value = "" if self.values is None else f", value estimate {self.values[step]:.2f}"
            caption = style.note(f"step {step} of {len(self.actions)}, return {total['reward']:.2f}{value}")
            caption = f"<div style='min-height:3.4em'>{caption}</div>"  # with one line or two
            picture = f"<img alt='' src='data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}'>"
            rewards = bars.reward_bars(reward, total, most, self.colours)
            action = bars.field_bars(self.action_fields, self.actions[step], full_action, "a")
            observation = bars.field_bars(self.observation_fields, self.observations[step], full_observation, "o")
            yield f"<div class='kit-step'><div>{picture}{caption}</div><div>{rewards}{action}</div></div>", observation

    def _chart(self) -> str:
        """Return the reward and its largest terms over the steps as SVG, as wide as the slider."""
        names = [name for name, colour in self.colours.items() if colour != style.GREY]
        last, reward, zero = (len(self.frames) - 1) * self.stride, self.rewards["reward"], np.zeros(len(self.actions))
        shown = [(zero, style.GREY, 1.4), (reward, style.GREY, 4.0)]  # the reward may lie under its largest term
        shown += [(self.rewards[name], self.colours[name], 1.4) for name in names]
        low, high = min(x.min() for x, *_ in shown), max(1e-9, *(x.max() for x, *_ in shown))

        def line(values: np.ndarray, colour: str, width: float) -> str:
            points = " ".join(f"{x},{CHART * (high - y) / (high - low):.1f}" for x, y in enumerate(values[: last + 1]))
            stroke = f"stroke='{colour}' stroke-width='{width}' vector-effect='non-scaling-stroke'"
            return f"<polyline points='{points}' {stroke}/>"

        lines = "".join(line(*each) for each in shown)
        box = f"viewBox='0 0 {max(1, last)} {CHART}' height='{CHART}' preserveAspectRatio='none'"
        key = "".join(
            f" <span style='white-space:nowrap'><b style='color:{self.colours[name]}'>—</b> {html.escape(name)}</span>"
            for name in ("reward", *names)
        )
        where = f"<span style='white-space:nowrap'>from {low:.2f} to {high:.2f}</span>"
        label = f"<div class='kit-note'>reward of each step and its largest terms, {where}:{key}</div>"
        box += f" role='img' aria-label='rewards of each step: {', '.join(map(html.escape, self.colours))}'"
        return f"{label}<svg {box} fill='none' style='overflow:visible'>{lines}</svg>"


@one_thread()
def episode(run: Run | str | Path, step: int | str | None = None, episode: int | str = 0) -> Episode:
    """Play one episode and show it with a slider over its steps: frame, rewards, observation, action, value estimate.

    `run`: a run or its directory. `step`: the policy (default: the best; 0: the initial policy). `episode`: its number,
    from 0, or "worst": the first that `kit.ui.failures` shows. Observations, actions and rewards are arrays of the
    returned `Episode`. Raises `UserError` for any other `episode`.
    """
    need("PIL", "notebook,video")
    from kit.envs.play import play
    from kit.trainers.on_policy import OnPolicyTrainer
    from kit.ui.totals import reward_terms

    run = find_run(run)
    if episode == "worst":
        episode = failures_first(run, step)[0][0]
    if not isinstance(episode, int) or episode < 0:
        raise UserError(f'episode={episode!r} must be a whole number of at least 0, or "worst".')
    saved = run.find_or_new(step)
    trainer = load_policy(run.config, saved)
    actor = trainer.as_actor(not run.is_untrained(saved))
    seed = run.config.seed + EVAL_SEED + episode
    env = make_env(run.config.replace(device="cpu"), 1, seed, 1)
    try:
        obs, stride = env.reset(seed=seed), -(-env.episode_steps // MAX_FRAMES)
        has_values = isinstance(trainer, OnPolicyTrainer) and not actor.initial_state(1)
        frames, steps = [_frame(env)], []
        for transition in play(env, actor, obs, episodes=1):
            terms = {name: float(x[0]) for name, x in reward_terms(transition.reward, transition.info).items()}
            value = [_value(trainer, actor.preprocess(transition.obs))] if has_values else []
            steps.append((_numbers(transition.obs, env), transition.action[0].flatten().numpy(), terms, value))
            if len(steps) % stride == 0 and not transition.ended[0]:
                frames.append(_frame(env))
        observations, actions, terms_, values = zip(*steps, strict=True)
        if isinstance(env.action_space, spaces.Box):
            actions = np.clip(actions, env.action_space.low.ravel(), env.action_space.high.ravel())
        info = getattr(env, "task_info", TaskInfo())
        title = f"{run.name}, {'before training' if saved is None else f'step {saved.step:,}'}, episode {episode}"
        return Episode(
            title, frames, stride, np.stack(observations), np.stack(actions),
            {name: np.array([terms[name] for terms in terms_]) for name in terms_[0]},
            np.concatenate(values) if has_values else None,
            observation_fields(env.observation_space, info), action_fields(env.action_space, info),
            bars.full_bar(env.action_space),
        )  # fmt: skip
    finally:
        env.close()


def _frame(env: BatchEnv) -> bytes:
    """Return an image of the env's current state, as JPEG."""
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(env.render(None, SIZE, SIZE)[0, 0].cpu().numpy()).save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


def _numbers(obs: Obs, env: BatchEnv) -> np.ndarray:
    """Return the numbers of one env's `obs` in one vector, without images; of stacked frames, the newest."""
    parts = []
    for path, entry in leaves("obs", obs):
        values = entry[0, -1] if path[4:] in env.frames else entry[0]
        if values.dtype != torch.uint8 or values.ndim < 2:
            parts.append(values.flatten().float().numpy().copy())
    return np.concatenate([np.zeros(0, np.float32), *parts])


@torch.no_grad()
def _value(trainer: Any, policy_obs: Obs) -> float:
    """Return the critic's value of `policy_obs`, in units of the reward."""
    value, normalizer = float(trainer.policy.predict_values(policy_obs)), trainer.normalizer
    if normalizer is None or not normalizer.norm_reward:
        return value
    return value * float(normalizer.return_moments.var + normalizer.epsilon) ** 0.5
