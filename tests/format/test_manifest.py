"""Tests of manifests and tensor files from untrusted sources: names, sizes, hashes, damage, tensor headers."""

from __future__ import annotations

import copy
import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from kit.format.checkpoint import Checkpoint
from kit.format.manifest import (
    MAX_TOTAL_BYTES,
    Refused,
    check_tensors,
    digest,
    read_manifest,
    safe_name,
    safe_path,
)

SHA = "0" * 64
GOOD: dict[str, Any] = {
    "version": 1,
    "step": 100,
    "files": {"policy.safetensors": {"size": 10, "sha256": SHA}, "state.json": {"size": 2, "sha256": SHA}},
    "shared": {"replay/000000000000.safetensors": {"size": 10, "sha256": SHA, "rows": 5}},
}


def sealed(**changes: Any) -> dict[str, Any]:
    manifest = {**copy.deepcopy(GOOD), **changes}
    return {**manifest, "digest": digest(manifest)}


def check_manifest(manifest: dict[str, Any], *args: int, **options: int) -> dict[str, Any]:
    return read_manifest(json.dumps(manifest).encode(), *args, **options)


def test_a_valid_manifest_passes() -> None:
    assert check_manifest(sealed(), 100) == check_manifest(sealed()) == sealed()
    with pytest.raises(Refused, match="of step 200 says step=100"):
        check_manifest(sealed(), 200)
    found = Checkpoint.of("checkpoints/step_000000100", json.dumps(sealed()).encode())
    assert list(found.files()) == [
        "replay/000000000000.safetensors",
        "checkpoints/step_000000100/policy.safetensors",
        "checkpoints/step_000000100/state.json",
        "checkpoints/step_000000100/manifest.json",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "newer"),
        ({"version": None}, "version=None"),
        ({"version": True}, "version=True"),
        ({"step": -1}, "step=-1"),
        ({"step": 1.5}, "step=1.5"),
        ({"step": 2**60}, "step="),
        ({"files": {}}, "names no files"),
        ({"files": []}, "must be an object"),
        ({"shared": "x"}, "must be an object"),
        ({"files": {f"{n}.json": {"size": 0, "sha256": SHA} for n in range(10_001)}}, "at most 10000 files"),
        ({"files": {"a.json": {"size": 0, "sha256": SHA}, "A.json": {"size": 0, "sha256": SHA}}}, "case only"),
        ({"files": {"manifest.json": {"size": 0, "sha256": SHA}}}, "itself"),
    ],
)
def test_invalid_manifests_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_manifest(sealed(**changes))


@pytest.mark.parametrize(
    "name",
    ["../x.json", "/etc/x.json", "a/b.json", "..", ".", "", ".x.json", "a\\b.json", "x.json\0", "x\n.json", "c:x.json",
     "x.pkl", "x.py", "x.zip", "x.pt", "x.safetensors.pkl", "é.json",
     "a" * 200 + ".json", "con.json", "x.json.", "~.json", "-rf.json"],
)  # fmt: skip
def test_invalid_file_names_are_refused(name: str) -> None:
    with pytest.raises(Refused):
        check_manifest(sealed(files={name: {"size": 1, "sha256": SHA}}))


@pytest.mark.parametrize(
    "name",
    [
        "x.safetensors",
        "replay/../x.json",
        "replay/a/b.json",
        "checkpoints/a.json",
        "replay/",
        "/replay/a.json",
        "replay",
    ],
)
def test_invalid_names_of_shared_files_are_refused(name: str) -> None:
    with pytest.raises(Refused):
        check_manifest(sealed(shared={name: {"size": 1, "sha256": SHA}}))


@pytest.mark.parametrize("size", [-1, 10 * 2**30, 2**80, 1.5, "1", None, True])
def test_invalid_sizes_are_refused(size: Any) -> None:
    with pytest.raises(Refused, match="claims size="):
        check_manifest(sealed(files={"a.safetensors": {"size": size, "sha256": SHA}}))


def test_the_total_size_is_limited() -> None:
    files = {f"{n}.safetensors": {"size": 2**31, "sha256": SHA} for n in range(5)}
    with pytest.raises(Refused, match=f"more than the {MAX_TOTAL_BYTES:,} allowed"):
        check_manifest(sealed(files=files))
    check_manifest(sealed(files=files), max_bytes=2**40)


@pytest.mark.parametrize("sha256", [None, "", "0" * 63, "g" * 64, "A" * 64, 5])
def test_invalid_hashes_are_refused(sha256: Any) -> None:
    with pytest.raises(Refused, match="SHA-256"):
        check_manifest(sealed(files={"a.json": {"size": 1, "sha256": sha256}}))


def test_a_flipped_bit_in_any_byte_is_noticed() -> None:
    raw = json.dumps(sealed()).encode()
    missed = []
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1
        try:
            if read_manifest(bytes(damaged)) != sealed():
                missed.append(position)
        except Refused:
            pass
    assert missed == []


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"version":' + b"9" * 5000 + b"}"]
)
def test_bytes_that_are_no_manifest_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        read_manifest(raw)


def test_safe_name_and_safe_path() -> None:
    assert safe_name("step_000000100") and safe_path("checkpoints/step_000000100/a.json")
    for bad in (None, 5, "", "a/b", "..", "a b"):
        with pytest.raises(Refused):
            safe_name(bad)
    for bad in (None, "", "/a", "a//b", "a/../b", "a/" * 600 + "a"):
        with pytest.raises(Refused):
            safe_path(bad)


def header(tensors: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype: str = "F32", shape: Any = (2,), start: Any = 0, stop: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_real_tensor_files_pass(tmp_path: Path) -> None:
    arrays = {t: np.ones((3, 2), t) for t in ("float32", "float16", "int64", "uint8", "bool")}
    for name, data in {
        "a": save(arrays),
        "b": save({"scalar": np.array(1.0)}),
        "c": save({"none": np.ones((0, 3))}),
        "d": save({}),
    }.items():
        (tmp_path / name).write_bytes(data)
        check_tensors(tmp_path / name)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"12345678",
        pickle.dumps({"a": 1}),
        header({"a": tensor()}, b"x" * 7),
        header({"a": tensor()}, b"x" * 9),
        header({"a": tensor(shape=[3])}, b"x" * 8),
        header({"a": tensor(shape=[2**40, 2**40])}, b"x" * 8),
        header({"a": tensor(shape=[-2])}, b"x" * 8),
        header({"a": tensor(shape="ab")}, b"x" * 8),
        header({"a": tensor(shape=None)}, b"x" * 8),
        header({"a": tensor(shape=[1] * 1000 + [2])}, b"x" * 8),
        header({"a": tensor(dtype="OBJECT")}, b"x" * 8),
        header({"a": tensor(dtype=None)}, b"x" * 8),
        header({"a": tensor(), "b": tensor()}, b"x" * 8),
        header({"a": tensor(), "b": tensor(start=16, stop=24)}, b"x" * 24),
        header({"a": tensor(start=0, stop=2**60, shape=[2**58])}, b"x" * 8),
        header({"a": 5}, b""),
        header([1, 2], b""),
        header(b"{not json", b""),
        header({"a": tensor()}, b"x" * 8, length=2**40),
        header(b"[" * 100_000, b""),
    ],
)
def test_invalid_tensor_files_are_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(Refused):
        check_tensors(path)


def test_checkpoint_module_imports_no_numpy_torch_yaml_or_safetensors() -> None:
    program = "import sys, kit.format.checkpoint; print({'numpy', 'torch', 'yaml', 'safetensors'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"
