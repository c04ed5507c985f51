"""Tests of checkpoints: round trip, damaged and forged files, pickles, unfinished folders, replaced steps."""

import json
import math
import shutil

import pytest
import torch

from kit.format import checkpoint, leftovers
from kit.format.checkpoint import Checkpoint, Damaged
from kit.format.manifest import digest

STATE = {
    "policy": {"weight": torch.arange(6, dtype=torch.float32).reshape(2, 3), "log_std": torch.zeros(())},
    "rng": {"torch": torch.arange(16, dtype=torch.uint8), "python": [3, [1, 2], None]},
    "trainer": {"num_timesteps": 128, "ent_coef": 0.1, "nan": float("nan")},
}


@pytest.fixture
def written(tmp_path):
    segment = checkpoint.write_shared(tmp_path, "replay/000000000000.safetensors", b"some rows")
    shared = {"replay/000000000000.safetensors": segment}
    return checkpoint.write(tmp_path / "checkpoints", 128, STATE, shared)


def test_round_trip_is_exact(written):
    assert written.path.name == "step_000000128"
    state = written.read()
    assert torch.equal(state["policy"]["weight"], STATE["policy"]["weight"])
    assert state["policy"]["log_std"].shape == ()
    assert torch.equal(state["rng"]["torch"], STATE["rng"]["torch"])
    assert state["rng"]["python"] == [3, [1, 2], None]
    assert state["trainer"]["ent_coef"] == 0.1 and math.isnan(state["trainer"]["nan"])


def test_no_pickle_on_disk(written):
    for path in written.path.iterdir():
        assert path.suffix in (".safetensors", ".json")


def all_files(written):
    return [p for p in [*written.path.iterdir(), *(written.run_path / "replay").iterdir()]]


def test_bit_flips_are_noticed(written):
    for path in all_files(written):
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 200)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
            if path.name == "manifest.json" and _same_meaning(path.read_bytes(), whole):
                continue
            with pytest.raises(Damaged):
                written.verify()
        path.write_bytes(whole)
    written.verify()


def _same_meaning(a: bytes, b: bytes) -> bool:
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


def test_truncations_are_noticed(written):
    for path in all_files(written):
        whole = path.read_bytes()
        for size in range(0, len(whole), max(1, len(whole) // 100)):
            path.write_bytes(whole[:size])
            with pytest.raises(Damaged):
                written.verify()
        path.write_bytes(whole)
    written.verify()


def test_missing_swapped_and_added_files_are_noticed(written):
    for path in all_files(written):
        aside = path.rename(path.parent.parent / "aside")
        with pytest.raises(Damaged):
            written.verify()
        aside.rename(path)
    policy, rng = written.path / "policy.safetensors", written.path / "rng.safetensors"
    shutil.copy(policy, written.path / "extra.safetensors")
    with pytest.raises(Damaged, match="extra"):
        written.verify()
    (written.path / "extra.safetensors").unlink()
    policy.rename(written.path / "swap")
    rng.rename(policy)
    (written.path / "swap").rename(rng)
    with pytest.raises(Damaged):
        written.verify()


def forge(written, manifest):
    """Write `manifest` with a valid digest, as an attacker who knows the format could."""
    manifest["digest"] = digest(manifest)
    (written.path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../../canary", "/tmp/canary", "a/../b", ".hidden", "a/b/c", "a\\b", ""])
def test_names_that_leave_the_run_are_refused(written, name):
    manifest = json.loads((written.path / "manifest.json").read_text())
    manifest["shared"] = {name: {"size": 1, "sha256": "0" * 64}}
    forge(written, manifest)
    with pytest.raises(Damaged):
        written.verify()


def test_a_link_in_place_of_a_file_is_refused(written, tmp_path):
    path = written.path / "policy.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged, match="missing"):
        written.verify()


def test_a_pickle_in_disguise_is_never_loaded(written, tmp_path):
    import pickle

    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self):
            return (canary.touch, ())

    entry = checkpoint.write_file(written.path / "policy.safetensors", pickle.dumps(Bomb()))
    manifest = json.loads((written.path / "manifest.json").read_text())
    manifest["files"]["policy.safetensors"] = entry
    forge(written, manifest)
    with pytest.raises(Damaged, match="not a safetensors file"):
        written.read()
    assert not canary.exists()


def test_unfinished_and_discarded_folders_are_ignored(written):
    folder = written.path.parent
    (folder / "step_12").mkdir()  # too short a name
    with leftovers.temporary(folder):
        assert checkpoint.committed(folder) == [Checkpoint(128, written.path)]
    checkpoint.discard(written.path)
    assert checkpoint.committed(folder) == [] and len(list(folder.iterdir())) == 1


def test_writing_the_same_step_again_replaces_it(written):
    again = checkpoint.write(written.path.parent, 128, {"policy": {"weight": torch.ones(1)}})
    assert torch.equal(again.read()["policy"]["weight"], torch.ones(1))


def test_a_crash_while_a_step_is_replaced_keeps_the_old_checkpoint(written):
    folder = written.path.parent
    written.path.rename(leftovers.old(written.path))  # a crash between the two renames of `write`
    half = checkpoint.write(folder, 256, STATE).path
    half.rename(leftovers.old(half))
    (leftovers.old(half) / "state.json").unlink()
    checkpoint.sweep(written.run_path)
    assert checkpoint.committed(folder) == [Checkpoint(128, written.path)] and len(list(folder.iterdir())) == 1
    written.verify()


def test_local_replay_data_may_exceed_the_download_limit(tmp_path):
    shared = {f"replay/{start:012d}.safetensors": {"size": 4 * 2**30, "sha256": "0" * 64} for start in range(3)}
    (tmp_path / "replay").mkdir()
    for name, entry in shared.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(entry["size"])  # a sparse file, which uses no disk space
    written = checkpoint.write(tmp_path / "checkpoints", 128, STATE, shared)
    assert len(written.replay()) == 3
