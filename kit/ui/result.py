"""The report of a run that has ended: success rate, learning curve and video, readable without a kernel."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from kit.measure.uncertainty import success_differs, success_interval
from kit.runs.run import Run
from kit.ui import cells, style
from kit.ui.dashboard import display_widget
from kit.ui.diagnosis import paid_for_something_else, rise
from kit.ui.headless import nobody_there
from kit.ui.next_steps import NextSteps, advice
from kit.ui.panel import Panel
from kit.ui.plots import learning_curve, side_by_side
from kit.ui.videos import caption, missing_video, poster, tag

WAITING = "The result appears here as soon as the run is finished; you can also run this cell again later."
BLOCKED = (
    "Waiting until the run is finished. Interrupt this cell to stop waiting, for example where buttons do not answer "
    "meanwhile (Colab); the training goes on."
)
STOPPED = "Stopped waiting. Run this cell again for the result."
EVALUATED = "in the evaluations during training"


def report(source: Panel | Run) -> None:
    """Show the success rate, the learning curve and a video of a run.

    `source`: a run or a panel. For a panel, each of its runs is shown when the run has ended, and the cell does not
    wait. For a run that is training, the cell waits until it has ended, so that the next cells find its result; an
    interrupt ends only the waiting. The video is added when it has been recorded. Buttons below train longer, branch,
    compare, view and export.
    """
    from IPython.display import display

    run = source.own_run if isinstance(source, Panel) else source
    if isinstance(source, Panel) and not nobody_there():
        shown = None if run is None or run.is_working() else result(run)
        handle, steps = display(shown or page(run), display_id=True), NextSteps(source)
        display_widget(steps.view, " ")

        def update(run: Run) -> None:
            nonlocal shown
            panel = source.newest
            if panel.own_run is None:  # it was started elsewhere
                return
            if not run.is_working():
                shown = result(run, panel.video_error)
            handle.update(with_note(run, shown) if shown and run.is_working() else shown or page(run))
            steps.choose(run)

        source.reports.append(update)
        cells.when_run_again(lambda: source.reports.remove(update))
        if run is not None:
            steps.choose(run)
    elif run is not None:
        if run.is_working():
            handle = display(style.Page(BLOCKED, style.note(BLOCKED)), display_id=True)
            try:
                run.wait()
            except KeyboardInterrupt:
                handle.update(style.Page(STOPPED, style.note(STOPPED)))
                return
            handle.update(last := result(run))
        else:
            handle = display(last := result(run), display_id=True)
        if missing := missing_video(run):
            warning = ""
            try:
                missing.file()
            except (Exception, KeyboardInterrupt) as error:  # show the rest without the video
                warning = f"No video: {str(error) or 'interrupted'}"
            handle.update(last := result(run, warning))
        if not nobody_there() and find_spec("ipywidgets") and (run.checkpoints() or run.best()):
            steps = NextSteps()
            steps.choose(run)

            def again(now: Run) -> None:
                nonlocal last
                if now.path != run.path:
                    return
                if now.is_working():
                    handle.update(with_note(now, last))
                else:
                    handle.update(last := result(now))
                steps.choose(now)

            steps.dashboard.reports.append(again)
            display_widget(steps.view, " ")


def page(run: Run | None) -> style.Page:
    """Return `result(run)`, or the text `WAITING` if there is no run yet or the run is training."""
    return style.Page(WAITING, style.note(WAITING)) if run is None or run.is_working() else result(run)


def with_note(run: Run, before: style.Page) -> style.Page:
    """Return the report `before` of an earlier run, with a note that `run` trains."""
    text = f"{run.name} trains; when it has ended, its report takes the place of this one."
    return style.Page(f"{text} {before.text}", style.note(text) + before.body, before.image)


def result(run: Run, warning: str = "") -> style.Page:
    """Return the report of a run that has ended: a sentence, the learning curve and a video."""
    text = sentence(run)
    curve: bytes = learning_curve(run)._repr_png_()
    video_follows = not warning and run.status()["state"] == "finished" and missing_video(run) is not None
    video = [] if video_follows else run.videos[-1:]
    parts = [style.heading(text)]
    if test := tested(run):
        text = f"{text} {test}"
        parts.append(style.note(test))
    if verdict := learnt(run):
        text = f"{text} {verdict[0]}"
        parts.append(f"<p class='kit-{verdict[1]}' style='margin:6px 0'>{verdict[0]}</p>")
    if lines := advice(run, improved=bool(verdict and verdict[1] == "good")):
        text = " ".join([text, *lines])
        parts.append(style.bullets("What next?", lines))
    parts.append(style.figure(curve, "learning curve"))
    if video:
        parts.append(style.flex([tag(video[0], caption(video[0]), 360)]))
    if video_follows:
        parts.append(style.note("Its video follows in a moment…"))
    if warning:
        parts.append(style.note(warning, bad=True))
    parts.append(style.note(f"The run directory is {run.path.parent.name}/{run.name}."))
    return style.Page(text, "".join(parts), side_by_side([curve, *map(poster, video)]))


def last_test(run: Run) -> dict[str, Any] | None:
    """Return the metrics of the final test; None without one, or if the run was trained further since."""
    rows = run.rows()
    test = next((row for row in reversed(rows) if "test/step" in row), None)
    return test if test is None or test["step"] >= rows[-1]["step"] else None


def tested(run: Run) -> str:
    """Describe the final test (tested policy, number of episodes) in a sentence; "" without a test."""
    if (row := last_test(run)) is None:
        return ""
    policy = f"the policy of step {row['test/step']:,}, the best in the evaluations"
    return f"Tested in {row['test/episodes']} new episodes, which were not used to choose the policy: {policy}."


def learnt(run: Run) -> tuple[str, str] | None:
    """Compare the last policy with the initial policy; return a sentence and "good", "bad" or "neutral".

    The policy improved if its success rate is significantly higher. If success rates do not differ significantly, it
    improved if its mean return is higher by more than two standard errors; that is not "good" if no episode succeeds,
    or fewer than before. A return that rose while success fell is "bad", or "neutral" if more episodes succeed than
    before training. Returns None if the initial policy was not evaluated.
    """
    rows = [row for row in run.rows() if "eval/std_return" in row]
    if len(rows) < 2 or rows[0]["step"] != 0:
        return None
    hacked = paid_for_something_else(rows)
    worse = "It got worse" if run.status()["state"] == "finished" else "So far it is worse"
    before, after = rows[0], rows[-1]
    if "eval/success_rate" in before and "eval/success_rate" in after:
        (then, _), (now, _) = rates = [(row["eval/success_rate"], row["eval/episodes"]) for row in (before, after)]
        if success_differs(*rates):
            word = "It learnt" if now > then else worse
            text = f"{word}: {EVALUATED}, from {style.percent(then)} to {style.percent(now)} success."
            if now > then:
                return (f"{text} {hacked}", "neutral") if hacked else (text, "good")
            return hacked or text, "bad"
    if hacked:
        return hacked, "bad"
    gain, error = rise(before, after)
    current, initial = (f"{round(row['eval/mean_return'], 2) + 0.0:.2f}" for row in (after, before))  # no "-0.00"
    change = f"{EVALUATED}, from a mean return of {initial} to {current}."
    if abs(gain) <= 2 * error or current == initial:
        return f"No measurable improvement: {change}", "neutral"
    if gain < 0:
        return f"{worse}: {change}", "bad"
    if after.get("eval/success_rate") == 0:
        return f"It improved, but no episode succeeds yet: {change}", "neutral"
    if after.get("eval/success_rate", 1.0) < before.get("eval/success_rate", 0.0):
        return f"The return rose, but success did not: {change}", "neutral"
    return f"It learnt: {change}", "good"


def sentence(run: Run) -> str:
    """Summarise a run, such as "Reach with PPO: 100 % success after 100,352 steps (finished).".

    With a final test, its successes and the interval of the success rate follow.
    """
    now, outcome = run.status(), "no result yet"
    if now["success_rate"] is not None:
        outcome = f"{style.percent(now['success_rate'])} success"
    elif now["mean_return"] is not None:
        outcome = f"a mean return of {now['mean_return']:.2f}"
    text = f"{run.config.env} with {run.config.algo}: {outcome} after {now['step']:,} steps ({now['state']})"
    test = last_test(run) or {}
    rate, episodes = test.get("test/success_rate"), test.get("test/episodes")
    if rate is None or not episodes or rate != now["success_rate"]:
        return f"{text}."
    low, high = success_interval(rate, episodes)
    successes = f"{round(rate * episodes)} of {episodes} new episodes"
    return f"{text}: {successes}; the true rate is probably {100 * low:.0f} to {100 * high:.0f} %."
