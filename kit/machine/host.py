"""Services of a notebook host (Colab, RunPod): mount Google Drive, read secrets, end the session."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kit.errors import UserError

SECRETS = {
    "hf://": ("HF_TOKEN",),
    "s3://": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"),
}
"""Store URL prefix -> environment variables that the store's client reads."""


def connect(store: str | None) -> None:
    """On Colab, mount Google Drive or load the secrets that `store` needs. Does nothing outside Colab.

    "drive:…" mounts Google Drive (Colab asks for permission). For "hf://…" and "s3://…", keys are copied from the
    notebook's secrets to environment variables that are not set. Call it from a cell, not from a widget's callback, in
    which Colab's front end does not answer.
    """
    if store is None or "google.colab" not in sys.modules:
        return
    if store.startswith("drive:"):
        import_module("google.colab.drive").mount("/content/drive")
        return
    userdata = import_module("google.colab.userdata")
    for prefix, names in SECRETS.items():
        for name in names if store.startswith(prefix) else ():
            if name not in os.environ:
                try:
                    os.environ[name] = userdata.get(name)
                except Exception as error:  # Colab's exceptions: no such secret, access denied, no front end
                    print(f"{name} is not among this notebook's secrets (the key at the left): {type(error).__name__}.")


@asynccontextmanager
async def clicks() -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Yield a coroutine function that lets the kernel handle clicks on widgets; await it repeatedly in a waiting cell.

    While an ordinary cell runs, the kernel handles no messages from the page. While an async cell waits, ipykernel 7.4
    handles them by itself; older kernels (Colab's) need the package jupyter_ui_poll. In a notebook that runs without a
    user (nbconvert), older kernels handle none.
    """
    needs_polling = hasattr(kernel(), "do_one_iteration") and getattr(kernel(), "_allow_stdin", False)
    if not needs_polling or not find_spec("jupyter_ui_poll"):
        yield partial(asyncio.sleep, 0)
        return
    async with import_module("jupyter_ui_poll").ui_events() as poll:
        yield partial(poll, 10)


def shell() -> Any:
    """Return the IPython shell that runs this process's code, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def kernel() -> Any:
    """Return the Jupyter kernel that runs in this process, or None."""
    return getattr(shell(), "kernel", None)


def notebook() -> str | None:
    """Return the path of the current notebook, or None if it is not known.

    Jupyter's server tells it to the kernel, VS Code writes it among the notebook's variables, Colab does not say it.
    """
    return os.environ.get("JPY_SESSION_NAME") or getattr(shell(), "user_ns", {}).get("__vsc_ipynb_file__")


def session_ender() -> Callable[[], object]:
    """Return a function that ends this rented machine's session. Raises `UserError` on other machines."""
    pod, command = os.environ.get("RUNPOD_POD_ID"), shutil.which("runpodctl")
    if "google.colab" in sys.modules:
        return lambda: import_module("google.colab.runtime").unassign()
    if pod and command:
        return lambda: subprocess.run([command, "stop", "pod", pod], check=True)
    raise UserError("end_session=True works on Colab and in RunPod's pods; elsewhere end the machine by hand.")
