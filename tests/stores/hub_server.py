"""Fake Hugging Face Hub on loopback for the real client: repositories, commits, large files (LFS), injected faults.

    with HubServer() as hub:
        hub.endpoint                  # for HF_ENDPOINT
        hub.repos["me/runs"].files    # path -> bytes, as of the last commit
        hub.fault("commit", Fault(status=504, after=True))

Commits are atomic: all of a request's operations, or none. A large file is accepted only with the SHA-256 it claims.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

WRITE_TOKEN, READ_TOKEN, OTHER_TOKEN = "hf_writeWRITEwrite0001", "hf_readREADread000002", "hf_otherOTHERother003"
LARGE = 10_000
"""Bytes from which a file is uploaded through LFS; files other than .json, .yaml, .jsonl and .md always are."""


@dataclass
class Repo:
    """A repository: `files` of the head, paths in `large`, and `log` with (message, added, removed paths) per commit.

    `kept`: contents of all files in all commits since the last squash.
    """

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    log: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    kept: set[bytes] = field(default_factory=set)
    squashed: int = 0

    @property
    def head(self) -> str:
        return hashlib.sha1(f"{id(self)}/{self.squashed}/{len(self.log)}".encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all versions of all files."""
        return sum(map(len, self.kept))


@dataclass
class Fault:
    """A fault of the next `times` requests of one kind.

    `status`: HTTP status of the response; `after`: the request is carried out nevertheless.
    `cut`: the connection is closed in the middle of the request; `stall`: no response until the server stops.
    `before`: no fault; this function is called before the request is handled.
    """

    status: int = 0
    after: bool = False
    cut: bool = False
    stall: bool = False
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], object] | None = None


class HubServer:
    """The server. `make_public`: new repositories ignore private=True, as in a misconfigured organisation."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.jobs: list[dict[str, Any]] = []
        self.make_public = False
        self.lock = threading.RLock()
        self.stopped = threading.Event()
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> HubServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def fault(self, what: str, fault: Fault) -> None:
        """Inject a fault. `what`: whoami, create, info, tree, preupload, batch, upload, commit, resolve or squash."""
        with self.lock:
            self._faults[what].append(fault)

    def heal(self) -> None:
        with self.lock:
            self._faults.clear()

    def take(self, what: str) -> Fault | None:
        with self.lock:
            for fault in self._faults[what]:
                if fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def count(self, what: str) -> int:
        return sum(1 for name, _ in self.requests if name == what)


class _Stop(Exception):
    """Raised to send an error response."""

    def __init__(self, status: int, code: str = "", message: str = "", headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, dict(headers or {})
        if code:
            self.headers["X-Error-Code"] = code
        if message:
            self.headers["X-Error-Message"] = message


ROUTES = [
    ("GET", r"/api/whoami-v2", "whoami"),
    ("GET", r"/api/jobs/hardware", "hardware"),
    ("POST", r"/api/jobs/(?P<owner>[^/]+)", "run_job"),
    ("POST", r"/api/repos/create", "create"),
    ("DELETE", r"/api/repos/delete", "delete"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/[^/]+", "preupload"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/[^/]+", "commit"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/super-squash/main", "squash"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/[^/]+(?:/(?P<path>.+))?", "tree"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/[^/]+)?", "info"),
    ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/objects/(?P<oid>[0-9a-f]{64})", "upload"),
    ("POST", r"/objects/(?P<oid>[0-9a-f]{64})/verify", "verify"),
    ("GET", r"/(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)", "resolve"),
    ("HEAD", r"/(?P<repo>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)", "resolve"),
]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: tests kill clients in the middle of requests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def hub(self) -> HubServer:
        return self.server.hub  # type: ignore[attr-defined, no-any-return]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        for method, pattern, what in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                with contextlib.suppress(ConnectionError):
                    self._answer(what, match.groupdict())
                return
        self._send(404, b"", {})

    def _answer(self, what: str, given: dict[str, str]) -> None:
        self.hub.requests.append((what, self.path))
        fault = self.hub.take(what)
        if fault and fault.before:
            fault.before()
            fault = None
        length = int(self.headers.get("Content-Length") or 0)
        if fault and fault.cut:
            self.rfile.read(length // 2)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._read_chunked()
        if fault and fault.stall:
            self.hub.stopped.wait()
            self.close_connection = True
            return
        try:
            if fault and not fault.after:
                raise _Stop(fault.status, headers=fault.headers)
            with self.hub.lock:
                content, headers = getattr(self, f"_{what}")(body, **given)
            if fault:
                raise _Stop(fault.status, headers=fault.headers)
        except _Stop as stop:
            self._send(stop.status, b"", stop.headers)
        else:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self._send(200, data, {"Content-Type": "application/json", **headers})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _read_chunked(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    # -- access ------------------------------------------------------------------------------------------------------

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _find(self, repo: str, write: bool = False) -> Repo:
        """Return the repository. Another user's private repository gets the same error as a missing one."""
        found, mine = self.hub.repos.get(repo), self._token() in (WRITE_TOKEN, READ_TOKEN)
        if found is None or (found.private and not mine):
            raise _Stop(404 if mine else 401, "RepoNotFound", "Repository not found")
        if write and self._token() != WRITE_TOKEN:
            raise _Stop(403, message="you have read access only" if mine else "Forbidden")
        return found

    def _whoami(self, body: bytes) -> Any:
        role = {WRITE_TOKEN: "write", READ_TOKEN: "read", OTHER_TOKEN: "write"}.get(self._token())
        if role is None:
            raise _Stop(401, message="Invalid credentials in Authorization header")
        return {"name": "me", "type": "user", "auth": {"accessToken": {"role": role, "displayName": "t"}}}, {}

    # -- repositories ------------------------------------------------------------------------------------------------

    def _create(self, body: bytes) -> Any:
        given = json.loads(body)
        repo = f"{given.get('organization') or 'me'}/{given['name']}"
        url = f"{self.hub.endpoint}/{repo}"
        if self._token() != WRITE_TOKEN:
            raise _Stop(403, message="you may not create repositories")
        if repo not in self.hub.repos:
            private = given.get("visibility") == "private" or given.get("private") is True
            self.hub.repos[repo] = Repo(private and not self.hub.make_public)
        return {"url": url, "name": repo}, {}

    def _delete(self, body: bytes) -> Any:
        given = json.loads(body)
        repo = f"{given.get('organization') or 'me'}/{given['name']}"
        self._find(repo, write=True)
        del self.hub.repos[repo]
        return b"", {}

    def _info(self, body: bytes, repo: str) -> Any:
        found = self._find(repo)
        return {
            "id": repo,
            "modelId": repo,
            "sha": found.head,
            "private": found.private,
            "tags": [],
            "siblings": [],
        }, {}

    def _tree(self, body: bytes, repo: str, path: str | None) -> Any:
        found = self._find(repo)
        inside = {name: data for name, data in found.files.items() if not path or name.startswith(path + "/")}
        if path and not inside:
            raise _Stop(404, "EntryNotFound", "the path does not exist")
        entries = []
        for name, data in sorted(inside.items()):
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": _blob(data)}
            if name in found.large:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            entries.append(entry)
        return entries, {}

    def _resolve(self, body: bytes, repo: str, path: str) -> Any:
        found = self._find(repo)
        if path not in found.files:
            raise _Stop(404, "EntryNotFound", "the file does not exist")
        data = found.files[path]
        headers = {"X-Repo-Commit": found.head, "ETag": f'"{_blob(data)}"', "Content-Type": "application/octet-stream"}
        return data, headers

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _hardware(self, body: bytes) -> Any:
        """List two machines; fields as in the client's documentation, prices invented."""
        common = {"prettyName": "", "ram": "16 GB", "unitCostMicroUSD": 0, "unitLabel": "minute"}
        gpu = {"type": "gpu", "model": "T4", "quantity": "1", "vram": "16 GB", "manufacturer": "Nvidia"}
        cpu_basic = {**common, "name": "cpu-basic", "cpu": "2 vCPU", "unitCostUSD": 0.0002}
        t4_small = {**common, "name": "t4-small", "cpu": "4 vCPU", "unitCostUSD": 0.01, "accelerator": gpu}
        return [t4_small, cpu_basic], {}

    def _run_job(self, body: bytes, owner: str) -> Any:
        if self._token() != WRITE_TOKEN:
            raise _Stop(403, message="this token may not start jobs")
        self.hub.jobs.append(json.loads(body))
        person = {"id": "1", "name": owner, "type": "user"}
        return {"id": "job1", "owner": person, "status": {"stage": "SCHEDULING"}}, {}

    # -- uploads -----------------------------------------------------------------------------------------------------

    def _validate(self, body: bytes) -> Any:
        return {"errors": [], "warnings": []}, {}

    def _preupload(self, body: bytes, repo: str) -> Any:
        found = self._find(repo, write=True)
        answers = []
        for file in json.loads(body)["files"]:
            name, large = (
                file["path"],
                file["size"] >= LARGE or not file["path"].endswith((".json", ".yaml", ".jsonl", ".md")),
            )
            answer = {"path": name, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if name in found.files:
                data = found.files[name]
                answer["oid"] = hashlib.sha256(data).hexdigest() if name in found.large else _blob(data)
            answers.append(answer)
        return {"files": answers}, {}

    def _batch(self, body: bytes, repo: str) -> Any:
        self._find(repo, write=True)
        objects = []
        for wanted in json.loads(body)["objects"]:
            entry: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.objects:
                url = f"{self.hub.endpoint}/objects/{wanted['oid']}"
                entry["actions"] = {"upload": {"href": url}, "verify": {"href": f"{url}/verify"}}
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}, {"Content-Type": "application/vnd.git-lfs+json"}

    def _upload(self, body: bytes, oid: str) -> Any:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Stop(400, message="the content does not have the SHA-256 it claims")
        self.hub.objects[oid] = body
        return b"", {}

    def _verify(self, body: bytes, oid: str) -> Any:
        if len(self.hub.objects.get(oid, b"")) != json.loads(body)["size"]:
            raise _Stop(404)
        return {}, {}

    def _commit(self, body: bytes, repo: str) -> Any:
        found = self._find(repo, write=True)
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, found.head):
            raise _Stop(412, message="A commit has happened since. Please refresh and try again.")
        files, large, added, removed = dict(found.files), set(found.large), [], []
        for line in lines[1:]:
            kind, value = line["key"], line["value"]
            path = value["path"]
            if kind == "file":
                files[path] = base64.b64decode(value["content"])
                large.discard(path)
                added.append(path)
            elif kind == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise _Stop(400, message="the large file was never uploaded")
                files[path] = self.hub.objects[value["oid"]]
                large.add(path)
                added.append(path)
            elif kind == "deletedFile":
                if path not in files:
                    raise _Stop(404, "EntryNotFound", "A file with this name doesn't exist")
                del files[path]
                large.discard(path)
                removed.append(path)
        found.files, found.large = files, large
        found.log.append((header["summary"], added, removed))
        found.kept |= set(files.values())
        return {"commitUrl": f"{self.hub.endpoint}/{repo}/commit/{found.head}", "commitOid": found.head}, {}

    def _squash(self, body: bytes, repo: str) -> Any:
        """Replace the history by one commit with the head's files; the head gets a new id."""
        found = self._find(repo, write=True)
        found.log = [(json.loads(body)["message"], sorted(found.files), [])]
        found.squashed, found.kept = found.squashed + 1, set(found.files.values())
        return b"", {}


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
