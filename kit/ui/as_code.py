"""A config in the forms in which it can be written elsewhere."""

from __future__ import annotations

import html
import json
import shlex

import yaml

from kit.config import RunConfig, spelled
from kit.measure.auto import resolve
from kit.ui import style

NOTEBOOK = "notebooks/01_train.ipynb"


def as_code(config: RunConfig) -> dict[str, str]:
    """What differs from the defaults, as YAML, shell, Python and papermill; and every value that will be used here."""
    said = config.non_defaults()
    flags = [f"--{name.replace('_', '-')} {shlex.quote(spelled(value))}" for name, value in said.items()]
    given = [f"-y {shlex.quote(f'{name}: {json.dumps(value)}')}" for name, value in said.items()]
    return {
        "YAML, for kit train FILE": yaml.safe_dump(said, sort_keys=False).strip(),
        "Shell": " ".join(["kit train", *flags]),
        "Python": f"kit.launch({', '.join(f'{name}={value!r}' for name, value in said.items())})",
        "Papermill": " ".join([f"papermill {NOTEBOOK} out.ipynb", *given]),
        "Every value that will be used on this machine": resolve(config).to_yaml().strip(),
    }


def page(config: RunConfig) -> style.Page:
    """The same to copy from: a click marks the whole of a box."""
    texts = as_code(config)
    box = "<p class='kit-note'>{}</p><pre class='kit-code'>{}</pre>"
    return style.Page(
        "\n\n".join(texts.values()), "".join(box.format(*map(html.escape, item)) for item in texts.items())
    )
