# SPDX-License-Identifier: Apache-2.0
"""A folder that is complete at the end, or does not exist: for formats of several files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from wptrace.errors import UsageError
from wptrace.outputs.export.file import ExportFile

_MODE = 0o700


class ExportFolder(ExportFile):
    """Written beside its place under another name, as a file is; one that holds something is never replaced."""

    def _check(self) -> None:
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise UsageError(f"{self.path} is not a folder: this export needs a new or empty one")
        try:
            if self.path.is_dir() and any(self.path.iterdir()):
                raise UsageError(f"{self.path} is not empty: this export needs a new or empty folder")
        except OSError as error:
            raise self._failed(error) from None

    def folder(self) -> Path:
        """Begin to fill it; only `commit` makes it appear."""
        try:
            self._temporary.mkdir(_MODE)
        except OSError as error:
            raise self._failed(error) from None
        return self._temporary

    def commit(self) -> None:
        try:
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._failed(error) from None

    def discard(self) -> None:
        self.discarded = True
        # Only a folder that this user has made is removed: after a commit there is none.
        if (
            self._temporary.is_dir()
            and not self._temporary.is_symlink()
            and self._temporary.stat().st_uid == os.geteuid()
        ):
            shutil.rmtree(self._temporary, ignore_errors=True)
