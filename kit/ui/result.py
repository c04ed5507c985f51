"""What is left in the notebook when the run is over: plain outputs, readable without a kernel."""

from __future__ import annotations

import base64
import html
from typing import Any

from kit.runs.run import Run
from kit.ui import headless, players, plots, style
from kit.ui.filming import Filming
from kit.ui.panel import TrainPanel
from kit.ui.resume import ResumePanel

WAITING = "The result appears here as soon as the run is finished; you can also run this cell again later."


def report(source: TrainPanel | ResumePanel | Run) -> None:
    """Show the success rate, the learning curve and a video of a run; of a panel's run, as soon as it has ended."""
    from IPython.display import HTML, display

    if isinstance(source, Run):
        display(Result(source))
        return
    if headless.nobody_there() or (source.run is not None and not source.run.is_working()):
        if source.run is not None:
            display(Result(source.run))
        return
    handle = display(HTML(style.page(style.note(WAITING))), display_id=True)
    source.on_end.append(lambda run: handle.update(Result(run)))


class Result:
    """A finished run as one output: sentence, figure, video."""

    def __init__(self, run: Run) -> None:
        self.run = run
        filming = Filming(run)
        filming.finish()
        self._trouble, self._video = filming.error, filming.latest

    def __repr__(self) -> str:
        return sentence(self.run)

    def _repr_html_(self) -> str:
        parts = [f"<p style='font-size:16px;margin:6px 0'>{emphasised(self.run)}</p>"]
        parts.append(f"<img alt='learning curve' style='max-width:100%' src='{_png(plots.learning_curve(self.run))}'>")
        if self._video is not None:
            parts.append(style.flex([players.tag(self._video, players.caption(self._video), 360)]))
        if self._trouble:
            parts.append(style.error(self._trouble))
        parts.append(style.note(f"The run is kept in {self.run.path.parent.name}/{self.run.name}."))
        return style.page(*parts)


def sentence(run: Run) -> str:
    """Such as "Reach with PPO reached 100 % success in evaluation after 100,352 steps (finished)."."""
    now = run.status()
    if now["success_rate"] is not None:
        what = f"{style.percent(now['success_rate'])} success"
    elif now["mean_return"] is not None:
        what = f"a mean return of {now['mean_return']:.2f}"
    else:
        what = "no result yet"
    return f"{run.config.env} with {run.config.algo}: {what} after {now['step']:,} steps ({now['state']})."


def emphasised(run: Run) -> str:
    return f"<b>{html.escape(sentence(run))}</b>"


def _png(figure: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(plots.png(figure)).decode()
