# SPDX-License-Identifier: Apache-2.0
"""Whole files beside what is shown: each format is a module here with a function `create`, found by its name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from wptrace.model.report import Output
from wptrace.outputs.export.file import ExportFile
from wptrace.outputs.registry import Wanted

FORMATS = {
    "html": "html",
    "perfetto": "perfetto",
    "speedscope": "speedscope",
    "parquet": "parquet",
    "otf2": "otf2",
    "csv": "csv_lines",
    "json": "json_lines",
}
"""Names of formats, with their modules."""


class _Format(Protocol):
    """One that makes a folder has a `TARGET`."""

    def create(self, file: ExportFile, view: str, wanted: Wanted) -> Output: ...


def make(name: str, path: Path, view: str, wanted: Wanted) -> Output:
    """That the file cannot be made, or that a library is missing, is found out before anything is attached."""
    found: _Format = importlib.import_module(f"wptrace.outputs.export.{FORMATS[name]}")
    target: type[ExportFile] = getattr(found, "TARGET", ExportFile)
    return found.create(target(path), view, wanted)
