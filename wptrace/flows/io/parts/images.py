# SPDX-License-Identifier: Apache-2.0
"""Filter of a hypervisor's operations and requests by the disk images of its guest."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from wptrace.capture.spec import signed, text
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.hooks import OPERATION
from wptrace.flows.io.operations import AIO, URING, unseen_interfaces
from wptrace.flows.io.parts.part import Part
from wptrace.kernel.guests import Guest, Image
from wptrace.model.report import Event

_SECTOR = 512
_INTERFACES = {"native": AIO, "io_uring": URING}
"""Interfaces by QEMU's names."""
_NUMBER = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


class Images(Part):
    def __init__(self, guest: Guest) -> None:
        super().__init__()
        self._guest = guest
        self._files = {image.inode: image for image in guest.images}
        self._devices = {_maj_min(image): image for image in guest.images if image.device is not None}

    @property
    def chosen(self) -> dict[str, Any]:
        images = [
            {"path": image.path, "format": image.format, "inode": image.inode, "maj_min": _maj_min(image)}
            for image in self._guest.images
        ]
        return {"guest": self._guest.name, "images": images}

    def notes(self, loaded: Loaded) -> list[str]:
        return self.notes_where(unseen_interfaces(loaded.way(OPERATION)))

    def notes_where(self, unseen: Collection[str]) -> list[str]:
        """`unseen` are interfaces whose operations are only seen as requests."""
        guest = self._guest
        if not guest.images:
            return [f"process {guest.pid} has no image of a disk that is known: its operations are shown without one"]
        found = [f"{guest.name}[{guest.pid}] has {', '.join(image.path for image in guest.images)}"]
        found += [
            f"{image.path} is of format {image.format or 'unknown'}: offsets in it are not those of the guest's disk"
            for image in guest.images
            if image.format != "raw"
        ]
        return found + [
            f"{image.path} cannot be joined: it is a file with aio={image.aio}, whose operations are not seen here;"
            " aio=threads, or a block device, can be"
            for image in guest.images
            if _INTERFACES.get(image.aio) in unseen
        ]

    def events(self, found: Sequence[Event]) -> Sequence[Event]:
        return list(self.of(found))

    def of(self, events: Iterable[Event]) -> Iterator[Event]:
        """Events on the images, with their place. Other files of the process are not disks of the guest."""
        for event in events:
            place = self._place(event.fields)
            if place is None:
                continue
            image, offset = place
            image_fields = {"guest": self._guest.name, "path": image.path, "format": image.format, "offset": offset}
            yield event._replace(fields={**event.fields, "image": image_fields})

    def _place(self, fields: Any) -> tuple[Image, int | None] | None:
        """An operation is on a file; a request that nobody waits for is on a block device."""
        if "length" in fields:
            image = self._files.get(fields["inode"])
            # Another file system may have the same number.
            if image is None or not _is_named(image.path, fields["path"]):
                return None
            return image, fields["offset"]
        image = self._devices.get(fields.get("maj_min", ""))
        return None if image is None else (image, fields["sector"] * _SECTOR)


def of_filters(filters: Mapping[str, Any]) -> Images:
    """The images that a trace lists. It is not trusted: raises ValueError, TypeError or LookupError."""
    return Images(Guest(0, text(filters["guest"]), tuple(map(_image, filters["images"]))))


def _image(found: Mapping[str, Any]) -> Image:
    number = _NUMBER.fullmatch(text(found["maj_min"]))
    device = None if number is None else (int(number[1]), int(number[2]))
    return Image(text(found["path"]), signed(found["inode"]), device, text(found["format"]))


def _maj_min(image: Image) -> str:
    return "" if image.device is None else "{}:{}".format(*image.device)


def _is_named(path: str, known: str) -> bool:
    """Compare paths: the kernel reports a path only as far as there is room, or not at all."""
    front, cut, end = known.partition(".../")
    return not known or (path.endswith(end) if cut and not front else path == known)
