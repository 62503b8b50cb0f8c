# SPDX-License-Identifier: Apache-2.0
"""Processes that run guests and the images of their disks, in a folder like /proc, whose contents are not trusted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from wptrace.kernel import guests

PID = 4711


class Procs:
    """Processes with a name, a command line, and descriptors of files of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root / "files"
        self.files.mkdir(parents=True)

    def add(self, pid: int, comm: bytes, words: Sequence[str] = (), opened: Sequence[Path] = ()) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_bytes(comm + b"\n")
        (folder / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        for number, path in enumerate(opened, 3):
            (folder / "fd" / str(number)).symlink_to(path)

    def file(self, name: str, data: bytes = b"") -> Path:
        path = self.files / name
        path.write_bytes(data)
        return path

    def read(self, *words: str, opened: Sequence[Path] = (), comm: bytes = b"qemu-system-x86") -> guests.Guest:
        self.add(PID, comm, ["qemu", *words], opened)
        return guests.read(PID, self.root)


@pytest.fixture
def procs(tmp_path: Path) -> Procs:
    return Procs(tmp_path / "proc")


@pytest.mark.parametrize(
    ("comm", "is_one"),
    [
        (b"qemu-system-x86", True),
        (b"qemu-kvm", True),
        (b"kvm", True),
        (b"cloud-hypervis", True),
        (b"firecracker", True),
        (b"kvm-nx-lpage", False),
        (b"my-qemu-system-x", False),
        (b"", False),
        (b"\xff\n\x1b", False),
    ],
)
def test_by_its_name(procs: Procs, comm: bytes, is_one: bool) -> None:
    procs.add(PID, comm)
    procs.add(12, b"sh")
    (procs.root / "self").mkdir()
    (procs.root / "1x").mkdir()
    assert guests.find(procs.root) == ([PID] if is_one else [])


def test_by_what_it_has_open(procs: Procs) -> None:
    procs.add(PID, b"some-vmm", opened=[Path("/dev/kvm")])
    procs.add(PID + 1, b"other", opened=[Path("/dev/kvm-not")])
    assert guests.find(procs.root) == [PID]


@pytest.mark.parametrize(
    "words",
    [
        ("-drive", "file={},if=none,format=raw"),
        ("-drive", "if=none,file.filename={}"),
        ("-blockdev", "driver=file,filename={}"),
        ("-blockdev", '{{"driver":"raw","file":{{"driver":"file","filename":"{}"}}}}'),
        ("-hda", "{}"),
        ("--disk", "path={},readonly=off"),
    ],
    ids=" ".join,
)
def test_files_that_the_command_line_names_are_images(procs: Procs, words: tuple[str, str]) -> None:
    image, other = procs.file("web.img", bytes(512)), procs.file("log")
    found = procs.read(words[0], words[1].format(image), opened=[other, image, image])
    assert found.images == (guests.Image(str(image), image.stat().st_ino, None, "raw"),)


@pytest.mark.parametrize(
    ("words", "aio"),
    [
        (("-drive", "file={},aio=native,cache=none"), "native"),
        (("-blockdev", '{{"driver":"raw","file":{{"driver":"file","aio":"io_uring","filename":"{}"}}}}'), "io_uring"),
        (("-blockdev", '{{"driver":"file","aio":["native"],"filename":"{}"}}'), ""),
        (("-hda", "{}"), ""),
    ],
)
def test_how_a_file_is_read(procs: Procs, words: tuple[str, str], aio: str) -> None:
    image = procs.file("web.img")
    assert [one.aio for one in procs.read(words[0], words[1].format(image), opened=[image]).images] == [aio]


def test_a_comma_in_a_name_is_written_twice(procs: Procs) -> None:
    image = procs.file("a,b.img")
    found = procs.read("-drive", f"file={str(image).replace(',', ',,')},cache=none", opened=[image])
    assert [one.path for one in found.images] == [str(image)]


def test_a_name_with_some_of_its_folders(procs: Procs) -> None:
    image = procs.file("web.img")
    other = procs.file("a.img")
    found = procs.read("-drive", "file=files/web.img", "-hda", "proc/a.img", opened=[image, other])
    assert [one.path for one in found.images] == [str(image)]


def test_names_and_files_by_the_thousand_take_no_time_each(procs: Procs) -> None:
    """Whoever is called like a hypervisor chooses both. Each of them with each would be ten seconds and more."""
    words = [word for number in range(200_000) for word in ("-sd", f"{number:x}")]
    files = [procs.file("log")] * 2000
    before = time.process_time()
    assert not procs.read(*words, opened=files).images
    assert time.process_time() - before < 5


def test_a_name_without_a_folder(procs: Procs) -> None:
    image, other = procs.file("web.img"), procs.file("new-web.img")
    found = procs.read("-drive", "file=web.img", opened=[image, other])
    assert [one.path for one in found.images] == [str(image)]


@pytest.mark.parametrize(
    ("first", "name"),
    [(b"QFI\xfb\0\0\0\3", "qcow2"), (b"KDMV", "vmdk"), (b"vhdxfile", "vhdx"), (b"", "raw"), (b"QFI", "raw")],
)
def test_formats_by_their_first_bytes(procs: Procs, first: bytes, name: str) -> None:
    image = procs.file("image", first)
    assert procs.read("-hda", str(image), opened=[image]).images[0].format == name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("-name", "guest=web,debug-threads=on"), "web"),
        (("-name", "web"), "web"),
        (("-name", "guest=a,,b"), "a,b"),
        (("--id", "vm-1"), "vm-1"),
        (("-name",), "qemu-system-x86"),
        ((), "qemu-system-x86"),
        (("-name", "\udcff\x1b[2J"), "\udcff\x1b[2J"),
    ],
)
def test_names_of_guests(procs: Procs, words: tuple[str, ...], name: str) -> None:
    assert procs.read(*words).name == name


def test_a_process_that_is_gone_has_nothing(procs: Procs) -> None:
    assert guests.read(PID, procs.root) == guests.Guest(PID, "", ())


def test_neither_descriptors_nor_a_command_line_are_without_end(procs: Procs, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [procs.file(f"{number}.img") for number in range(8)]
    names = [word for image in images for word in ("-hda", str(image))]
    monkeypatch.setattr(guests, "_MOST", 5)
    assert len(procs.read(*names, opened=images).images) == 5
    monkeypatch.setattr(guests, "_LONGEST", len(b"\0".join(map(os.fsencode, ["qemu", *names[:6]]))))
    assert len(guests.read(PID, procs.root).images) == 3


@pytest.mark.parametrize(
    "value",
    ["{", "[" * 100_000, '{"filename":7}', json.dumps({"file": None}), "{" + '"a":{' * 50_000, "", ",,,", "file="],
    ids=lambda value: str(value)[:20],
)
def test_nonsense_names_nothing(procs: Procs, value: str) -> None:
    image = procs.file("web.img")
    assert procs.read("-blockdev", value, opened=[image]).images == ()


def test_json_is_followed_so_deep_and_no_deeper(procs: Procs) -> None:
    image = procs.file("web.img")
    reported = f'{{"filename":"{image}"}}'
    for _ in range(40):
        reported = f'{{"backing":{reported}}}'
    assert procs.read("-blockdev", reported, opened=[image]).images == ()
