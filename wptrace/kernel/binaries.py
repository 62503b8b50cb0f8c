# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries to probe: what is read of them, and where their functions lie in the file.

A file may be anybody's: nothing in it is trusted (wptrace/kernel/elf.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wptrace.errors import UsageError
from wptrace.kernel import elf, files

_OBJECT, _FUNCTION, _OF_THREAD, _CHOSEN_LATE = 1, 2, 6, 10  # STT_OBJECT, STT_FUNC, STT_TLS, STT_GNU_IFUNC
_WRONG = {
    _CHOSEN_LATE: "{name} of {path} has several versions, one of which the program chooses (IFUNC)",
    _OF_THREAD: "each thread has a variable {name} of its own in {path}",
}
_PROGRAM, _LIBRARY = 2, 3  # ET_EXEC, ET_DYN
_MACHINES = {"x86_64": 62, "aarch64": 183}
_MAGIC = b"\x7fELF"
_OF_GO = b".go.buildinfo"
_LARGEST_NAMES = 1 << 20
_LONGEST_NAME = 256
_MOST_NAMES = 100_000


class Identity(NamedTuple):
    """A file, and whether it has changed since."""

    device: int
    inode: int
    size: int
    changed_ns: int


class Spot(NamedTuple):
    """An instruction in a file."""

    path: str
    file: Identity
    offset: int
    counter: int = 0
    """The place in the file of a number that is incremented while somebody watches; 0: there is none."""


class Variable(NamedTuple):
    """A global variable."""

    distance: int
    """From the begin of the code of a process."""
    size: int


def look_up(name: str) -> str:
    """The path of a program by its name, as a shell finds it; a path stays as it is."""
    if "/" in name:
        if not name.startswith("/"):
            raise UsageError(f"{name} is neither an absolute path nor a plain name")
        return name
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)  # noqa: PTH118 - the folder may be anything
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    raise UsageError(f"there is no program {name} in PATH")


class Binary:
    """An open file of code for this machine."""

    def __init__(self, path: str, fd: int, found: os.stat_result, machine: str) -> None:
        self.path = path
        self.fd = fd
        self.identity = _identity(found)
        head = elf.header(fd)
        if head is None:
            is_elf = os.pread(fd, len(_MAGIC), 0) == _MAGIC
            raise UsageError(f"{path} is not {'a 64-bit program' if is_elf else 'an ELF file'}")
        if head.machine != _MACHINES.get(machine):
            names = {number: name for name, number in _MACHINES.items()}
            other = names.get(head.machine, f"machine {head.machine}")
            raise UsageError(f"{path} is code for {other}, not for {machine}")
        if head.type not in (_PROGRAM, _LIBRARY):
            raise UsageError(f"{path} is neither a program nor a library")
        self.head = head

    def sections(self, name: bytes) -> list[elf.Section]:
        """Those of this name."""
        known = elf.sections(self.fd, self.head)
        if self.head.names >= len(known):
            return []
        names = elf.content(self.fd, known[self.head.names], _LARGEST_NAMES)
        return [one for one in known if names.startswith(name + b"\0", one.name)]

    def returning(self, name: str) -> Spot:
        """The entry of a function whose return can be probed."""
        # A probe changes the return address on the stack, which Go moves and then finds to be wrong.
        if self.sections(_OF_GO):
            raise UsageError(f"{self.path} is written in Go, and would crash with a probe at a return")
        return self.function(name)

    def function(self, name: str) -> Spot:
        """The entry of a function; raises UsageError where it has none that can be probed."""
        address, _ = self._only(elf.symbols(self.fd), "function", name, _FUNCTION, _CHOSEN_LATE)
        return self.spot(address, name)

    def variable(self, name: str) -> Variable:
        """Raises UsageError where it has none, or one that each thread has."""
        found = elf.symbols(self.fd)
        code = found.code if found else []
        address, size = self._only(found if code else None, "variable", name, _OBJECT, _OF_THREAD)
        # As the kernel finds `start_code`, whatever segment that is in.
        begin = min(one.address for one in code)
        return Variable(address - begin & (1 << 64) - 1, size)

    def _only(self, found: elf.Symbols | None, what: str, name: str, kind: int, wrong: int) -> tuple[int, int]:
        """The place and the size of what alone has this name."""
        if found is None:
            raise UnknownNameError(f"{self.path} has no names of {what}s: it is stripped")
        wanted = name.encode() + b"\0"
        places = {}
        for symbol in found.table:
            if symbol.section and symbol.type in (kind, wrong) and found.names.startswith(wanted, symbol.name):
                if symbol.type == wrong:
                    raise UsageError(_WRONG[wrong].format(name=name, path=self.path))
                places[symbol.value] = symbol.size
        if not places:
            why = "" if found.full else ": it is stripped of all names but those that others use"
            raise UnknownNameError(f"{self.path} has no {what} {name}{why}")
        if len(places) > 1:
            raise UsageError(f"{self.path} has {len(places)} {what}s {name}")
        return places.popitem()

    def spot(self, address: int, name: str, counter: int = 0) -> Spot:
        """The place of an address of code; `counter` is an address of data."""
        segments = elf.segments(self.fd, self.head)
        offset = self._place(segments, address, executed=True)
        counted = self._place(segments, counter, executed=False) if counter else 0
        if offset is None or counted is None:
            raise UsageError(f"{name} of {self.path} lies outside of what is loaded of it")
        return Spot(self.path, self.identity, offset, counted)

    def _place(self, segments: list[elf.Segment], address: int, executed: bool) -> int | None:
        for one in segments:
            if one.holds(address) and one.executed >= executed and 0 < one.place(address) < self.identity.size:
                return one.place(address)
        return None

    def functions(self) -> Iterator[str]:
        """The names of its functions, for suggestions."""
        found = elf.symbols(self.fd)
        count = 0
        for symbol in () if found is None else found.table:
            if found is not None and symbol.section and symbol.type == _FUNCTION and count < _MOST_NAMES:
                count += 1
                name = found.names[symbol.name : symbol.name + _LONGEST_NAME].split(b"\0", 1)[0]
                yield name.decode("ascii", "replace")


class UnknownNameError(UsageError):
    """Others may be alike."""


@contextmanager
def opened(name: str, machine: str) -> Iterator[Binary]:
    path = look_up(name)
    fd, found = _open(path)
    try:
        yield Binary(path, fd, found, machine)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def reopened(spot: Spot) -> int:
    """A descriptor of the file that a spot was found in, which whoever owns the path may have replaced since."""
    fd, found = _open(spot.path)
    if _identity(found) != spot.file:
        os.close(fd)
        raise UsageError(f"{spot.path} has changed since it was read: start again")
    return fd


def _open(path: str) -> tuple[int, os.stat_result]:
    try:
        return files.open_to_read(path, files.is_regular)
    except files.OtherKindError:
        raise UsageError(f"{path} is not a regular file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _identity(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
