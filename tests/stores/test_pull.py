"""Tests of `pull` and `list_runs`: choice of the run, damaged checkpoints, local copies, hostile stores."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.errors import UserError
from kit.format.checkpoint import committed
from kit.format.manifest import digest
from kit.stores import Store, lease, list_runs, open_store, pull
from kit.stores.copier import Copier
from tests.stores.conftest import KINDS
from tests.stores.fabricate import add_checkpoint, add_frozen, content, make_run, set_status, write_checkpoint


def upload(run: Path, store: Store, name: str | None = None) -> None:
    """Upload all files of `run` unchanged."""
    files = {f"{name or run.name}/{p.relative_to(run).as_posix()}": p for p in sorted(run.rglob("*")) if p.is_file()}
    store.put(files)


@pytest.fixture
def there(store_url: str) -> Store:
    return open_store(store_url, write=True)


@pytest.mark.parametrize("store_url", KINDS, indirect=True)
def test_runs_are_listed_newest_first(there: Store, tmp_path: Path) -> None:
    upload(make_run(tmp_path / "a", "old", steps=(100,)), there)
    new = make_run(tmp_path / "a", "new", steps=(100, 700))
    set_status(new, state="finished", success_rate=0.98)
    upload(new, there)
    there.put({"not-a-run/readme.txt": b"hello"})
    assert list_runs(there) == [
        {
            "name": "new",
            "task": "",
            "state": "finished",
            "phase": "",
            "step": 700,
            "total_steps": 1000,
            "success_rate": 0.98,
            "updated": 1_700_000_700.0,
        },
        {
            "name": "old",
            "task": "",
            "state": "interrupted",
            "phase": "",
            "step": 100,
            "total_steps": 1000,
            "success_rate": 0.5,
            "updated": 1_700_000_100.0,
        },
    ]


def test_a_stopped_run_is_listed_with_the_step_from_which_a_resume_goes_on(there: Store, tmp_path: Path) -> None:
    """Stop in a long iteration discards its steps, which the status still counts."""
    run = make_run(tmp_path, "cut", steps=(100, 700))
    set_status(run, state="interrupted", step=765)
    upload(run, there)
    assert [(each["name"], each["step"]) for each in list_runs(there)] == [("cut", 700)]
    assert committed(pull(there, "cut", tmp_path / "d") / "checkpoints")[-1].step == 700


def test_a_run_is_listed_as_running_while_its_lease_lasts(there: Store, run: Path) -> None:
    Copier(run, there, "me").run_pass()
    assert [r["state"] for r in list_runs(there)] == ["running"]
    assert [r["state"] for r in list_runs(there, clock=lambda: time.time() + lease.TTL_S + 1)] == ["interrupted"]
    lease.release(there, run.name, "me")
    assert [r["state"] for r in list_runs(there)] == ["interrupted"]


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"step": "x", "updated": 1e400, "state": 5}', b'{"step": NaN}', b"[" * 9000]
)
def test_one_odd_run_does_not_hide_the_others(there: Store, tmp_path: Path, raw: bytes) -> None:
    upload(make_run(tmp_path / "a", "good"), there)
    there.put({"odd/config.yaml": b"x", "odd/status.json": raw, "odd/latest.json": raw})
    assert {r["name"] for r in list_runs(there)} == {"good", "odd"}


def test_the_latest_unfinished_run_is_chosen(there: Store, tmp_path: Path) -> None:
    for name, step, state in (("a", 100, "running"), ("b", 200, "interrupted"), ("c", 300, "finished")):
        run = make_run(tmp_path / "x", name, steps=(step,))
        set_status(run, state=state)
        upload(run, there)
    assert pull(there, None, tmp_path / "d1").name == "b"
    assert pull(there, "c", tmp_path / "d1").name == "c"
    with pytest.raises(UserError, match=r"run_name='z' is not in .*; it holds: a, b, c"):
        pull(there, "z", tmp_path / "d1")


def test_a_pruned_trial_is_not_resumed(there: Store, tmp_path: Path) -> None:
    """A search has ended it, although it looks interrupted and is the newest."""
    for name, step, phase in (("unlucky", 100, "training"), ("pruned", 200, "pruned")):
        run = make_run(tmp_path / "x", name, steps=(step,))
        set_status(run, state="interrupted", phase=phase)
        upload(run, there)
    assert pull(there, None, tmp_path / "d").name == "unlucky"


def test_a_store_that_disappeared_raises_one_sentence(there: Store, store_url: str, tmp_path: Path) -> None:
    Path(store_url).rmdir()
    with pytest.raises(UserError, match=r"cannot be read .*has disappeared"):
        list_runs(there)
    with pytest.raises(UserError, match=r"cannot be read .*has disappeared"):
        pull(there, None, tmp_path / "d")


def test_an_empty_store_says_so(there: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no runs"):
        pull(there, None, tmp_path / "d")


def test_a_url_may_name_one_run(there: Store, run: Path, store_url: str, tmp_path: Path) -> None:
    upload(run, there)
    back = pull(open_store(f"{store_url}/{run.name}"), None, tmp_path / "d")
    assert back.name == run.name and content(back) == content(run)
    assert list((tmp_path / "d").iterdir()) == [back], "temporary files were left beside the run"


def damage(store_root: Path, how: str) -> None:
    folder = store_root / "reach-1/checkpoints/step_000000200"
    policy = folder / "policy.safetensors"
    if how == "flip":
        data = bytearray(policy.read_bytes())
        data[-1] ^= 1
        policy.write_bytes(data)
    elif how == "truncate":
        policy.write_bytes(policy.read_bytes()[:-1])
    elif how == "missing":
        policy.unlink()
    elif how == "swap":
        shutil.copy(store_root / "reach-1/checkpoints/step_000000100/policy.safetensors", policy)
    elif how == "no manifest":
        (folder / "manifest.json").unlink()
    elif how == "manifest":
        (folder / "manifest.json").write_bytes(b"{}")
    elif how == "other manifest":
        shutil.copy(store_root / "reach-1/checkpoints/step_000000100/manifest.json", folder / "manifest.json")
    elif how == "replay":
        (store_root / "reach-1/replay/000000000200.safetensors").unlink()
    elif how == "frozen":
        newest = json.loads((folder / "manifest.json").read_bytes())["shared"]
        path = store_root / "reach-1" / next(path for path in newest if path.startswith("frozen/"))
        path.write_bytes(path.read_bytes()[:-1] + b"!")


HOW = ["flip", "truncate", "missing", "swap", "no manifest", "manifest", "other manifest", "replay", "frozen"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_is_used(
    there: Store, store_url: str, tmp_path: Path, how: str
) -> None:
    run = make_run(tmp_path / "x", steps=(100,), replay=True, frozen=1)
    add_checkpoint(run, 200, replay=True, frozen=2)
    upload(run, there)
    damage(Path(store_url), how)
    said: list[str] = []
    back = pull(there, None, tmp_path / "d", notify=said.append)
    assert content(back) == content(run, 100)
    assert not (back / "checkpoints/step_000000200").exists()
    if how != "no manifest":  # without manifest it is no checkpoint, so there is nothing to report
        assert len(said) == 1 and "step_000000200" in said[0] and "an older one is used" in said[0]


def test_sizes_are_compared_before_anything_is_fetched(
    there: Store, run: Path, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(run, there)
    damage(Path(store_url), "truncate")
    read: list[str] = []
    chunks = there.chunks
    monkeypatch.setattr(there, "chunks", lambda path: read.append(path) or chunks(path))
    pull(there, None, tmp_path / "d", notify=lambda text: None)
    assert [path for path in read if "step_000000200/" in path] == ["reach-1/checkpoints/step_000000200/manifest.json"]


@pytest.mark.parametrize("how", HOW[:3])
def test_without_an_intact_checkpoint_pull_raises_and_leaves_no_files(
    there: Store, store_url: str, tmp_path: Path, how: str
) -> None:
    upload(make_run(tmp_path / "x", steps=(200,)), there)
    damage(Path(store_url), how)
    with pytest.raises(UserError, match="holds no checkpoint that can be used"):
        pull(there, None, tmp_path / "d")
    assert list((tmp_path / "d").iterdir()) == []


def test_a_local_run_is_updated_from_the_store(there: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "x", replay=True)
    write_checkpoint(run / "best", 200)
    shutil.copytree(run, tmp_path / "here/reach-1")
    add_checkpoint(run, 300, replay=True, frozen=1)
    write_checkpoint(run / "best", 250, add_frozen(run, 2))
    upload(run, there)
    back = pull(there, None, tmp_path / "here")
    assert content(back) == content(run) and content(back, 200)
    best = committed(back / "best")[-1]
    assert best.step == 250, "with the older best policy, the copier would replace the newer one in the store"
    best.verify()
    assert not list(back.glob(".kit-*"))
    again = {p: p.stat().st_mtime_ns for p in back.rglob("*")}
    assert pull(there, None, tmp_path / "here") == back
    assert {p: p.stat().st_mtime_ns for p in back.rglob("*")} == again, "nothing is newer, yet files changed"


def test_a_newer_run_here_is_left_alone(there: Store, run: Path) -> None:
    upload(run, there)
    add_checkpoint(run, 300)
    before = content(run)
    assert pull(there, None, run.parent) == run and content(run) == before


@pytest.mark.parametrize("step", [100, 200, 300])
def test_another_run_of_the_same_name_is_left_alone(there: Store, run: Path, tmp_path: Path, step: int) -> None:
    """The store's run is at step 200. A newer run here must not be resumed in its place, and overwrite it."""
    upload(run, there)
    other = make_run(tmp_path / "here", steps=(step,))
    (other / "config.yaml").write_text("env: Ant\nalgo: SAC\n")
    before = content(other)
    with pytest.raises(UserError, match="hold different runs"):
        pull(there, None, tmp_path / "here")
    assert content(other) == before


def test_a_damaged_newer_checkpoint_is_reported_if_there_is_an_older_one_here(
    there: Store, store_url: str, tmp_path: Path
) -> None:
    here = make_run(tmp_path / "here", steps=(100,))
    upload(make_run(tmp_path / "x", steps=(200,)), there)
    damage(Path(store_url), "flip")
    said: list[str] = []
    before = content(here)
    assert content(pull(there, None, tmp_path / "here", notify=said.append)) == before
    assert len(said) == 1 and "step_000000200" in said[0]


def test_another_programs_config_beside_the_runs_does_not_hide_them(there: Store, run: Path, tmp_path: Path) -> None:
    upload(run, there)
    there.put({"config.yaml": b"hydra: true"})
    assert content(pull(there, run.name, tmp_path / "d")) == content(run)


# -- hostile stores --------------------------------------------------------------------------------------------------


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code from the store ran"


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def hostile(folder: Path, files: dict[str, bytes], shared: dict[str, Any] | None = None, **entries: Any) -> None:
    """Write a checkpoint of step 200 with `files`; `entries` replace or extend the entries of its manifest."""
    place = folder / "reach-1/checkpoints/step_000000200"
    place.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (place / name).write_bytes(data)
    listed = {n: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()} | entries
    manifest = {"version": 1, "step": 200, "files": listed, "shared": shared or {}}
    (place / "manifest.json").write_text(json.dumps({**manifest, "digest": digest(manifest)}))
    (folder / "reach-1/config.yaml").write_text("env: Reach\n")


def claim(size: int = 10, data: bytes = b"") -> dict[str, Any]:
    return {"size": size, "sha256": hashlib.sha256(data).hexdigest()}


HOSTILE = {
    "parent": "is refused as a name", "absolute": "is refused as a name", "shared": "is refused as a name",
    "frozen": "is refused as a name", "10 GB": "at most 4,294,967,296 bytes", "many": "at most 10000 files",
    "pickle": "safetensors and JSON files only", "pickle in disguise": "is not a safetensors file",
    "wrong shapes": "invalid shape", "symlink": "link.json is missing", "folder symlink": "not seen",
    "fifo": "pipe.json is missing", "yaml": "could not determine a constructor",
}  # fmt: skip
"""Kind of attack -> part of the message, so that each is refused for its own reason."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_runs_are_refused(there: Store, store_url: str, tmp_path: Path, canary: Path, kind: str) -> None:
    root, bomb = Path(store_url), pickle.dumps(Bomb(canary))
    good = {"state.json": b"{}"}
    place = root / "reach-1/checkpoints/step_000000200"
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    if kind == "parent":
        hostile(root, good, **{"../../../../evil.json": claim()})
    elif kind == "absolute":
        hostile(root, good, **{str(tmp_path / "evil.json"): claim()})
    elif kind == "shared":
        hostile(root, good, shared={"replay/../../evil.safetensors": claim()})
    elif kind == "frozen":
        hostile(root, good, shared={"frozen/../../evil.safetensors": claim()})
    elif kind == "10 GB":
        hostile(root, good, **{"policy.safetensors": claim(10 * 2**30)})
    elif kind == "many":
        hostile(root, good, **{f"{n}.json": claim(0) for n in range(20_000)})
    elif kind == "pickle":
        hostile(root, {"policy.pkl": bomb})
    elif kind == "pickle in disguise":
        hostile(root, {"policy.safetensors": bomb})
    elif kind == "wrong shapes":
        raw = json.dumps({"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 8]}}).encode()
        hostile(root, {"policy.safetensors": len(raw).to_bytes(8, "little") + raw + b"x" * 8})
    elif kind == "symlink":
        hostile(root, good, **{"link.json": claim(6, b"secret")})
        (place / "link.json").symlink_to(secret)
    elif kind == "folder symlink":
        hostile(root, good)
        place.rename(tmp_path / "outside")
        place.symlink_to(tmp_path / "outside")
    elif kind == "fifo":
        hostile(root, good, **{"pipe.json": claim(0)})
        os.mkfifo(place / "pipe.json")
    elif kind == "yaml":
        hostile(root, good)
        command = f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{canary}']]"
        (root / "reach-1/config.yaml").write_text(f"env: {command}\n")
        make_run(tmp_path / "d", steps=(100,))
    with pytest.raises(UserError) as caught:
        back = pull(there, None, tmp_path / "d")
        if kind == "folder symlink":  # the store does not list it, so a run without checkpoints is fetched
            assert not list(back.glob("checkpoints/*"))
            raise UserError("not seen")
    assert HOSTILE[kind] in str(caught.value)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    assert not list(tmp_path.rglob("evil*")) and b"secret" not in b"".join(
        p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file()
    )


def test_a_store_that_sends_more_than_it_lists(
    there: Store, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transfer is aborted once it exceeds the size in the manifest."""
    upload(run, there)
    sent = 0

    def endless(path: str) -> Iterator[bytes]:
        nonlocal sent
        if path.endswith("policy.safetensors"):
            while True:
                sent += 2**20
                yield b"x" * 2**20
        yield from real(path)

    real = there.chunks
    monkeypatch.setattr(there, "chunks", endless)
    with pytest.raises(UserError):
        pull(there, None, tmp_path / "d")
    assert sent <= 2**22


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "x\0"])
def test_run_names_from_users_are_checked_too(there: Store, run: Path, tmp_path: Path, name: str) -> None:
    upload(run, there)
    with pytest.raises(UserError):
        pull(there, name, tmp_path / "d")


def test_a_video_whose_name_leads_outside_deletes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"), write=True)
    Copier(make_run(tmp_path / "there"), store, "me").run_pass(final=True)
    (dest := tmp_path / "here").mkdir()
    (dest / "x.mp4").write_text("mine")
    real = store.list
    monkeypatch.setattr(store, "list", lambda *a: real(*a) | {"reach-1/videos/../../x.mp4": 1})
    pull(store, None, dest, notify=lambda text: None)
    assert (dest / "x.mp4").read_text() == "mine"


def test_a_disk_without_room(there: Store, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(run, there)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="10 bytes free"):
        pull(there, None, tmp_path / "d")


def test_a_damaged_best_policy_does_not_stop_the_pull(there: Store, run: Path, store_url: str, tmp_path: Path) -> None:
    write_checkpoint(run / "best", 100)
    upload(run, there)
    policy = Path(store_url) / "reach-1/best/step_000000100/policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1])
    said: list[str] = []
    back = pull(there, None, tmp_path / "d", notify=said.append)
    assert content(back) == content(run)
    assert said and "best" in said[0] and not list(back.glob("best/*"))


def test_max_gb_limits_the_download(there: Store, tmp_path: Path, store_url: str) -> None:
    from kit.runs.finding import locate

    Copier(make_run(tmp_path / "a"), there, "me").run_pass()
    with pytest.raises(UserError, match=r"claims .* bytes, more than the 1,073 allowed.*--max-gb"):
        locate(store_url, str(tmp_path / "b"), max_gb=1e-6)
    with pytest.raises(UserError, match="max_gb=nan must be"):
        locate(store_url, str(tmp_path / "b"), max_gb=float("nan"))
    run, _ = locate(store_url, str(tmp_path / "b"), max_gb=1)
    assert [found.step for found in run.checkpoints()] == [200]
