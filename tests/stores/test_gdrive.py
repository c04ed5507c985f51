"""Tests of `GoogleDriveLink` with the real gdown: shared folders, damaged checkpoints, size limit, bad links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.errors import UserError
from kit.stores import StoreError, list_runs, open_store, pull
from tests.stores.drive_server import DriveServer, id_of
from tests.stores.fabricate import content, make_run

LINK = f"gdrive-link:https://drive.google.com/drive/folders/{id_of('.')}?usp=sharing"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shared folder on the fake Drive, which serves the files that exist at the first request."""
    pytest.importorskip("gdown")
    import requests

    root = tmp_path / "shared"
    root.mkdir()
    send = requests.Session.send
    servers: list[DriveServer] = []

    def redirected(session: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        if not servers:
            servers.append(DriveServer(root))
        assert request.url and request.url.startswith("https://drive.google.com/")
        request.url = request.url.replace("https://drive.google.com", servers[0].address)
        return send(session, request, **options)

    monkeypatch.setattr(requests.Session, "send", redirected)
    yield root
    for server in servers:
        server.__exit__()


def test_a_shared_folder_of_runs(shared: Path, tmp_path: Path) -> None:
    run = make_run(shared, replay=True)
    store = open_store(LINK)
    assert [(r["name"], r["step"]) for r in list_runs(store)] == [("reach-1", 200)]
    assert content(pull(store, None, tmp_path / "d")) == content(run)


def test_a_shared_run(shared: Path, tmp_path: Path) -> None:
    run = make_run(shared.parent, "shared-run")
    shared.rmdir()
    run.rename(shared)
    back = pull(open_store(LINK), None, tmp_path / "d")
    assert content(back) == content(shared) and back.parent == tmp_path / "d"


def test_a_damaged_newest_checkpoint_is_skipped(shared: Path, tmp_path: Path) -> None:
    run = make_run(shared)
    policy = run / "checkpoints/step_000000200/policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1] + b"!")
    said: list[str] = []
    assert content(pull(open_store(LINK), None, tmp_path / "d", notify=said.append)) == content(run, 100)
    assert "step_000000200" in said[0]


def test_a_file_over_the_size_limit_is_refused(shared: Path) -> None:
    (shared / "big.json").write_bytes(b"x" * 3_000_000)
    store = open_store(LINK)
    with pytest.raises(StoreError, match="larger than 1,000 bytes"):
        store.read("big.json", 1000)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gdrive-link:https://example.com/x", "cannot be parsed"),
        ("gdrive-link:", "cannot be parsed"),
        ("gdrive-link:https://drive.google.com/file/d/abc/view", "cannot be parsed"),
        (LINK.replace(id_of("."), id_of("elsewhere")), "Anyone with the link"),
    ],
)
def test_bad_links(shared: Path, url: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_store(url)


def test_it_cannot_be_written(shared: Path) -> None:
    with pytest.raises(UserError, match="can only be read"):
        open_store(LINK, write=True)
    with pytest.raises(StoreError, match="can only be read"):
        open_store(LINK).put({"a.json": b"{}"})
