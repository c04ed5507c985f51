"""Videos inside the notebook: the file travels in the output, so it plays where the notebook is opened."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.ui import style


def tag(path: Path, caption: str = "", width: int = 320) -> str:
    """An HTML5 player of the mp4 at `path`, looping and silent, `width` pixels wide."""
    data = base64.b64encode(path.read_bytes()).decode()
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><video width="{width}" autoplay loop muted playsinline controls '
        f'src="data:video/mp4;base64,{data}"></video>{below}</figure>'
    )


def caption(path: Path) -> str:
    """Such as "best policy, step 40,000", from a video's file name."""
    found = re.search(r"step_(\d+)", path.stem)
    return f"the policy of step {int(found[1]):,}" if found else path.stem


def gallery(videos: Sequence[tuple[str, Path]], width: int = 320) -> Any:
    """Players beside each other, (caption, path) each, for display in a notebook."""
    from IPython.display import HTML

    return HTML(style.page(style.flex(tag(path, text, width) for text, path in videos)))


def video(path: Path, width: int = 480) -> Any:
    """One player for display in a notebook."""
    return gallery([(caption(path), path)], width)
