# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab import initrd

MODULES_DEP = """\
kernel/fs/9p/9p.ko.xz: kernel/fs/netfs/netfs.ko.xz kernel/net/9p/9pnet.ko.xz
kernel/fs/netfs/netfs.ko.xz:
kernel/net/9p/9pnet.ko.xz:
kernel/nvme/host/nvme.ko.xz: kernel/nvme/host/nvme-core.ko.xz kernel/nvme/common/nvme-auth.ko.xz
kernel/nvme/host/nvme-core.ko.xz: kernel/nvme/common/nvme-auth.ko.xz
kernel/nvme/common/nvme-auth.ko.xz:
"""


def test_modules_come_after_what_they_need() -> None:
    order = initrd.load_order(MODULES_DEP, ["nvme", "9p", "nvme_core", "built_in"])
    assert [initrd.module_name(path) for path in order] == [
        "nvme_auth",
        "nvme_core",
        "nvme",
        "9pnet",
        "netfs",
        "9p",
    ]


def test_cpio_is_padded_to_words() -> None:
    data = initrd.cpio([initrd.directory("a"), initrd.script("a/file", b"12345")])
    assert len(data) % 4 == 0
    assert data.startswith(b"070701")
    assert b"a/file\0" in data
    assert b"TRAILER!!!\0" in data
    header = data[data.index(b"a/file\0") - 110 :][:110]
    assert int(header[54:62], 16) == 5
    assert int(header[94:102], 16) == len("a/file") + 1


@pytest.mark.parametrize("value", ["plain", "it's", 'a b\n$HOME `x` \\ "', ""])
def test_the_shell_reads_settings_back(tmp_path: Path, value: str) -> None:
    file = tmp_path / "settings"
    file.write_bytes(initrd.settings_text({"LAB_X": value}))
    shown = subprocess.run(["sh", "-c", f'. {file}; printf %s "$LAB_X"'], stdout=subprocess.PIPE, text=True, check=True)
    assert shown.stdout == value


def test_the_init_script_is_sound() -> None:
    script = Path(initrd.__file__).parent / "init.sh"
    subprocess.run(["sh", "-n", str(script)], check=True)
