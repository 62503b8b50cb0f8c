# SPDX-License-Identifier: Apache-2.0
"""A FUSE file system of one file, backed by a file of another file system.

`FOLDER FILE` mounts it, prints "ready" and serves until it is unmounted; the kernel reads and writes the backing file
itself (passthrough, since 6.9). With `FOLDER FILE SECONDS` the server reads and writes, with this delay for each
request, and at its end prints how often it was asked for what.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import stat
import struct
import sys
import time
from collections import Counter

NAME = b"data"
ROOT, DATA = 1, 2  # node numbers

# include/uapi/linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT, DESTROY, BATCH_FORGET = 1, 2, 3, 14, 18, 25, 26, 38, 42
READ, WRITE, FSYNC = 15, 16, 20
NAMES = {LOOKUP: "LOOKUP", GETATTR: "GETATTR", OPEN: "OPEN", READ: "READ", WRITE: "WRITE", FSYNC: "FSYNC"}
INIT_EXT, PASSTHROUGH_HIGH = 1 << 30, 1 << 37 - 32
OPEN_PASSTHROUGH = 1 << 7
BACKING_OPEN, BACKING_CLOSE = 0x4010E501, 0x4004E502
_MAJOR, _MINOR, _DEPTH, _MAX_WRITE = 7, 40, 1, 1 << 17


class Server:
    def __init__(self, folder: str, below: str, delay_s: str = "") -> None:
        self._delay_s = float(delay_s) if delay_s else None
        self.asked = Counter[str]()
        self._below = os.open(below, os.O_RDWR)
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"wptest", os.fsencode(folder), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")

    def serve(self) -> None:
        while True:
            try:
                asked = os.read(self._device, _MAX_WRITE + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # unmounted
                raise
            opcode, unique, node = struct.unpack_from("=4xIQQ", asked)
            if opcode in (FORGET, BATCH_FORGET):
                continue
            self.asked[NAMES.get(opcode, str(opcode))] += 1
            result = self._answer(opcode, node, asked[40:])
            body = result if isinstance(result, bytes) else b""
            os.write(self._device, struct.pack("=IiQ", 16 + len(body), result if body == b"" else 0, unique) + body)

    def _answer(self, opcode: int, node: int, asked: bytes) -> bytes | int:
        """Return the body of the answer, or a negative errno; 0 is an empty one."""
        if opcode == INIT:
            # 64 bytes since 7.23.
            through = (PASSTHROUGH_HIGH, _DEPTH) if self._delay_s is None else (0, 0)
            sizes = struct.pack("=HHIIHHII", 16, 12, _MAX_WRITE, 1, 32, 0, *through)
            return struct.pack("=IIII", _MAJOR, _MINOR, 1 << 17, INIT_EXT) + sizes + bytes(24)
        if opcode == LOOKUP:
            if node != ROOT or asked.rstrip(b"\0") != NAME:
                return -errno.ENOENT
            return struct.pack("=QQQQII", DATA, 1, 60, 60, 0, 0) + self._attributes(DATA)
        if opcode == GETATTR:
            return struct.pack("=QII", 60, 0, 0) + self._attributes(node)
        if self._delay_s is not None:
            return self._served(opcode, asked)
        if opcode == OPEN:
            number = fcntl.ioctl(self._device, BACKING_OPEN, bytearray(struct.pack("=iIQ", self._below, 0, 0)))
            return struct.pack("=QIi", number, OPEN_PASSTHROUGH, number)
        if opcode == RELEASE:
            (number,) = struct.unpack_from("=Q", asked)
            fcntl.ioctl(self._device, BACKING_CLOSE, struct.pack("=I", number))
            return 0
        return 0 if opcode in (FLUSH, DESTROY) else -errno.ENOSYS

    def _served(self, opcode: int, asked: bytes) -> bytes | int:
        if opcode == OPEN:
            return struct.pack("=QIi", 0, 0, 0)
        if opcode in (READ, WRITE):
            time.sleep(self._delay_s or 0)
            offset, size = struct.unpack_from("=8xQI", asked)
            if opcode == READ:
                return os.pread(self._below, size, offset)
            return struct.pack("=I4x", os.pwrite(self._below, asked[40 : 40 + size], offset))
        return 0 if opcode in (RELEASE, FLUSH, FSYNC, DESTROY) else -errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        of = os.fstat(self._below)
        size, blocks, mode = (of.st_size, of.st_blocks, of.st_mode) if node == DATA else (0, 0, stat.S_IFDIR | 0o755)
        return struct.pack("=6Q10I", node, size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    server = Server(*sys.argv[1:])
    print("ready", flush=True)
    server.serve()
    print(json.dumps(server.asked), flush=True)
