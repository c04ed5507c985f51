"""The Hugging Face Hub as a store: hf://user/repo[/prefix]. One put is one commit; new repositories are private.

This module adds what the client library lacks:

- time limits of requests
- retries of commits and of other requests (`_attempt`). If only the response was lost, the commit exists already; then
  the retry is harmless, because the client skips unchanged files.
- rate limits: on status 429 the client would sleep; with kit, the call raises `StoreError` with the time to wait
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from kit.errors import need
from kit.format.manifest import Refused, safe_path
from kit.stores.base import CHUNK, Files, MissingFile, Store, StoreError, Unusable
from kit.stores.redact import one_line

MIN_INTERVAL_S = 90.0
"""Seconds between commits: 40 an hour; the Hub refuses from about 128 an hour. KIT_HUB_INTERVAL_S changes it."""
TIMEOUT_S = 90.0
"""Seconds without data before a request fails. The Hub aborts a commit after 60 s. KIT_HUB_TIMEOUT_S changes it."""
PAUSES_S, LONGEST_PAUSE_S = (1.0, 3.0, 9.0), 30.0
"""Seconds before each retry. If the Hub asks for a pause longer than LONGEST_PAUSE_S, the error is raised instead."""
NEW_TOKEN = "make one at https://huggingface.co/settings/tokens."
_URL = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})((?:/[^/]+)*)/?")
_NETWORK = ("httpx", "httpx2", "httpcore")  # packages whose errors mean a failed connection
_is_kit_call: contextvars.ContextVar[bool] = contextvars.ContextVar("kit_hub_call", default=False)
_T = TypeVar("_T")


class HubStore(Store):
    """Files of one model repository, below an optional prefix."""

    has_page = keeps_history = True

    def __init__(self, url: str, write: bool = False, sleep: Callable[[float], None] = time.sleep) -> None:
        match = _URL.fullmatch(url)
        if not match:
            raise Unusable(url, "cannot be parsed; write hf://user/repo or hf://user/repo/folder.")
        self._hub: Any = need("huggingface_hub", "stores")
        _set_time_limits()
        self.url, self.repo = url, f"{match[1]}/{match[2]}"
        self._prefix = safe_path(match[3].strip("/")) if match[3].strip("/") else ""
        self._sleep, self._api = sleep, self._hub.HfApi()
        self.min_interval_s = float(os.environ.get("KIT_HUB_INTERVAL_S", MIN_INTERVAL_S))
        try:
            self._prepare_repo() if write else self._attempt(lambda: self._api.repo_info(self.repo))
        except MissingFile:
            raise Unusable(url, "does not exist, or its owner has not shared it with this token.") from None
        except StoreError as error:
            raise Unusable(url, f"cannot be reached ({error}); try again later.") from None

    def list(self, prefix: str = "") -> dict[str, int]:
        return self._attempt(lambda: self._sizes(prefix))

    def chunks(self, path: str) -> Iterator[bytes]:
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = self._hub.hf_hub_url(self.repo, self._full(path), revision="main")
        headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            yield from response.iter_bytes(CHUNK)

    def put(self, files: Files, delete: Sequence[str] = (), message: str = "") -> None:
        self._attempt(lambda: self._commit(files, delete, message or f"update {next(iter(files), 'files')}"))

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Compare-and-swap; atomic, because the Hub refuses a commit whose parent is not the newest commit."""
        for _ in range(5):  # retry: a commit to another file also causes a conflict
            head = self._attempt(lambda: self._api.repo_info(self.repo)).sha
            content = self.read_or_none(path)
            if content != old:
                return content == new
            try:
                self._attempt(partial(self._commit, {path: new}, (), f"update {path}", head))
                return True
            except _Conflict:
                continue
        raise StoreError(f"{path} in {self.url} could not be changed: the repository changes too quickly")

    def whole(self) -> HubStore:
        """Return the store of the whole repository, without a prefix."""
        whole = copy.copy(self)
        whole._prefix = ""
        return whole

    def squash(self) -> None:
        self._attempt(lambda: self._api.super_squash_history(self.repo, commit_message="squash the history"), ())

    def _prepare_repo(self) -> None:
        """Check the token's role and create a missing repository."""
        if self._attempt(self._api.whoami).get("auth", {}).get("accessToken", {}).get("role", "") == "read":
            raise Unusable(self.url, f"needs a token that may write, and this one is read-only; {NEW_TOKEN}")
        if not self._attempt(lambda: self._api.repo_exists(self.repo)):
            self._attempt(lambda: self._api.create_repo(self.repo, private=True, exist_ok=True))
            if self._attempt(lambda: self._api.repo_info(self.repo)).private is not True:
                problem = "was created but the Hub did not make it private; nothing was uploaded"
                raise Unusable(self.url, f"{problem}; make it private in its settings.")

    def _commit(self, files: Files, delete: Sequence[str], message: str, parent: str | None = None) -> None:
        from huggingface_hub.errors import EntryNotFoundError

        add, remove = self._hub.CommitOperationAdd, self._hub.CommitOperationDelete
        existing = self._sizes() if delete else {}  # the Hub refuses to delete a missing file
        operations = [add(self._full(path), content) for path, content in files.items()]
        operations += [remove(self._full(path)) for path in dict.fromkeys(delete) if path in existing]
        if not operations:
            return
        try:
            self._api.create_commit(self.repo, operations, commit_message=message, parent_commit=parent)
        except Exception as error:
            if _status(error) in (409, 412) and parent is not None:
                raise _Conflict(f"{message}: another commit came first", transient=False) from None
            if isinstance(error, EntryNotFoundError):  # another process has removed the file
                raise StoreError(f"{message}: another commit removed a file first") from None
            raise

    def _sizes(self, prefix: str = "") -> dict[str, int]:
        """Return path in this store -> size in bytes, for every file below `prefix`."""
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        top, start = self._full(prefix) if prefix else self._prefix or None, len(self._full("x")) - 1
        with contextlib.suppress(EntryNotFoundError):  # only the first response can raise it
            entries = self._api.list_repo_tree(self.repo, top, recursive=True)
            return {entry.path[start:]: entry.size for entry in entries if isinstance(entry, RepoFile)}
        return {}

    def _full(self, path: str) -> str:
        return f"{self._prefix}/{safe_path(path)}" if self._prefix else safe_path(path)

    def _attempt(self, call: Callable[[], _T], pauses: Sequence[float] = PAUSES_S) -> _T:
        """Return the result of `call`; retry transient errors. Errors are as from `_translate`."""
        token = _is_kit_call.set(True)
        try:
            for pause in (*pauses, None):
                try:
                    return call()
                except (StoreError, Refused) as error:
                    failure: Exception = error
                except Exception as error:
                    failure = self._translate(error)
                if not isinstance(failure, StoreError) or not failure.transient or pause is None:
                    raise failure from None
                if failure.retry_after_s > LONGEST_PAUSE_S:
                    raise failure from None
                self._sleep(max(pause, failure.retry_after_s))
            raise AssertionError("unreachable")
        finally:
            _is_kit_call.reset(token)

    def _translate(self, error: Exception) -> Exception:
        """Translate an error of huggingface_hub to `UserError` or `StoreError`; return any other error unchanged."""
        from huggingface_hub.errors import EntryNotFoundError, LocalTokenNotFoundError, RepositoryNotFoundError

        status, reason = _status(error), one_line(error)
        if isinstance(error, LocalTokenNotFoundError):
            return Unusable(self.url, "needs a Hugging Face token; run `hf auth login` or set HF_TOKEN.")
        if isinstance(error, EntryNotFoundError):
            return MissingFile(f"a file is not in {self.url}")
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            return MissingFile(f"{self.url} does not exist, or this token may not see it")
        if status == 401:
            return Unusable(self.url, "does not accept this token; log in again with `hf auth login`.")
        if status == 403:
            problem = "may not be written with this token; it is read-only or not for this repository"
            return Unusable(self.url, f"{problem}; {NEW_TOKEN}")
        if status is not None:
            transient = status in (408, 409, 412) or status >= 500
            return StoreError(f"the Hub answered {status} ({reason})", transient=transient)
        if any(isinstance(e, OSError) or type(e).__module__.partition(".")[0] in _NETWORK for e in _causes(error)):
            return StoreError(f"the Hub does not answer ({type(error).__name__}: {reason})")
        return error


class _Conflict(StoreError):
    """The Hub refused a commit, because its parent is no longer the newest commit."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes. Needed because the client wraps a failed upload in a RuntimeError."""
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error or its causes, or None."""
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    return next((int(response.status_code) for response in responses if response is not None), None)


def _set_time_limits() -> None:
    """Set time limits for the client's requests, unless they are set already. By default the client waits forever."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import get_session

    def limit(request: Any) -> None:
        """Set a time limit on a request for which the client has turned off the session's limit."""
        if (request.extensions.get("timeout") or {}).get("read") is None:
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s())

    def timeout_s() -> float:
        return float(os.environ.get("KIT_HUB_TIMEOUT_S", TIMEOUT_S))

    session = get_session()
    if session.timeout.read is None:
        kind, hooks = type(session), session.event_hooks
        hooks = {"request": [*hooks["request"], limit], "response": [*hooks["response"], _refuse_to_sleep]}
        set_client_factory(lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=timeout_s()))


def _refuse_to_sleep(response: Any) -> None:
    """On status 429 (too many requests) to a call from kit, raise `StoreError` before the client sleeps."""
    if response.status_code == 429 and _is_kit_call.get():
        wait = response.headers.get("Retry-After", "")
        if not wait.isdigit():
            reset = re.search(r"\bt=(\d+)", response.headers.get("RateLimit", ""))
            wait = reset[1] if reset else "60"
        raise StoreError(f"the Hub asks to wait {wait} s (too many requests)", retry_after_s=float(wait))
