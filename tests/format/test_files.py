"""Test of `GrowingRows`, which reads a file of JSON lines while another process appends to it."""

from __future__ import annotations

import json
from pathlib import Path

from kit.format.files import GrowingRows


def test_each_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    growing = GrowingRows(path, ("step", "x"))
    assert not growing.read() and growing.rows == []
    lines = [json.dumps({"step": i, "x": i / 10, "rest": "r" * 9}) + "\n" for i in range(30)]
    path.write_text("".join(lines[:10]) + lines[10][:7])
    assert growing.read() and len(growing.rows) == 10, "an incomplete last line is not read"
    first = growing.rows[0]
    path.write_text("".join(lines[:20]))
    assert growing.read() and not growing.read()
    assert growing.rows == [{"step": i, "x": i / 10} for i in range(20)] and growing.rows[0] is first
    path.write_text("".join([*lines[:15], *lines[25:], *lines[:15]]))  # cut to 15 lines, then longer than before
    assert growing.read() and [row["step"] for row in growing.rows] == [*range(15), *range(25, 30), *range(15)]


def test_a_name_that_ends_in_a_slash_means_all_that_begin_with_it(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "eval/reward/near": 2.0, "eval/mean_return": 3.0}\n')
    growing = GrowingRows(tmp_path / "metrics.jsonl", ("step", "eval/reward/"))
    assert growing.read() and growing.rows == [{"step": 1, "eval/reward/near": 2.0}]
