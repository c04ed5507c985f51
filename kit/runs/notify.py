"""When a run ends, send a message (mail, ntfy, Slack, Discord, ...) to the URLs in KIT_NOTIFY.

This environment variable holds one or several URLs of the library Apprise, separated by spaces, such as
ntfy://my-topic, mailto://me:password@gmail.com, slack://..., discord://..., or json://host/path for a webhook. It is
not a field of RunConfig, because it holds secrets, and configs are copied to stores and published with policies.
"""

from __future__ import annotations

import os
from typing import Any

from kit.errors import UserError, need

VARIABLE = "KIT_NOTIFY"


def check() -> None:
    """Raise `UserError` if KIT_NOTIFY is set, but its URLs are not understood or Apprise is missing."""
    _service()


def send(name: str, status: dict[str, Any]) -> None:
    """Send the state, the score and the message of the run `name`. A failure is printed to the run's log."""
    try:
        service = _service()
        if service is not None and not service.notify(title=f"{name}: {status['state']}", body=text(status)):
            print(f"{VARIABLE}: the message about the end of this run could not be sent.", flush=True)
    except UserError as error:
        print(error, flush=True)


def text(status: dict[str, Any]) -> str:
    """Describe how a run ended, such as "done: 100,352 steps, 97 % success, after 2 min"."""
    from kit.machine.progress import percent
    from kit.measure.speed import duration  # imports torch

    parts = [status["message"] or status["state"]]
    if status["success_rate"] is not None:
        parts.append(f"{percent(status['success_rate'])} success")
    elif status["mean_return"] is not None:
        parts.append(f"mean return {status['mean_return']:.4g}")
    if status["started"] and status["updated"]:
        parts.append(f"after {duration(status['updated'] - status['started'])}")
    return ", ".join(parts)


def _service() -> Any:
    """Return an Apprise object with the URLs of KIT_NOTIFY, None if it is not set."""
    urls = os.environ.get(VARIABLE, "").split()
    if not urls:
        return None
    service = need("apprise", "notify").Apprise()
    for url in urls:
        if not service.add(url):
            kind = url.partition("://")[0]
            remedy = "Apprise's documentation lists the services it supports and their URLs"
            raise UserError(f"{VARIABLE} has a URL that Apprise does not understand ({kind}://…); {remedy}.")
    return service
