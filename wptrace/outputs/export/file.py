# SPDX-License-Identifier: Apache-2.0
"""A file that is complete at the end, or does not exist; only its owner may read it.

Its folder may be in one of another user, who could put a link in its place at any moment: it is opened once, and
everything happens in what was opened.
"""

from __future__ import annotations

import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from wptrace.errors import UsageError, WptraceError
from wptrace.model.report import QuietOutput, Report

_MODE = 0o600


class ExportFile:
    """Written beside its place under another name, and moved there when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.name:
            raise UsageError(f"{path} does not name a file")
        # Who may write to the folder cannot take a name first that he cannot predict. Any name leaves room for it.
        self._temporary = f".wptrace-{os.urandom(8).hex()}"
        self._file: BinaryIO | None = None
        self.discarded = False
        unusable = WptraceError(f"{path} cannot be written: its folder does not exist or is not writable")
        try:
            self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise unusable from None
        try:
            self._check()
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=self._folder):
                raise unusable
        except WptraceError:
            self._leave()
            raise

    def _leave(self) -> None:
        """Close the folder."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _check(self) -> None:
        """Check what is there already."""
        try:
            found = os.stat(self.path.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(error) from None
        if not stat.S_ISREG(found.st_mode):
            what = "a link" if stat.S_ISLNK(found.st_mode) else "not a file"
            raise UsageError(f"{self.path} is {what}: an export is only written to a regular file")
        if found.st_uid != os.geteuid():
            raise UsageError(f"{self.path} belongs to another user: an export is not written to files of others")

    def _failed(self, error: OSError) -> WptraceError:
        return WptraceError(f"{self.path} cannot be written: {error.strerror or error}")

    def open(self) -> BinaryIO:
        """Start to write a temporary file; `commit` renames it."""
        if self._file is None:
            # Somebody else may have put a file under this name: no link is followed, nothing is overwritten.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._file = os.fdopen(os.open(self._temporary, flags, _MODE, dir_fd=self._folder), "wb")
            except OSError as error:
                raise self._failed(error) from None
        return self._file

    def write(self, data: bytes) -> None:
        try:
            self.open().write(data)
        except OSError as error:
            raise self._failed(error) from None

    def commit(self) -> None:
        file = self.open()
        try:
            # Some file systems say only now that there is no room for it.
            file.close()
            self._move()
        except OSError as error:
            raise self._failed(error) from None
        self._file = None
        self._leave()

    def _move(self) -> None:
        os.replace(self._temporary, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def discard(self) -> None:
        """Remove what was not committed."""
        self.discarded = True
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder)
            # The disk may have no room for the rest of the buffer.
            with suppress(OSError):
                file.close()
        self._leave()


class Sink(io.RawIOBase):
    """The file for those who write into one of Python's; they must not close it."""

    def __init__(self, file: ExportFile) -> None:
        self._file = file
        self._place = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write, unless the file was discarded."""
        part = bytes(data)
        if not self._file.discarded:
            self._file.write(part)
        self._place += len(part)
        return len(part)

    def tell(self) -> int:
        return self._place


def text(file: ExportFile) -> TextIO:
    """The file for those who write text."""
    sink = cast(BinaryIO, Sink(file))
    return io.TextIOWrapper(sink, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)


class Export(QuietOutput):
    """An output that makes a file. A subclass takes what it is given, and writes the rest in `finish`."""

    def __init__(self, file: ExportFile) -> None:
        self._file = file

    def summary(self, report: Report) -> None:
        self.finish(report)
        self._file.commit()

    def finish(self, report: Report) -> None:
        """Write the rest."""
        raise NotImplementedError

    def close(self) -> None:
        """Without a summary something went wrong."""
        self._file.discard()
