"""The Hugging Face Hub as a store: hf://user/repo[/prefix]. One put is one commit; new repositories are private.

What the client leaves open is closed here. It has no time limits: they are set. It never repeats a commit, a creation
or a look at a repository: `_attempt` does (files that a lost answer hid are there already, and the client leaves them
out). On a 429 the client would sleep inside the call; here it comes back and says how long to wait.
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
"""Between commits: 40 an hour, where the Hub begins to refuse at about 128. KIT_HUB_INTERVAL_S changes it."""
TIMEOUT_S = 90.0
"""Of silence. The Hub itself gives up on a commit after 60 s. KIT_HUB_TIMEOUT_S changes it."""
PAUSES_S, LONGEST_PAUSE_S = (1.0, 3.0, 9.0), 30.0
"""Between tries. A longer Retry-After is handed to the caller instead of being slept through."""
NEW_TOKEN = "make one at https://huggingface.co/settings/tokens."
_URL = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})((?:/[^/]+)*)/?")
_NETWORK = ("httpx", "httpx2", "httpcore")  # their errors say that a connection was refused, cut or silent
_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("kit_hub_call", default=False)
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
            self._make_sure() if write else self._attempt(lambda: self._api.repo_info(self.repo))
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
        """Atomic: the commit names the one it was made from, and the Hub refuses it if another came between."""
        for _ in range(5):  # other files of the repository may change in between; that is no reason to fail
            head = self._attempt(lambda: self._api.repo_info(self.repo)).sha
            found = self.read_or_none(path)
            if found != old:
                return found == new
            try:
                self._attempt(partial(self._commit, {path: new}, (), f"update {path}", head))
                return True
            except _Conflict:
                continue
        raise StoreError(f"{path} in {self.url} could not be changed: the repository changes too quickly")

    def whole(self) -> HubStore:
        """The repository, without a prefix."""
        whole = copy.copy(self)
        whole._prefix = ""
        return whole

    def squash(self) -> None:
        self._attempt(lambda: self._api.super_squash_history(self.repo, commit_message="squash the history"), ())

    def _make_sure(self) -> None:
        """Token, role, repository: everything a first commit needs."""
        if self._attempt(self._api.whoami).get("auth", {}).get("accessToken", {}).get("role", "") == "read":
            raise Unusable(self.url, f"needs a token that may write, and this one is read-only; {NEW_TOKEN}")
        if not self._attempt(lambda: self._api.repo_exists(self.repo)):
            self._attempt(lambda: self._api.create_repo(self.repo, private=True, exist_ok=True))
            if self._attempt(lambda: self._api.repo_info(self.repo)).private is not True:
                why = "was created but the Hub did not make it private; nothing was uploaded"
                raise Unusable(self.url, f"{why}; make it private in its settings.")

    def _commit(self, files: Files, delete: Sequence[str], message: str, parent: str | None = None) -> None:
        from huggingface_hub.errors import EntryNotFoundError

        add, remove = self._hub.CommitOperationAdd, self._hub.CommitOperationDelete
        here = self._sizes() if delete else {}  # deleting what is gone already would be refused
        operations = [add(self._full(path), content) for path, content in files.items()]
        operations += [remove(self._full(path)) for path in dict.fromkeys(delete) if path in here]
        if not operations:
            return
        try:
            self._api.create_commit(self.repo, operations, commit_message=message, parent_commit=parent)
        except Exception as error:
            if _status(error) in (409, 412) and parent is not None:
                raise _Conflict(f"{message}: another commit came first", transient=False) from None
            if isinstance(error, EntryNotFoundError):  # somebody else removed it after we looked
                raise StoreError(f"{message}: another commit came between") from None
            raise

    def _sizes(self, prefix: str = "") -> dict[str, int]:
        """Of every file below `prefix`, by its path in this store."""
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        top, start = self._full(prefix) if prefix else self._prefix or None, len(self._full("x")) - 1
        with contextlib.suppress(EntryNotFoundError):  # it is the first answer that says so
            entries = self._api.list_repo_tree(self.repo, top, recursive=True)
            return {entry.path[start:]: entry.size for entry in entries if isinstance(entry, RepoFile)}
        return {}

    def _full(self, path: str) -> str:
        return f"{self._prefix}/{safe_path(path)}" if self._prefix else safe_path(path)

    def _attempt(self, call: Callable[[], _T], pauses: Sequence[float] = PAUSES_S) -> _T:
        """`call`, repeated while the Hub is unwell. Raises `UserError` or `StoreError`, never the client's own."""
        mark = _ours.set(True)
        try:
            for pause in (*pauses, None):
                try:
                    return call()
                except (StoreError, Refused) as error:
                    failure: Exception = error
                except Exception as error:
                    failure = self._explain(error)
                if not isinstance(failure, StoreError) or not failure.transient or pause is None:
                    raise failure from None
                if failure.retry_after_s > LONGEST_PAUSE_S:
                    raise failure from None
                self._sleep(max(pause, failure.retry_after_s))
            raise AssertionError("unreachable")
        finally:
            _ours.reset(mark)

    def _explain(self, error: Exception) -> Exception:
        """A client error as one of ours. What is not the Hub's doing is returned as it is."""
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
            why = "may not be written with this token; it is read-only or not for this repository"
            return Unusable(self.url, f"{why}; {NEW_TOKEN}")
        if status is not None:
            passing = status in (408, 409, 412) or status >= 500
            return StoreError(f"the Hub answered {status} ({reason})", transient=passing)
        if any(isinstance(e, OSError) or type(e).__module__.partition(".")[0] in _NETWORK for e in _causes(error)):
            return StoreError(f"the Hub does not answer ({type(error).__name__}: {reason})")
        return error


class _Conflict(StoreError):
    """The repository is not what a commit was made from."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what is behind it: a failed upload raises a RuntimeError."""
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error."""
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    return next((int(response.status_code) for response in responses if response is not None), None)


def _set_time_limits() -> None:
    """Give the client time limits, unless someone has set some already; its own default is to wait for ever."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import get_session

    def limit(request: Any) -> None:
        """Some calls of the client say "no limit" themselves, whatever the session says; they get one all the same."""
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
    """On a 429 to one of our own calls, come back at once and say how long the Hub wants to be left alone."""
    if response.status_code == 429 and _ours.get():
        wait = response.headers.get("Retry-After", "")
        if not wait.isdigit():
            reset = re.search(r"\bt=(\d+)", response.headers.get("RateLimit", ""))
            wait = reset[1] if reset else "60"
        raise StoreError(f"the Hub asks to wait {wait} s (too many requests)", retry_after_s=float(wait))
