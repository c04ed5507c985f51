"""Shifts `time.time` by the seconds in the file named by $CLOCK. Python imports this module at startup."""

import mmap
import os
import struct
import time

if "CLOCK" in os.environ:
    with open(os.environ["CLOCK"], "rb") as file:  # noqa: PTH123 - as little as possible is imported here
        offset = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    real = time.time
    time.time = lambda: real() + struct.unpack("d", offset)[0]
