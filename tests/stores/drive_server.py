"""Fake Google Drive over HTTP on loopback: the folder pages and file downloads behind a shared link.

The address drive.google.com is fixed in gdown's code, so the tests patch `requests.Session.send` to redirect to here.
"""

from __future__ import annotations

import hashlib
import html
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


def id_of(path: str) -> str:
    return "id" + hashlib.sha256(path.encode()).hexdigest()[:31]


class DriveServer:
    """Shares the folder `root`; its id is `id_of(".")`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ids = {id_of(p.relative_to(root).as_posix()): p for p in [root, *root.rglob("*")]}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.drive = self  # type: ignore[attr-defined]
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> DriveServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def page(self, folder: Path) -> str:
        links = []
        for child in sorted(folder.iterdir()):
            where = id_of(child.relative_to(self.root).as_posix())
            kind = f"drive/folders/{where}" if child.is_dir() else f"file/d/{where}/view?usp=drive_web"
            links.append(f'<a href="https://drive.google.com/{kind}">{html.escape(child.name)}</a>')
        return f"<html><head><title>{html.escape(folder.name)}</title></head><body>{''.join(links)}</body></html>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        drive: DriveServer = self.server.drive  # type: ignore[attr-defined]
        place = drive.ids.get(parse_qs(urlsplit(self.path).query).get("id", [""])[0])
        if place is None:
            self._send(404, b"", {})
        elif place.is_dir():
            self._send(200, drive.page(place).encode(), {"Content-Type": "text/html; charset=utf-8"})
        else:
            name = f'attachment; filename="{place.name}"'
            self._send(
                200, place.read_bytes(), {"Content-Type": "application/octet-stream", "Content-Disposition": name}
            )

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
