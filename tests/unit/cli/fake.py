# SPDX-License-Identifier: Apache-2.0
"""The command with flows that count by themselves; everything around the kernel is real."""

from __future__ import annotations

import os
import sys
import time

from tests.unit.outputs.samples import KIND, OVERHEAD, cell, group, request, sized, start
from wptrace.bpf.ring import Reader
from wptrace.cli import main
from wptrace.engine.flow import Flow
from wptrace.flows.io import block as io_block
from wptrace.flows.io import options as io_options
from wptrace.flows.io import path as io_path
from wptrace.kernel import privileges
from wptrace.model.book import Book
from wptrace.model.kind import REQUESTS
from wptrace.model.report import Event, Snapshot, Start


class FakeFlow(Flow):
    name = "io"
    kinds = verdict_kinds = (KIND,)
    hooks = ()
    is_remote = False
    filters = io_path.PathFlow.filters

    def __init__(self, options: io_block.Options | io_options.Options) -> None:
        self.options = options
        self.reads = 0
        self.reported = options.slow_ns is None

    def start(self, reader: Reader) -> Start:
        return start(dev=self.options.devices)

    def snapshot(self) -> Snapshot:
        self.reads += 1
        found = group(os.environ.get("FAKE_DEVICE", "sda"))
        books = {REQUESTS: Book.read(self.reads, self.reads, {}, {})}
        cells = {found: cell([1000] * self.reads, [3000] * self.reads)}
        return Snapshot(time.monotonic_ns(), books, cells, sized({found: 4096 * self.reads}), OVERHEAD)

    @property
    def missing(self) -> dict[str, str]:
        return {}

    def events(self) -> list[Event]:
        if "FAKE_FAULT" in os.environ and self.reads > 2:
            raise RuntimeError("a fault of the command")
        if self.reported:
            return []
        self.reported = True
        return [request()]

    def stop(self) -> None:
        if "FAKE_SLOW_END" in os.environ:
            time.sleep(100)

    def close(self) -> None:
        if "FAKE_TELL_CLOSE" in os.environ:
            print("closed", file=sys.stderr)


if __name__ == "__main__":
    io_block.BlockFlow = io_path.PathFlow = FakeFlow  # type: ignore[assignment,misc]
    privileges.effective = lambda: {"CAP_SYS_ADMIN"}  # type: ignore[assignment,misc]
    main.run()
