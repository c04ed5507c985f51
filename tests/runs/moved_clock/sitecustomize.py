"""Imported by Python at its start: `time.time` is off by the seconds in the file that $CLOCK names."""

import mmap
import os
import struct
import time

if "CLOCK" in os.environ:
    with open(os.environ["CLOCK"], "rb") as file:  # noqa: PTH123 - as little as possible is imported here
        offset = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    real = time.time
    time.time = lambda: real() + struct.unpack("d", offset)[0]
