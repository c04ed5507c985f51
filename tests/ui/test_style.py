"""Tests of a run's card and of tables in a browser: long names on a phone, and what a screen reader is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kit.ui import notice, style
from kit.ui.learning import Curve
from kit.ui.plots import draw
from tests.ui.fabricate import make_run


def test_a_long_name_and_a_table_fit_a_phone(tmp_path: Path, page: Any) -> None:
    run = make_run(tmp_path, "a" * 99)
    frame = pd.DataFrame({"final score": ["97 % (93 % to 99 %)"] * 2, "worst seed": ["93 %"] * 2}, index=["PPO", "SAC"])
    frame["time to 90 %"], frame["reached 90 %"] = "600k steps, 12 min 30 s", "3 of 3"
    frame["steps/s"], frame["time"] = "4,000", "12 min 30 s"
    page.set_viewport_size({"width": 420, "height": 800})
    page.set_content(f"<style>{style.CSS}</style>{style.wrap(style.head(run.name, run.status()), style.table(frame))}")
    for part in (".kit-card", "div:has(> .kit-table)"):
        assert page.eval_on_selector(part, "box => box.scrollWidth <= box.clientWidth"), part
    bar = page.get_by_role("progressbar")
    assert bar.get_attribute("aria-valuenow") == "60" and bar.get_attribute("aria-label") == "steps done, %"


def test_long_row_names_of_a_table_wrap_so_that_its_last_columns_are_seen(page: Any) -> None:
    names = [f"PPO (total_steps 12000, learning_rate {rate}, gamma 0.97)" for rate in (0.001, 0.002)]
    frame = pd.DataFrame({"seeds": "1", "final score": "100 %", "worst seed": "100 %"}, index=names)
    frame["time to 90 %"], frame["reached 90 %"] = "6.14k steps, 13 s", "1 of 1"
    frame["steps/s"], frame["time"] = "747", "2 min 30 s"
    page.set_content(f"<style>{style.CSS}</style>{style.wrap(style.table(frame))}")
    assert page.eval_on_selector("div:has(> .kit-table)", "box => box.scrollWidth <= box.clientWidth")
    assert page.locator("td").first.bounding_box()["height"] < 60, "of two lines"


def test_a_figure_stays_readable_on_a_phone_and_scrolls(page: Any) -> None:
    """The page itself does not. A figure narrower than the page is as large as it is."""
    drawn, axes = draw(Curve.of([{"step": 1, "eval/success_rate": 0.5, "eval/mean_return": 1.0}]))
    assert len(axes) == 2
    page.set_content(f"<style>{style.CSS}</style>{style.wrap(style.figure(drawn._repr_png_(), 'curves'))}")
    for width, shown in ((420, 0.7 * 1012), (1280, 920)):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.locator("img").bounding_box()["width"] == pytest.approx(shown, abs=2)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_panel_that_is_removed_takes_its_progress_from_the_tabs_title(page: Any) -> None:
    page.set_content("<title>01_train</title><div id='panel'></div>")
    page.add_script_tag(content=f"{notice.ESM.replace('export default', 'window.notice =')}", type="module")
    page.wait_for_function("window.notice")
    page.evaluate("""() => {
      const model = {listeners: [], on(name, call) { this.listeners.push(call) }, get: () => "43 %"};
      window.removed = notice.render({model, el: document.getElementById("panel")});
      model.listeners[0]();
    }""")
    assert page.title() == "43 % · 01_train"
    page.evaluate("() => { removed() }")
    assert page.title() == "01_train"
