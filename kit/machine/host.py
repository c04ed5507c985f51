"""What only the host of a notebook can give: a Google Drive, its owner's secrets, and the end of the session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

from kit.errors import UserError

SECRETS = {
    "hf://": ("HF_TOKEN",),
    "s3://": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"),
}
"""What a store asks for, by the names that its own client reads from the environment."""


def connect(store: str | None) -> None:
    """Make ready what `store` needs where Colab can give it: for "drive:…" mount Google Drive (it asks), for "hf://…"
    and "s3://…" take the keys from the notebook's secrets, as far as they are not in the environment. Elsewhere, and
    for other stores, nothing. To be called in a cell: Colab asks its front end, which no button's callback may do."""
    if store is None or "google.colab" not in sys.modules:
        return
    if store.startswith("drive:"):
        import_module("google.colab.drive").mount("/content/drive")
        return
    userdata = import_module("google.colab.userdata")
    for start, names in SECRETS.items():
        for name in names if store.startswith(start) else ():
            if name not in os.environ:
                try:
                    os.environ[name] = userdata.get(name)
                except Exception as error:  # Colab's own kinds: not there, not allowed, nobody to ask
                    print(f"{name} is not among this notebook's secrets (the key at the left): {type(error).__name__}.")


def can_end_session() -> None:
    """Raise `UserError` where no way is known to give this machine back."""
    _way_to_end()


def end_session() -> None:
    """Give this machine back, so that it costs nothing more. Raises `UserError` where no way is known."""
    _way_to_end()()


def _way_to_end() -> Callable[[], object]:
    pod, command = os.environ.get("RUNPOD_POD_ID"), shutil.which("runpodctl")
    if "google.colab" in sys.modules:
        return lambda: import_module("google.colab.runtime").unassign()
    if pod and command:
        return lambda: subprocess.run([command, "stop", "pod", pod], check=True)
    raise UserError("end_session=True works on Colab and in RunPod's pods; elsewhere end the machine by hand.")
