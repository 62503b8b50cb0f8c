# SPDX-License-Identifier: Apache-2.0
"""Files that root writes what everybody does into: nobody else's, under no other name, and by one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Callable

from wptrace.errors import UsageError, WptraceError

_OTHERS_MAY_WRITE = 0o022


class OtherKindError(OSError):
    """The file exists, but is of another kind."""


def is_regular(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode)


def first_line(path: Path) -> str:
    """Return the first line of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""


def open_to_write(path: Path, what: str, flags: int = 0, mode: int = 0o600) -> int:
    """A descriptor of a file, a pipe or a device. Nothing is cut yet.

    Who may write to the folder could have put there a link, another name of a file of ours, or a pipe that he reads.
    What it is is looked at before it is opened, since a pipe may wait for its reader.
    """
    flags |= os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
    try:
        with suppress(FileNotFoundError):
            return _reopened(path, what, flags)
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise WptraceError(f"{path} cannot be written: {error.strerror}") from None
    _lock(path, fd)
    return fd


def open_to_read(
    path: Path | str, is_wanted: Callable[[os.stat_result], bool], flags: int = 0
) -> tuple[int, os.stat_result]:
    """A descriptor of a file, and what it is; OtherKindError where it is not one that is wanted.

    Whoever owns the path may put another thing there at any moment, such as a pipe without a writer or a file with a
    lease, which would be waited for. So it is looked at first, and what was looked at is opened.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        found = os.fstat(place)
        if not is_wanted(found):
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            raise OtherKindError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        return fd, found
    finally:
        os.close(place)


def _reopened(path: Path, what: str, flags: int) -> int:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if _trusted_link(path) else os.O_NOFOLLOW))
    try:
        found = os.fstat(place)
        _check(path, found, what)
        fd = os.open(f"/proc/self/fd/{place}", flags)
    finally:
        os.close(place)
    if stat.S_ISREG(found.st_mode):
        _lock(path, fd)
    return fd


def _trusted_link(path: Path) -> bool:
    """Whether root or this user made the link below /dev, in a folder of theirs: /dev/stdout, or a name by udev."""
    with suppress(OSError):
        link, folder = path.lstat(), path.parent.stat()
        ours = {link.st_uid, folder.st_uid} <= {0, os.geteuid()}
        inside = path.parent.is_relative_to("/dev") and not folder.st_mode & _OTHERS_MAY_WRITE
        return stat.S_ISLNK(link.st_mode) and ours and inside
    return False


def _check(path: Path, found: os.stat_result, what: str) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFLNK:
        raise UsageError(f"{path} is a link, and {what} is not written through links")
    if kind in (stat.S_IFCHR, stat.S_IFBLK) or _is_standard(found):
        return
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user, and {what} is not written to files of others")
    if kind == stat.S_IFREG and found.st_nlink > 1:
        raise UsageError(
            f"{path} has {found.st_nlink} hard links, and {what} is not written to files with several names"
        )


def _lock(path: Path, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(f"{path} is being written by another command: name another file") from None
    except OSError:
        # Some file systems have no locks.
        return


def _is_standard(found: os.stat_result) -> bool:
    """Whoever started us has given it to us: /dev/stdout is his pipe."""
    for number in range(3):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), found):
                return True
    return False


def require_own_folder(folder: Path, what: str) -> None:
    """Require that no other user can write a folder in which files get names that others can predict."""
    try:
        found = folder.lstat()
        # systemd has one from /var/lib to the folder of a service with a user of its own.
        if stat.S_ISLNK(found.st_mode) and _is_ours(found) and _is_ours(folder.parent.stat()):
            found = folder.stat()
    except OSError as error:
        hint = f"mkdir -p -m 700 {folder}" if isinstance(error, FileNotFoundError) else None
        raise UsageError(f"{folder}, where {what} go, cannot be used: {error.strerror}", hint) from None
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{folder}, where {what} go, is not a folder")
    if not _is_ours(found):
        raise UsageError(f"{folder}, where {what} go, is writable by others: name one that only you can write to")


def _is_ours(found: os.stat_result) -> bool:
    """Whether it belongs to this user or to root. The mode of a link says nothing."""
    writable = not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS_MAY_WRITE
    return found.st_uid in (0, os.geteuid()) and not writable
