# SPDX-License-Identifier: Apache-2.0
"""Stacks for speedscope, by time, count and bytes."""

from __future__ import annotations

from typing import Any

from wptrace import __version__
from wptrace.errors import UsageError
from wptrace.model.report import Report, Start
from wptrace.outputs.export.file import Export, ExportFile
from wptrace.outputs.export.sums import stacks
from wptrace.outputs.json_line import encoded
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class SpeedscopeExport(Export):
    def start(self, start: Start) -> None:
        self._kernel = start.kernel

    def finish(self, report: Report) -> None:
        found = stacks(report)
        frames: dict[str, int] = {}
        samples = [[frames.setdefault(name, len(frames)) for name in one.frames] for one in found]
        lost = list(header.losses(report))
        self._file.write(
            encoded(
                {
                    "$schema": _SCHEMA,
                    "exporter": f"wptrace {__version__}",
                    "name": ", ".join((f"I/O by stack, Linux {self._kernel}", *lost)),
                    "activeProfileIndex": 0,
                    "shared": {"frames": [{"name": name} for name in frames]},
                    "profiles": [
                        _profile("time", "nanoseconds", samples, [one.ns for one in found]),
                        _profile("I/Os", "none", samples, [one.ios for one in found]),
                        _profile("bytes", "bytes", samples, [one.bytes for one in found]),
                    ],
                }
            ).encode()
        )


def _profile(name: str, unit: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    whole = {"type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": sum(weights)}
    return {**whole, "samples": samples, "weights": weights}


def create(file: ExportFile, view: str, wanted: Wanted) -> SpeedscopeExport:
    if view != "stacks":
        raise UsageError("speedscope files hold stacks: use wptrace stacks")
    return SpeedscopeExport(file)
