"""Execute the notebooks and write them as web pages, with a reference made from docstrings.

    python .github/pages.py OUT                                # every notebook at its own size: a few hours
    python .github/pages.py OUT 01_train -p total_steps 8192   # some, with papermill's parameters where they have them

OUT/index.html lists the pages with a picture from each, and says commit, date and machine; pages that an earlier call
made in OUT stay listed. OUT/tasks.webp is the README's picture, made of the runs of 01, 04 and 06. The sources stay as
they are. The exit code is 1 if a notebook failed; its page shows where.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import re
import subprocess
import sys
import time
import warnings
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import numpy as np
import papermill
import yaml
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from PIL import Image

import kit
from kit.machine import describe
from kit.runs.video import record

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PACKAGES = ("kit", "kit.ui", "kit.config", "kit.envs", "kit.envs.task", "kit.trainers", "kit.encoders", "kit.stores")
"""What the reference documents."""
STYLE = """<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:860px;margin:40px auto;padding:0 16px}
li{display:flex;gap:16px;margin:18px 0;align-items:center}
img{width:220px;max-height:120px;object-fit:contain;border-radius:6px}
small{opacity:.7}</style>"""
TILE, PICTURE_S, PICTURE_FPS = 216, 8, 10  # pixels, seconds, frames per second of the README's picture
FOLDED = r"""{% extends "lab/index.html.j2" %}{% block input %}
{%- if cell.metadata.get("jupyter", {}).get("source_hidden") %}<details style="font:13px system-ui,sans-serif">
<summary>{{ cell.source.split("\n")[0] | replace("# @title ", "") }}</summary>{{ super() }}</details>
{%- else %}{{ super() }}{% endif %}{% endblock %}"""
"""nbconvert's template, with the cells folded that are folded in the notebook."""


class Lesson(NamedTuple):
    """An executed notebook."""

    name: str
    title: str
    minutes: float
    error: str
    """Last line of the error that ended it, else empty."""
    made: str
    """Version, commit, date and machine."""


def execute(source: Path, out: Path, given: dict[str, Any]) -> Lesson:
    """Execute `source` in OUT/work, where later notebooks find its runs; write OUT/NAME.html and perhaps OUT/NAME.png.

    `given`: parameters by name; those that the notebook does not have are left out.
    """
    work, result = out / "work", out / "work" / source.name
    work.mkdir(parents=True, exist_ok=True)
    if source.stem == "02_resume":  # as a reader who pressed Stop in 01_train: leave it a run to continue
        run = kit.launch(runs_dir=str(work / "runs"), total_steps=given.get("total_steps", 100_000))
        run.wait(300, until=lambda now: now["step"] > 0 or not run.is_working(now))
        run.stop()
        run.wait(300)
    parameters = {name: given[name] for name in papermill.inspect_notebook(source) if name in given}
    started, error = time.monotonic(), ""
    try:
        papermill.execute_notebook(source, result, parameters, cwd=work, kernel_name="python3", log_output=False)
    except papermill.PapermillExecutionError as raised:
        error = f"{raised.ename}: {raised.evalue}"
    minutes = (time.monotonic() - started) / 60
    page, _ = HTMLExporter(exclude_input_prompt=True, raw_template=FOLDED).from_filename(str(result))
    (out / f"{source.stem}.html").write_text(with_links(page))
    if picture := preview(result):
        (out / f"{source.stem}.png").write_bytes(picture)
    title = "".join(json.loads(source.read_text())["cells"][0]["source"]).splitlines()[0].removeprefix("# ")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    made = f"kit {kit.__version__}, commit {commit.stdout.strip()}, {datetime.now(UTC):%Y-%m-%d}, {describe().title}"
    return Lesson(source.stem, title, minutes, error, made)


def with_links(page: str) -> str:
    """Return a page whose links lead to the pages of other lessons, and to kit's repository for its files."""
    page = re.sub(r'href="(\w+)\.ipynb(#|")', r'href="\1.html\2', page).replace('href="TERMS.md', 'href="TERMS.html')
    return page.replace('href="../', f'href="{kit.HOME}/blob/main/')


def terms() -> str:
    """Return the page of terms. Its anchors are in lower case, as on GitHub, where the lessons' links lead too."""
    body = markdown2html((ROOT / "notebooks/TERMS.md").read_text())
    body = re.sub(r'(id|href)="(#?[\w-]+)"', lambda found: f'{found[1]}="{found[2].lower()}"', body)
    return f"<title>kit: terms</title>{STYLE}{with_links(body)}"


def preview(notebook: Path) -> bytes | None:
    """Return the largest PNG among a notebook's outputs, the one that shows most, None if it has none."""
    outputs = [output for cell in json.loads(notebook.read_text())["cells"] for output in cell.get("outputs", [])]
    found = [png for output in outputs if (png := output.get("data", {}).get("image/png"))]
    return base64.b64decode(max(found, key=len)) if found else None


def moving_picture(work: Path, path: Path) -> None:
    """Write the README's picture, an animated WebP, if `work` has the runs: Reach before and after, a dog, plates."""
    first = {run.config.env: run for run in kit.runs(work / "runs")}  # the latest is listed first
    shown = [("Reach", 0), ("Reach", "best"), ("Go1Joystick", "best"), ("DishwashingVideo", "best")]
    if not {env for env, _ in shown} <= first.keys():
        return
    tiles = []
    for env, step in shown:
        frames = imageio_ffmpeg.read_frames(record(first[env], step, size=TILE, path=work / f"{env}-{step}.mp4"))
        fps, video = next(frames)["fps"], [np.frombuffer(frame, np.uint8).reshape(TILE, TILE, 3) for frame in frames]
        tiles.append(np.stack([video[int(i * fps / PICTURE_FPS) % len(video)] for i in range(PICTURE_S * PICTURE_FPS)]))
    images = [Image.fromarray(frame) for frame in np.concatenate(tiles, axis=2)]
    settings = {"duration": 1000 // PICTURE_FPS, "loop": 0, "quality": 30, "method": 6}
    images[0].save(path, save_all=True, append_images=images[1:], **settings)


def index(out: Path, lessons: list[Lesson]) -> str:
    """Return the front page: a line per lesson, and what they were made with."""
    lines = []
    for lesson in lessons:
        image = f'<img src="{lesson.name}.png" alt="">' if (out / f"{lesson.name}.png").exists() else ""
        note = f"failed: {lesson.error}" if lesson.error else f"{lesson.minutes:.1f} minutes"
        note += f"; {lesson.made}"
        link = f'<a href="{lesson.name}.html">{html.escape(lesson.title)}</a>'
        lines.append(f"<li>{image}<span>{link}<br><small>{html.escape(note)}</small></span></li>")
    return (
        f"<title>kit: lessons</title>{STYLE}<h1>Lessons</h1><p>Executed from top to bottom. "
        f'<a href="TERMS.html">Terms</a>, <a href="reference/kit.html">reference</a>, '
        f'<a href="{kit.HOME}">source</a>.</p><ul>{"".join(lines)}</ul>'
    )


def reference(folder: Path) -> None:
    """Write the public names of `PACKAGES` with their docstrings."""
    import pdoc

    packages = [import_module(name) for name in PACKAGES]
    for package in packages:  # names that a package imports on first use
        vars(package).update({name: getattr(package, name) for name in getattr(package, "__all__", ())})
    with warnings.catch_warnings():  # annotations that are imported for the type checker only stay text
        warnings.filterwarnings("ignore", module="pdoc")
        pdoc.pdoc(*PACKAGES, output_directory=folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the pages")
    parser.add_argument("names", nargs="*", help="notebooks, such as 01_train; default: all")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter")
    options = parser.parse_args()
    out = options.out.resolve()
    given = {name: yaml.safe_load(value) for name, value in options.p}
    names = [path.stem for path in NOTEBOOKS]
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"there is no notebook {unknown[0]!r}; there are {', '.join(names)}")
    sources = [path for path in NOTEBOOKS if not options.names or path.stem in options.names]
    known = out / "work" / "lessons.json"
    lessons = {row[0]: Lesson(*row) for row in (json.loads(known.read_text()) if known.exists() else [])}
    for source in sources:
        lesson = lessons[source.stem] = execute(source, out, given)
        known.write_text(json.dumps([lessons[name] for name in sorted(lessons)]))
        print(f"{lesson.name}: {lesson.error or 'done'}, {lesson.minutes:.1f} minutes", flush=True)
    (out / "TERMS.html").write_text(terms())
    (out / "index.html").write_text(index(out, [lessons[name] for name in sorted(lessons)]))
    reference(out / "reference")
    if not any(lesson.error for lesson in lessons.values()):
        moving_picture(out / "work", out / "tasks.webp")
    return int(any(lessons[source.stem].error for source in sources))


if __name__ == "__main__":
    sys.exit(main())
