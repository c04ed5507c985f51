"""What is left in the notebook when the run is over: plain outputs, readable without a kernel."""

from __future__ import annotations

import base64
import html
import math

from kit.measure.uncertainty import success_differs
from kit.runs.run import Run
from kit.ui import style
from kit.ui.headless import nobody_there
from kit.ui.panel import Panel
from kit.ui.plots import beside, learning_curve
from kit.ui.videos import caption, poster, tag, wanted

WAITING = "The result appears here as soon as the run is finished; you can also run this cell again later."


def report(source: Panel | Run) -> None:
    """Show the success rate, the learning curve and a video of a run; of a panel's run, as soon as it has ended, and so
    of the next one. What is there already never waits for the film."""
    from IPython.display import display

    run = source.run if isinstance(source, Panel) else source
    if isinstance(source, Panel) and not nobody_there():
        handle = display(page(run), display_id=True)
        source.on_change.append(lambda run: handle.update(page(run)))
    elif run is not None:
        handle = display(result(run), display_id=True)
        if missing := wanted(run):
            trouble = ""
            try:
                missing.file()
            except Exception as error:  # the rest is there without it
                trouble = f"No video: {error}"
            handle.update(result(run, trouble))


def page(run: Run | None) -> style.Page:
    """What there is to say of a run that may be at work."""
    return style.Page(WAITING, style.note(WAITING)) if run is None or run.is_working() else result(run)


def result(run: Run, trouble: str = "") -> style.Page:
    """A run that has ended as one output: sentence, figure, video."""
    said = sentence(run)
    curve: bytes = learning_curve(run)._repr_png_()
    figure, film = base64.b64encode(curve).decode(), run.videos[-1:]
    parts = [f"<p style='font-size:16px;margin:6px 0'><b>{html.escape(said)}</b></p>"]
    if test := tested(run):
        said = f"{said} {test}"
        parts.append(style.note(test))
    if judged := learnt(run):
        said = f"{said} {judged[0]}"
        parts.append(f"<p class='{'kit-good' if judged[1] else 'kit-bad'}' style='margin:6px 0'>{judged[0]}</p>")
    parts.append(f"<img alt='learning curve' style='max-width:100%' src='data:image/png;base64,{figure}'>")
    if film:
        parts.append(style.flex([tag(film[0], caption(film[0]), 360)]))
    if trouble:
        parts.append(style.note(trouble, bad=True))
    parts.append(style.note(f"The run is kept in {run.path.parent.name}/{run.name}."))
    return style.Page(said, "".join(parts), beside([curve, *map(poster, film)]))


def tested(run: Run) -> str:
    """Which policy was tested at the end, and in what; empty where none was."""
    row = next((row for row in reversed(run.rows()) if "test/step" in row), None)
    if row is None:
        return ""
    policy = f"the policy of step {row['test/step']:,}, best in the evaluations before"
    return f"Tested in {row['test/episodes']} episodes that chose nothing: {policy}."


def learnt(run: Run) -> tuple[str, bool] | None:
    """Whether the last evaluation succeeds more often than that of the policy training began with, or else its mean
    return is higher by more than two standard errors; in words, and whether it is. None where no such policy was
    evaluated."""
    rows = [row for row in run.rows() if "eval/std_return" in row]
    if len(rows) < 2 or rows[0]["step"] != 0:
        return None
    before, after = rows[0], rows[-1]
    if "eval/success_rate" in before and "eval/success_rate" in after:
        (then, _), (now, _) = rates = [(row["eval/success_rate"], row["eval/episodes"]) for row in (before, after)]
        if success_differs(*rates):
            word = "It learnt" if now > then else "It got worse"
            return f"{word}: {style.percent(now)} success, where it began with {style.percent(then)}.", now > then
    gain = after["eval/mean_return"] - before["eval/mean_return"]
    chance = math.hypot(*(row["eval/std_return"] / math.sqrt(row["eval/episodes"]) for row in (before, after)))
    better, worse = gain > 2 * chance, gain < -2 * chance
    word = "It learnt" if better else "It got worse" if worse else "It learnt nothing that shows"
    now, then = (f"{round(row['eval/mean_return'], 2) + 0.0:.2f}" for row in (after, before))  # no minus before a zero
    return f"{word}: a return of {now}, where it began with {then}.", better


def sentence(run: Run) -> str:
    """Such as "Reach with PPO: 100 % success after 100,352 steps (finished)."."""
    now, what = run.status(), "no result yet"
    if now["success_rate"] is not None:
        what = f"{style.percent(now['success_rate'])} success"
    elif now["mean_return"] is not None:
        what = f"a mean return of {now['mean_return']:.2f}"
    return f"{run.config.env} with {run.config.algo}: {what} after {now['step']:,} steps ({now['state']})."
