# SPDX-License-Identifier: Apache-2.0
"""Exports to files: each format is a module here with a function `create`, found by its name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from wptrace.model.report import Output
from wptrace.outputs.export.file import ExportFile
from wptrace.outputs.registry import Wanted

# Modules that several formats share.
_SHARED = {"extra", "file", "folder", "lanes", "over_time", "sums"}
FORMATS = tuple(sorted({one.stem for one in Path(__file__).parent.glob("[a-z]*.py")} - _SHARED))
"""Their names."""


class _Format(Protocol):
    """A module of a format. One that makes a folder has a `TARGET`."""

    def create(self, file: ExportFile, view: str, wanted: Wanted) -> Output: ...


def make(name: str, path: Path, view: str, wanted: Wanted) -> Output:
    """Make the output. A file that cannot be created, or a missing library, is reported before anything is attached."""
    found: _Format = importlib.import_module(f"{__name__}.{name}")
    target: type[ExportFile] = getattr(found, "TARGET", ExportFile)
    return found.create(target(path), view, wanted)
