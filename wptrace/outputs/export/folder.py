# SPDX-License-Identifier: Apache-2.0
"""A folder that is complete at the end, or does not exist: for formats of several files."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from wptrace.errors import UsageError, WptraceError
from wptrace.outputs.export.file import ExportFile

_MODE = 0o700


class ExportFolder(ExportFile):
    """Written beside its place under another name, as a file is; one that holds something is never replaced."""

    _made = -1
    """The folder with the other name, once there is one."""

    def _check(self) -> None:
        try:
            there = self._opened(self.path.name)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise UsageError(f"{self.path} is not a folder: this export needs a new or empty one") from None
        except OSError as error:
            raise self._failed(error) from None
        try:
            with os.scandir(there) as found:
                if any(found):
                    raise UsageError(f"{self.path} is not empty: this export needs a new or empty folder")
        except OSError as error:
            raise self._failed(error) from None
        finally:
            os.close(there)

    def _opened(self, name: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=self._folder)

    def folder(self) -> Path:
        """Begin to fill it; only `commit` makes it appear. Whatever gets its name, the path leads to what was made."""
        try:
            os.mkdir(self._temporary, _MODE, dir_fd=self._folder)
            self._made = self._opened(self._temporary)
        except OSError as error:
            raise self._failed(error) from None
        if os.fstat(self._made).st_uid != os.geteuid():
            raise WptraceError(f"{self.path} cannot be written: another user has moved what was begun")
        return Path(f"/proc/self/fd/{self._made}")

    def commit(self) -> None:
        try:
            self._move()
        except OSError as error:
            raise self._failed(error) from None
        self._leave()

    def discard(self) -> None:
        self.discarded = True
        # Only a folder that this user has made is removed: after a commit there is none.
        with suppress(OSError):
            if self._folder >= 0 and self._made >= 0:
                found = os.stat(self._temporary, dir_fd=self._folder, follow_symlinks=False)
                if os.path.samestat(found, os.fstat(self._made)):
                    shutil.rmtree(f"/proc/self/fd/{self._folder}/{self._temporary}", ignore_errors=True)
        self._leave()

    def _leave(self) -> None:
        if self._made >= 0:
            os.close(self._made)
            self._made = -1
        super()._leave()
