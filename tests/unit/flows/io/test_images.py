# SPDX-License-Identifier: Apache-2.0
"""Operations and requests of a hypervisor for the disks of its guest."""

from __future__ import annotations

from typing import Any

import pytest

from wptrace.flows.io.kinds import OPERATION, REQUEST
from wptrace.flows.io.parts import images
from wptrace.flows.io.parts.images import Images
from wptrace.kernel.guests import Guest, Image
from wptrace.model.report import Event

FILE, DISK = Image("/srv/a.img", 11, None, "raw"), Image("/dev/sdb", 12, (8, 16), "raw")
COW = Image("/srv/b.qcow2", 13, None, "qcow2")
GUEST = Guest(7, "web", (FILE, DISK, COW))


def operation(**fields: Any) -> Event:
    reported = {"inode": 11, "path": "/srv/a.img", "offset": 4096, "length": 512, **fields}
    return Event(OPERATION.group("sda", "read"), 9, 5, {"fs": 5}, reported)


def request(**fields: Any) -> Event:
    return Event(REQUEST.group("sdb", "read"), 9, 5, {"queue": 5}, {"maj_min": "8:16", "sector": 8, **fields})


def places(*events: Event) -> list[tuple[str, int | None]]:
    return [(one.fields["image"]["path"], one.fields["image"]["offset"]) for one in Images(GUEST).of(events)]


def test_operations_by_their_file_and_requests_by_their_disk() -> None:
    reported = places(operation(), request(), operation(inode=12, path="/dev/sdb", offset=None))
    assert reported == [("/srv/a.img", 4096), ("/dev/sdb", 4096), ("/dev/sdb", None)]


@pytest.mark.parametrize(
    "other",
    [operation(inode=99), operation(path="/mnt/a.img"), request(maj_min="8:17"), request(maj_min="")],
    ids=["another file", "the same number elsewhere", "another disk", "no disk"],
)
def test_what_is_of_no_disk_is_left_out(other: Event) -> None:
    assert places(other) == []


@pytest.mark.parametrize(
    ("path", "is_it"), [("", True), (".../a.img", True), (".../b.img", False), ("/x/.../a.img", False)]
)
def test_names_that_the_kernel_cut(path: str, is_it: bool) -> None:
    assert bool(places(operation(path=path))) == is_it


def test_a_capture_has_all_that_it_takes() -> None:
    again = images.of_filters(Images(GUEST).chosen)
    events = [operation(), request(), operation(inode=13, path="/srv/b.qcow2")]
    assert list(again.of(events)) == list(Images(GUEST).of(events))


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"guest": "a"},
        {"guest": 1, "images": []},
        {"guest": "a", "images": 5},
        {"guest": "a", "images": ["x"]},
        {"guest": "a", "images": [{"path": "/a", "format": "raw", "inode": "1", "maj_min": ""}]},
        {"guest": "a", "images": [{"path": 5, "format": "raw", "inode": 1, "maj_min": ""}]},
    ],
)
def test_what_no_trace_says_is_refused(filters: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        images.of_filters(filters)


def test_other_formats_are_said() -> None:
    assert any("/srv/b.qcow2 is of format qcow2" in note for note in Images(GUEST).notes_where([]))
    native = Images(Guest(7, "web", (FILE._replace(aio="native"), COW._replace(aio="threads"))))
    assert not any("cannot be joined" in note for note in native.notes_where(["io_uring"]))
    assert [note.partition(":")[0] for note in native.notes_where(["AIO"])][-1] == "/srv/a.img cannot be joined"
    assert "no image of a disk" in Images(Guest(7, "web", ())).notes_where([])[0]
