"""Tests of the checkpoint writer: retention, replay segments, disk budget, full disks."""

import os
import time

import pytest
import torch
from safetensors.torch import load_file

from kit.format import checkpoint
from kit.format.retention import KEEP_LAST
from kit.format.segments import Segment
from kit.runs.writer import Writer

STATE = {"policy": {"weight": torch.zeros(4)}}


def save(writer, step, *args):
    writer.submit(step, STATE, *args)
    writer.wait()


def steps(run_path):
    return [c.step for c in checkpoint.committed(run_path / "checkpoints")]


def test_the_last_three_and_one_per_hour_are_kept(tmp_path):
    writer = Writer(tmp_path, None, lambda written: None)
    hour = 3600 * (time.time() // 3600)
    for step in range(8):
        save(writer, step)
        # steps 0 and 1 in one past hour, 2 and 3 in the next, the others in this one
        os.utime(tmp_path / f"checkpoints/step_{step:09d}", (0, hour - 7200 + 3600 * min(step // 2, 2) + 100))
    save(writer, 8)
    assert steps(tmp_path) == [1, 3, 6, 7, 8]
    assert KEEP_LAST == 3


def test_checkpoints_older_than_a_day_are_deleted(tmp_path):
    writer = Writer(tmp_path, None, lambda written: None)
    save(writer, 0)
    os.utime(tmp_path / "checkpoints/step_000000000", (0, time.time() - 25 * 3600))
    for step in range(1, 5):
        save(writer, step)
    assert 0 not in steps(tmp_path)


def test_nothing_is_deleted_before_the_successor_is_verified(tmp_path, monkeypatch):
    writer = Writer(tmp_path, None, lambda written: None)
    for step in range(KEEP_LAST):
        save(writer, step)

    def torn(self):
        raise checkpoint.Damaged("torn on the way to the disk")

    monkeypatch.setattr(checkpoint.Checkpoint, "verify", torn)
    writer.submit(99, STATE)
    with pytest.raises(checkpoint.Damaged):
        writer.wait()
    assert set(range(KEEP_LAST)) <= set(steps(tmp_path))
    assert writer.step == KEEP_LAST - 1


def test_segments_hold_only_new_rows_and_are_deleted_when_not_needed(tmp_path):
    writer = Writer(tmp_path, None, lambda written: None)
    rows = torch.arange(1000.0).reshape(-1, 1)
    for step in range(1, 8):
        start = writer.replay_stop
        assert start == 100 * (step - 1)
        oldest = max(0, 100 * step - 250)  # a ring of 250 rows
        save(writer, step, Segment(start, {"rewards": rows[start : 100 * step]}), oldest)
    names = sorted(path.name for path in (tmp_path / "replay").iterdir())
    # checkpoint 5 is the oldest kept; it needs rows 250 to 500
    assert names == [f"{start:012d}.safetensors" for start in (200, 300, 400, 500, 600)]
    sizes = {path.stat().st_size for path in (tmp_path / "replay").iterdir()}
    assert len(sizes) == 1
    for c in checkpoint.committed(tmp_path / "checkpoints"):
        c.verify()


@pytest.mark.parametrize(("leftover", "fewest", "most"), [(0, 3, 5), (20_000, 1, 3)])
def test_checkpoints_are_deleted_before_the_budget_is_exceeded(tmp_path, monkeypatch, leftover, fewest, most):
    """After each write, all files of the run, `leftover` included, take less than the budget of 80 kB.

    There is one checkpoint per hour, each with 10 kB of new replay data and the three segments before it; all 14 would
    take more than 140 kB. The leftover is in a temporary folder of another process.
    """
    budget, taken = 80_000, []
    writer = Writer(tmp_path, None, lambda written: None, budget=budget)
    rows, hour = torch.zeros(14 * 2500, 1), 3600 * (time.time() // 3600)
    (tmp_path / "videos/.kit-ffffffff-0123456789ab").mkdir(parents=True)
    (tmp_path / "videos/.kit-ffffffff-0123456789ab/film.mp4").write_bytes(bytes(leftover))
    real = checkpoint.write

    def write(*args):
        written = real(*args)
        taken.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
        return written

    monkeypatch.setattr(checkpoint, "write", write)
    for step in range(14):
        save(writer, step, Segment(2500 * step, {"rewards": rows[2500 * step : 2500 * (step + 1)]}), 2500 * (step - 3))
        os.utime(tmp_path / f"checkpoints/step_{step:09d}", (0, hour - 3600 * (13 - step)))
    assert max(taken) < budget and min(taken[7:]) > budget - 15_000, "checkpoints that fit must be kept"
    kept = steps(tmp_path)
    assert kept == list(range(kept[0], 14)) and fewest <= len(kept) <= most
    for c in checkpoint.committed(tmp_path / "checkpoints"):
        c.verify()


def test_after_a_quota_error_the_reported_free_space_is_ignored(tmp_path, monkeypatch):
    """With a quota, the disk reports free space that this user cannot use."""
    writer = Writer(tmp_path, None, lambda written: None)
    for step in range(3):
        save(writer, step)
    real = checkpoint.write

    def refused(*args):
        if len(steps(tmp_path)) > 1:
            raise OSError(122, "Disk quota exceeded")
        return real(*args)

    monkeypatch.setattr(checkpoint, "write", refused)
    save(writer, 3)
    assert writer.error is not None and steps(tmp_path) == [0, 1, 2]
    save(writer, 4)
    assert writer.error is None and steps(tmp_path) == [2, 4]


def test_many_new_rows_go_to_several_files_so_that_writing_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("kit.format.segments.PART_BYTES", 1000)  # a row takes 4 + 16 bytes
    rows = {"rewards": torch.arange(120.0).reshape(-1, 1), "obs": torch.rand(120, 2, 2)}
    writer = Writer(tmp_path, None, lambda written: None)
    save(writer, 1, Segment(0, rows), 0)
    assert writer.replay_stop == 120
    (written,) = checkpoint.committed(tmp_path / "checkpoints")
    assert [path.name for path in written.replay()] == [f"{start:012d}.safetensors" for start in (0, 50, 100)]
    parts = [load_file(path) for path in written.replay()]
    assert all(torch.equal(torch.cat([part[name] for part in parts]), rows[name]) for name in rows)


def test_a_full_disk_sets_error_and_the_next_save_works(tmp_path, monkeypatch):
    writer = Writer(tmp_path, None, lambda written: None)
    save(writer, 1)
    real = checkpoint.write_file

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_file", full)
    save(writer, 2)
    assert writer.error is not None and writer.error.errno == 28 and writer.step == 1
    monkeypatch.setattr(checkpoint, "write_file", real)
    save(writer, 3)
    assert writer.error is None and steps(tmp_path) == [1, 3]
