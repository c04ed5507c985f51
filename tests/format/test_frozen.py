"""Tests of frozen weights: one file per run shared by all checkpoints, damage, fingerprints, retention, file names."""

import hashlib
import json

import pytest
import torch

from kit.format import checkpoint
from kit.format.checkpoint import Damaged
from kit.format.manifest import Refused, digest, read_manifest
from kit.format.retention import KEEP_LAST
from kit.format.segments import Segment
from kit.runs.fingerprint import fingerprint
from kit.runs.run import Run
from kit.runs.writer import Writer

PLAIN = {"policy": {"weight": torch.arange(6.0)}, "session": {"rows": 0}}
FROZEN = {"encoder.weight": torch.arange(1000.0), "encoder.bias": torch.ones(3, dtype=torch.float16)}
STATE = {**PLAIN, "frozen": FROZEN}


@pytest.fixture
def run_path(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("version: 1\nenv: Reach\nalgo: PPO\nrun_name: run\n")
    return tmp_path / "run"


def frozen_files(run_path):
    return sorted(path.name for path in (run_path / "frozen").glob("*"))


def test_frozen_weights_are_written_once_and_read_back(run_path):
    first = checkpoint.write(run_path / "checkpoints", 1, STATE)
    (name,) = frozen_files(run_path)
    data = (run_path / "frozen" / name).read_bytes()
    assert name == hashlib.sha256(data).hexdigest()[:16] + ".safetensors"
    assert [path.name for path in sorted(first.path.iterdir())] == [
        "manifest.json", "policy.safetensors", "state.json",
    ]  # fmt: skip
    stamp = (run_path / "frozen" / name).stat()
    kept = checkpoint.write(run_path / "best", 1, {name: STATE[name] for name in ("policy", "frozen")})
    second = checkpoint.write(run_path / "checkpoints", 2, {**STATE, "frozen": dict(reversed(FROZEN.items()))})
    after = (run_path / "frozen" / name).stat()
    assert frozen_files(run_path) == [name] and (stamp.st_ino, stamp.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for written in (first, kept, second):
        assert written.manifest()["shared"] == {f"frozen/{name}": entry}
        state = written.read()
        assert state["frozen"].keys() == FROZEN.keys() and state["policy"].keys() == PLAIN["policy"].keys()
        assert all(torch.equal(state["frozen"][name], FROZEN[name]) for name in FROZEN)


def test_manifest_without_frozen_weights(run_path):
    written = checkpoint.write(run_path / "checkpoints", 1, PLAIN)
    files = {
        path.name: {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in (written.path / "policy.safetensors", written.path / "state.json")
    }
    manifest = {"version": 1, "step": 1, "files": files, "shared": {}}
    raw = json.dumps({**manifest, "digest": digest(manifest)}, indent=1)
    assert (written.path / "manifest.json").read_text() == raw
    assert not (run_path / "frozen").exists() and "frozen" not in written.read()


@pytest.mark.parametrize("how", ["flip", "truncate", "missing"])
def test_damage_is_noticed_and_the_next_checkpoint_repairs_it(run_path, how):
    written = checkpoint.write(run_path / "checkpoints", 1, STATE)
    (path,) = (run_path / "frozen").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + (b"!" if how == "flip" else b""))
    if how == "missing":
        path.unlink()
    for look in (written.verify, written.read):
        with pytest.raises(Damaged, match="frozen/"):
            look()
    checkpoint.write(run_path / "checkpoints", 2, STATE).verify()
    written.verify()
    assert path.read_bytes() == whole


def test_the_fingerprint_depends_on_each_frozen_tensor(run_path):
    def of(frozen):
        checkpoint.write(run_path / "checkpoints", 1, {**PLAIN, **frozen})
        return fingerprint(Run(run_path))

    whole = of({"frozen": FROZEN})
    assert of({"frozen": FROZEN}) == whole
    for name, value in FROZEN.items():
        assert of({"frozen": {**FROZEN, name: value + 1}}) != whole
    assert of({}) != whole


def test_frozen_files_are_kept_while_a_checkpoint_best_or_policy_needs_them(run_path):
    for kind in ("checkpoints", "best", "policies"):
        checkpoint.write(run_path / kind, 1, {**STATE, "frozen": {"of": torch.ones(ord(kind[0]))}})
    writer = Writer(run_path, None, lambda written: None)
    (run_path / "frozen/0000000000000000.safetensors").write_bytes(b"of nobody")

    def write(steps):
        for step in steps:
            writer.submit(step, STATE, Segment(writer.replay_stop, {"rewards": torch.ones(10, 1)}), 0)
            writer.wait()

    write([2])
    assert len(frozen_files(run_path)) == 4, "three old files and a new one; the unused one is deleted"
    old = run_path / "checkpoints/step_000000001"
    checkpoint.discard(old)
    write([3])
    assert len(frozen_files(run_path)) == 3
    checkpoint.discard(run_path / "best/step_000000001")
    write([4])
    assert len(frozen_files(run_path)) == 2
    checkpoint.discard(run_path / "policies/step_000000001")
    write(range(5, 5 + KEEP_LAST))
    assert len(frozen_files(run_path)) == 1 and len(list((run_path / "replay").iterdir())) == 3 + KEEP_LAST
    newest = checkpoint.committed(run_path / "checkpoints")[-1]
    assert len(newest.replay()) == 3 + KEEP_LAST and newest.read()["frozen"].keys() == FROZEN.keys()


def test_a_resumed_writer_continues_replay_without_unused_frozen_files(run_path):
    writer = Writer(run_path, None, lambda written: None)
    writer.submit(1, STATE, Segment(0, {"rewards": torch.ones(10, 1)}), 0)
    writer.wait()
    again = Writer(run_path, checkpoint.committed(run_path / "checkpoints")[-1], lambda written: None)
    assert again.replay_stop == 10
    again.submit(2, PLAIN, Segment(10, {"rewards": torch.ones(10, 1)}), 0)
    again.wait()
    assert not [n for n in checkpoint.committed(run_path / "checkpoints")[-1].manifest()["shared"] if "frozen" in n]


@pytest.mark.parametrize(
    "name", ["frozen", "frozen/", "frozen/../x.safetensors", "frozen/a/b.safetensors", "frozen/x.pkl", "thawed/x.json"]
)
def test_invalid_file_names_are_refused(name):
    def sealed(name):
        manifest = {"version": 1, "step": 1, "files": {"a.json": entry}, "shared": {name: entry}}
        return json.dumps({**manifest, "digest": digest(manifest)}).encode()

    entry = {"size": 1, "sha256": "0" * 64}
    assert read_manifest(sealed("frozen/0123456789abcdef.safetensors"))["step"] == 1
    with pytest.raises(Refused):
        read_manifest(sealed(name))
