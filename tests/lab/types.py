# SPDX-License-Identifier: Apache-2.0
"""BTF of the lab's kernels and their modules, unpacked once and kept, without booting them."""

from __future__ import annotations

import io
import lzma
import struct
import subprocess
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tests.lab.errors import LabError
from tests.lab.fetch import Installed

# The setup header of an x86 boot image (Documentation/arch/x86/boot.rst).
_SETUP_SECTORS, _PAYLOAD = 0x1F1, 0x248


def of(kernel: Installed, module: str = "") -> bytes:
    """Return the BTF as in /sys/kernel/btf; empty for a module without BTF."""
    kept = kernel.directory / "btf" / (module or "vmlinux")
    if not kept.is_file():
        found = _section(_unpacked(_module(kernel, module)) if module else _vmlinux(kernel.image))
        kept.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(found)
        Path(file.name).replace(kept)
    return kept.read_bytes()


def _module(kernel: Installed, name: str) -> Path:
    found = [path for path in kernel.modules.rglob(f"{name}.ko*") if path.is_file()]
    if not found:
        raise LabError(f"{kernel.release} has no module {name}")
    return found[0]


def _section(elf: bytes) -> bytes:
    section = ELFFile(io.BytesIO(elf)).get_section_by_name(".BTF")
    return section.data() if section is not None else b""


def _vmlinux(image: Path) -> bytes:
    data = image.read_bytes()
    start, length = struct.unpack_from("<II", data, _PAYLOAD)
    start += (data[_SETUP_SECTORS] + 1) * 512
    return _unpack(data[start : start + length], str(image))


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return data if data.startswith(b"\x7fELF") else _unpack(data, str(path))


def _unpack(data: bytes, what: str) -> bytes:
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        # The length follows, and zstd fails on it after it has written everything.
        done = subprocess.run(
            ["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        if done.stdout:
            return done.stdout
    raise LabError(f"{what} is packed in a way that is not known here")
