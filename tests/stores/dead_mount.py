"""A dead mount, like a hung Google Drive mount: a FUSE file system whose server does not answer.

A process that looks up a file there blocks in the kernel, and no signal ends that. Mounting needs root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import threading
from pathlib import Path

INIT, LOOKUP, GETATTR, STATFS = 26, 1, 3, 17
ENOENT, ENOSYS = 2, 38
NO_ANSWER = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET


class DeadMount:
    """Context manager that mounts at `folder`. Lookups there block until `revive`; then they fail with ENOENT."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked: list[int] = []
        self._dead = True

    def __enter__(self) -> DeadMount:
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"dead", bytes(self.folder), b"fuse", 0, options.encode()):
            error = ctypes.get_errno()
            os.close(self._device)
            raise OSError(error, os.strerror(error))
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.revive()
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        os.close(self._device)

    def revive(self) -> None:
        self._dead = False
        for unique in self._asked:
            self._answer(unique, -ENOENT)
        self._asked.clear()

    @property
    def waited_for(self) -> bool:
        return bool(self._asked)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 2**18)
            except OSError:  # unmounted
                return
            _, opcode, unique = struct.unpack_from("<IIQ", request)
            if opcode == INIT:
                self._answer(unique, 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 2**16, 0, 0, 0, 2**16, 1, 0, 0, 0))
            elif opcode == GETATTR:
                attributes = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o040777, 2, 0, 0, 0, 4096, 0)
                self._answer(unique, 0, struct.pack("<QII", 0, 0, 0) + attributes)
            elif opcode == LOOKUP and self._dead:
                self._asked.append(unique)
            elif opcode not in NO_ANSWER:
                self._answer(unique, -ENOENT if opcode == LOOKUP else -ENOSYS)

    def _answer(self, unique: int, error: int, data: bytes = b"") -> None:
        os.write(self._device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
