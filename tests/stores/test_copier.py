"""Tests of `Copier`: uploads, deletions, faulty stores, damaged checkpoints, secrets, the lease."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kit.runs.run import Run
from kit.stores import LeaseHeld, Store, StoreError, lease, open_store, pull
from kit.stores.copier import Copier
from kit.stores.folder import DirectoryStore
from tests.stores.conftest import KINDS, Clock
from tests.stores.fabricate import add_checkpoint, add_frozen, content, latest, make_run, steps, write_checkpoint


@pytest.fixture
def copier(run: Path, store: Store, clock: Clock) -> Copier:
    return Copier(run, store, "me-1", clock=clock)


class Liar(DirectoryStore):
    """A faulty folder store: it loses or corrupts files after a put, or fails in the middle of one.

    `drop`, `change`: suffix of the paths to delete or corrupt; `vanish_after`: number of files that a put still writes.
    """

    drop: str | None = None
    change: str | None = None
    vanish_after: int | None = None
    puts: list[list[str]]

    def put(self, files: Mapping[str, Path | bytes], delete: Sequence[str] = (), message: str = "") -> None:
        self.puts = [*getattr(self, "puts", []), list(files)]
        if self.vanish_after is not None:
            DirectoryStore.put(self, dict(list(files.items())[: self.vanish_after]))
            raise StoreError("Transport endpoint is not connected")
        super().put(files, delete, message)
        for path in files:
            if self.drop and path.endswith(self.drop):
                (self.root / path).unlink()
            if self.change and path.endswith(self.change):
                data = bytearray((self.root / path).read_bytes())
                data[len(data) // 2] ^= 1
                (self.root / path).write_bytes(data)


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(str(tmp_path / "store"), write=True)


@pytest.mark.parametrize("store_url", KINDS, indirect=True)
def test_everything_arrives_and_comes_back_identical(
    store: Store, store_url: str, tmp_path: Path, clock: Clock
) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), replay=True)
    write_checkpoint(run / "best", 100)
    copier = Copier(run, store, "me-1", clock=clock)
    assert copier.run_pass()["step"] == 100
    add_checkpoint(run, 200, replay=True)
    copier.run_pass()
    result = copier.run_pass(final=True)
    copier.close()
    assert result == {"step": 200, "time": clock.now, "pending": False, "problem": None, "note": None}
    assert latest(store) == 200
    back = pull(open_store(store_url), None, tmp_path / "elsewhere")
    assert content(back) == content(run)
    assert (back / "best/step_000000100/manifest.json").exists()
    assert (back / "videos/step_000000100.mp4").read_bytes() == (run / "videos/step_000000100.mp4").read_bytes()


def test_only_new_replay_is_copied(tmp_path: Path, liar: Liar) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), replay=True)
    copier = Copier(run, liar, "me-1")
    copier.run_pass()
    add_checkpoint(run, 200, replay=True)
    liar.puts = []
    copier.run_pass()
    sent = {path.partition("/")[2] for files in liar.puts for path in files}
    assert "replay/000000000200.safetensors" in sent and "replay/000000000100.safetensors" not in sent


def test_a_new_session_copies_nothing_twice(tmp_path: Path, liar: Liar) -> None:
    run = make_run(tmp_path / "runs", replay=True)
    Copier(run, liar, "me-1").run_pass(final=True)
    liar.puts = []
    again = Copier(run, liar, "me-1")
    assert again.run_pass()["step"] == 200
    add_checkpoint(run, 300, replay=True)
    assert again.run_pass()["step"] == 300
    sent = [path for files in liar.puts for path in files if "checkpoints" in path or "replay" in path]
    assert len(sent) == 5 and all("300" in path for path in sent)


def test_old_checkpoints_are_deleted_when_their_successors_are_verified(run: Path, store: Store, clock: Clock) -> None:
    copier = Copier(run, store, "me-1", clock=clock)
    for step in (300, 400, 500, 600):
        copier.run_pass()
        add_checkpoint(run, step)
    copier.run_pass()
    assert steps(store) == {500, 600}


def test_replay_is_deleted_with_the_last_checkpoint_that_needs_it(tmp_path: Path, store: Store) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), replay=True)
    copier = Copier(run, store, "me-1")
    copier.run_pass()
    for step in (200, 300, 400):  # as with a small replay buffer: each checkpoint needs only its own segment
        shutil.rmtree(run / "checkpoints")
        add_checkpoint(run, step, replay=True)
        copier.run_pass()
    assert sorted(store.list("reach-1/replay")) == [f"reach-1/replay/{s:012d}.safetensors" for s in (300, 400)]


def test_frozen_weights_are_copied_once_and_come_back(tmp_path: Path, liar: Liar) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), replay=True, frozen=1)
    (path,) = write_best(run, 100, frozen=1)
    copier = Copier(run, liar, "me-1")
    copier.run_pass()
    add_checkpoint(run, 200, replay=True, frozen=1)
    copier.run_pass()
    again = Copier(run, liar, "me-1")
    add_checkpoint(run, 300, replay=True, frozen=1)
    again.run_pass(final=True)
    assert sum(f"reach-1/{path}" in files for files in liar.puts) == 1
    back = pull(DirectoryStore(str(liar.root)), None, tmp_path / "elsewhere")
    assert content(back) == content(run) and path in content(back)
    assert [p.name for p in (back / "best").iterdir()] == ["step_000000100"]
    (liar.root / "reach-1" / path).unlink()
    again.run_pass()
    assert f"reach-1/{path}" in liar.list(), "a file that the store lost must be copied again"


def test_frozen_weights_are_deleted_when_no_checkpoint_and_no_best_needs_them(tmp_path: Path, store: Store) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), frozen=1)
    (of_checkpoint,) = add_frozen(run, 1)
    (of_best,) = write_best(run, 100, frozen=2)
    copier = Copier(run, store, "me-1")
    copier.run_pass()

    def there() -> set[str]:
        return {path.removeprefix("reach-1/") for path in store.list("reach-1/frozen")}

    assert there() == {of_checkpoint, of_best}
    for step in (200, 300, 400):
        shutil.rmtree(run / "checkpoints")
        add_checkpoint(run, step, frozen=3)
        copier.run_pass()
    (newest,) = add_frozen(run, 3)
    assert there() == {of_best, newest}
    shutil.rmtree(run / "best")
    add_checkpoint(run, 500, frozen=3)
    copier.run_pass()
    assert of_best in there(), "the best policy in the store still needs it"
    write_best(run, 500, frozen=3)
    copier.run_pass()
    copier.run_pass()  # deletes the old best, because the new one is verified now
    assert there() == {newest}


def write_best(run: Path, step: int, frozen: int) -> dict[str, object]:
    """Write a best policy with frozen weights; return its "shared" entries."""
    shared = add_frozen(run, frozen)
    write_checkpoint(run / "best", step, shared)
    return shared


def test_a_video_with_an_unsafe_name_is_not_copied(run: Path, store: Store, copier: Copier) -> None:
    (run / "videos/my best try.mp4").write_bytes(b"x")
    copier.run_pass(final=True)
    assert [path for path in store.list() if "videos" in path] == ["reach-1/videos/step_000000100.mp4"]


@pytest.mark.parametrize("name", ["policy.safetensors", "manifest.json", "state.json", "latest.json", "metrics.jsonl"])
def test_a_store_that_drops_what_it_accepted(run: Path, liar: Liar, name: str) -> None:
    copier = Copier(run, liar, "me-1")
    copier.run_pass()
    add_checkpoint(run, 300)
    liar.drop = name
    with pytest.raises(StoreError, match=r"accepted .* but does not have it"):
        copier.run_pass()
    if name not in ("latest.json", "metrics.jsonl"):
        assert latest(liar) == 200, "latest.json names an unverified checkpoint"
        assert steps(liar) >= {200}, "a verified checkpoint was deleted before its successor was verified"
    liar.drop = None
    assert copier.run_pass()["pending"] is False
    assert latest(liar) == 300


def test_files_that_the_store_loses_later_are_copied_again(run: Path, liar: Liar) -> None:
    copier = Copier(run, liar, "me-1")
    copier.run_pass()
    shutil.rmtree(liar.root / "reach-1/checkpoints")
    (liar.root / "reach-1/videos/step_000000100.mp4").unlink()
    assert copier.run_pass()["step"] == 200
    assert steps(liar) == {200} and "reach-1/videos/step_000000100.mp4" in liar.list()


@pytest.mark.parametrize("name", ["policy.safetensors", "manifest.json"])
def test_a_store_that_changes_a_bit(run: Path, liar: Liar, name: str) -> None:
    liar.change = name
    copier = Copier(run, liar, "me-1")
    for _ in range(2):
        with pytest.raises(StoreError, match="is not what was written"):
            copier.run_pass()
        assert latest(liar) is None
    liar.change = None
    assert copier.run_pass()["step"] == 200 and latest(liar) == 200


@pytest.mark.parametrize("after", range(0, 9))
def test_a_store_that_vanishes_in_the_middle(run: Path, liar: Liar, tmp_path: Path, after: int) -> None:
    """A put fails after `after` files: a pull still gets an intact checkpoint, and the next pass catches up."""
    copier = Copier(run, liar, "me-1")
    copier.run_pass()
    before = content(run)
    add_checkpoint(run, 300)
    liar.vanish_after = after
    with pytest.raises(StoreError, match="not connected"):
        copier.run_pass()
    liar.vanish_after = None
    reader = DirectoryStore(str(liar.root))
    back = pull(reader, None, tmp_path / "elsewhere")
    newest = sorted((back / "checkpoints").iterdir())[-1].name
    assert newest == "step_000000300" or {**content(back), "metrics.jsonl": b""} == {**before, "metrics.jsonl": b""}
    assert copier.run_pass()["step"] == 300
    assert content(pull(reader, None, tmp_path / "again")) == content(run)


def test_a_folder_that_is_unmounted_is_not_made_again(run: Path, liar: Liar, tmp_path: Path) -> None:
    copier = Copier(run, liar, "me-1")
    copier.run_pass()
    liar.root.rename(tmp_path / "unplugged")
    with pytest.raises(StoreError, match="has disappeared"):
        copier.run_pass()
    assert not liar.root.exists()
    (tmp_path / "unplugged").rename(liar.root)
    assert copier.run_pass()["step"] == 200


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_folder_unmounted_just_after_the_mount_check_is_not_made_again(
    run: Path, liar: Liar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """The folder disappears after the mount check of a lease read (1, 2) or of the lease swap (3)."""
    Copier(run, liar, "me-1").run_pass()
    check, looks = DirectoryStore._check_mounted, iter(range(1, 100))

    def late(store: DirectoryStore) -> None:
        check(store)
        if next(looks) == look:
            store.root.rename(tmp_path / "unplugged")

    monkeypatch.setattr(DirectoryStore, "_check_mounted", late)
    with pytest.raises(StoreError, match="has disappeared"):
        Copier(run, liar, "me-1").run_pass()
    assert not liar.root.exists()


def test_a_checkpoint_damaged_on_this_machine_is_not_copied(run: Path, store: Store, copier: Copier) -> None:
    policy = run / "checkpoints/step_000000200/policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1] + b"\0")
    with pytest.raises(StoreError, match=r"policy.safetensors on this machine is damaged"):
        copier.run_pass()
    result = copier.run_pass()
    assert result["step"] == 100 and "step_000000200 was not copied" in result["problem"]
    add_checkpoint(run, 300)
    assert copier.run_pass()["step"] == 300


def test_a_bit_that_flips_on_this_machine_while_it_is_copied(run: Path, liar: Liar) -> None:
    """The file changes after its SHA-256 was checked and before its upload: latest.json must not name it."""
    policy = run / "checkpoints/step_000000200/policy.safetensors"
    put = liar.put

    def flip(files: Mapping[str, Path | bytes], delete: Sequence[str] = (), message: str = "") -> None:
        if any("step_000000200/policy" in path for path in files):
            data = bytearray(policy.read_bytes())
            data[-1] ^= 1
            with policy.open("r+b") as file:  # in place, because the copier uploads a hard link to this file
                file.write(data)
        put(files, delete, message)

    liar.put = flip  # type: ignore[method-assign]
    copier = Copier(run, liar, "me-1")
    with pytest.raises(StoreError, match=r"policy.safetensors read back from .* is not what was written"):
        copier.run_pass()
    liar.put = put  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=r"policy.safetensors on this machine is damaged"):
        copier.run_pass()
    assert copier.run_pass()["step"] == 100 and latest(liar) == 100


def test_training_may_delete_a_checkpoint_while_it_is_copied(
    run: Path, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = DirectoryStore.put

    def slow(
        store: DirectoryStore, files: Mapping[str, Path | bytes], delete: Sequence[str] = (), message: str = ""
    ) -> None:
        if any("checkpoints" in path for path in files):
            shutil.rmtree(run / "checkpoints")
        put(store, files, delete, message)

    monkeypatch.setattr(DirectoryStore, "put", slow)
    copier = Copier(run, DirectoryStore(str(liar.root), write=True), "me-1")
    assert copier.run_pass()["step"] == 200
    assert not list(run.glob(".kit-*"))


def test_the_note_is_copied(run: Path, store: Store, copier: Copier, tmp_path: Path) -> None:
    (run / "note.txt").write_text("too fast")
    copier.run_pass()
    assert Run(pull(store, None, tmp_path / "elsewhere")).note == "too fast"


def test_an_incomplete_line_of_metrics_is_not_copied(run: Path, store: Store, copier: Copier) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 201, "tra')
    copier.run_pass()
    assert [json.loads(line)["step"] for line in store.read("reach-1/metrics.jsonl").splitlines()] == [100, 200]


def test_no_secret_is_copied(run: Path, store: Store, copier: Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "very-secret-pod-key")
    (run / "provenance.json").write_text(json.dumps({"a": "very-secret-pod-key", "b": f"hf_{'aB3' * 11}x"}))
    with (run / "config.yaml").open("a") as file:
        file.write("store: s3://AKIAABCDEFGHIJKLMNOP:abcdef@bucket\n")
    copier.run_pass(final=True)
    everything = b"".join(store.read(path, 10**8) for path in store.list())
    for secret in (b"very-secret-pod-key", b"aB3aB3", b"AKIA", b"abcdef@"):
        assert secret not in everything


def test_a_lease_lost_to_another_machine_stops_the_copying(
    run: Path, store: Store, copier: Copier, clock: Clock
) -> None:
    copier.run_pass()
    clock.now += lease.TTL_S + 1
    lease.acquire(store, "reach-1", "rival", clock=clock)
    clock.now += lease.TTL_S + 1  # the other lease has expired too, but its owner may have trained the run
    add_checkpoint(run, 300)
    with pytest.raises(LeaseHeld, match="rival"):
        copier.run_pass()
    assert steps(store) == {200}


def test_the_lease_is_renewed_and_released(run: Path, store: Store, copier: Copier, clock: Clock) -> None:
    copier.run_pass()
    clock.now += lease.TTL_S * 0.6
    copier.run_pass()
    found = lease.read(store, "reach-1")[1]
    assert found is not None and found.expires == clock.now + lease.TTL_S
    copier.close()
    lease.acquire(store, "reach-1", "rival", clock=clock)


def test_a_lease_outlasts_a_large_upload(
    run: Path, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.stores.copier.USUAL_BYTES_PER_S", 10)
    Copier(run, store, "me-1", clock=clock).run_pass()
    found = lease.read(store, "reach-1")[1]
    assert found is not None and found.expires > clock.now + lease.TTL_S + 2000


def test_a_store_ahead_of_this_machine_is_left_alone(run: Path, store: Store, copier: Copier) -> None:
    add_checkpoint(run, 900)
    copier.run_pass()
    shutil.rmtree(run / "checkpoints/step_000000900")
    with pytest.raises(StoreError, match=r"holds step 900 of reach-1, newer than step 200 here"):
        Copier(run, store, "me-1").run_pass()
    assert 900 in steps(store)
