"""A config as code: YAML, a shell command, Python, and a papermill command."""

from __future__ import annotations

import html
import math
import shlex

import yaml

from kit.config import RunConfig, dump_yaml, to_text
from kit.errors import UserError
from kit.measure.auto import resolve
from kit.ui import style

NOTEBOOK = "notebooks/01_train.ipynb"


def as_code(config: RunConfig) -> dict[str, str]:
    """Return title -> text: non-default fields in four forms, and all fields with the values used on this machine."""
    changed = config.non_defaults()
    flags = [f"--{name.replace('_', '-')} {shlex.quote(to_text(value))}" for name, value in changed.items()]
    # papermill reads YAML 1.1, in which 5e-05 is a text and 5.0e-05 a number
    parameters = [
        f"-y {shlex.quote(yaml.safe_dump({name: value}, default_flow_style=True, width=math.inf).strip())}"
        for name, value in changed.items()
    ]
    return {
        "YAML, for kit train FILE": dump_yaml(changed).strip(),
        "Shell": " ".join(["kit train", *flags]),
        "Python": f"kit.launch({', '.join(f'{name}={value!r}' for name, value in changed.items())})",
        "Papermill (executes a notebook from the command line)": " ".join(
            [f"papermill {NOTEBOOK} out.ipynb", *parameters]
        ),
        "Every value that will be used on this machine": resolve(config).to_yaml().strip(),
    }


def page(config: RunConfig | UserError) -> style.Page:
    """Return a page with each text of `as_code` in a box; a click selects the whole text for copying.

    Raises the error that is given instead of a config.
    """
    if isinstance(config, UserError):
        raise config
    texts = as_code(config)
    box = "<p class='kit-note'>{}</p><pre class='kit-code'>{}</pre>"
    return style.Page(
        "\n\n".join(texts.values()), "".join(box.format(*map(html.escape, item)) for item in texts.items())
    )
