# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --level request`: requests from Q to C, with their owners and the tasks that sleep for them.

Operations are not followed: if only system calls reveal them, every system call of the machine pays for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader
from wptrace.engine.hooks import Hook, Way
from wptrace.errors import UsageError
from wptrace.flows.io.hooks import of_requests
from wptrace.flows.io.kinds import OWNED_HIT, OWNED_OPERATION, REQUEST, REQUEST_KINDS
from wptrace.flows.io.options import Options
from wptrace.flows.io.parts.part import Part
from wptrace.flows.io.path import PathFlow
from wptrace.kernel.mounts import Place
from wptrace.model.diagnosis import Check
from wptrace.model.report import Start

_ONLY_REQUESTS = "operations and hits of the page cache are not seen at this level, nor the files of direct I/O"


class RequestFlow(PathFlow):
    level = "request"
    without_options = "io_path_requests"
    with_rows = with_recorder = PathFlow.object
    kinds = REQUEST_KINDS
    verdict_kinds = (REQUEST,)
    follows_operations = False
    hooks = of_requests()

    def __init__(self, options: Options, why: str = "") -> None:
        """`why` is the reason if the user did not ask for this level."""
        super().__init__(options)
        self._why = [f"requests alone: {why}"] if why else []
        if self.is_remote:
            raise UsageError(
                f"{self._devices.remotes[0].name} is served by no block device: there are no requests to follow",
                hint="--level path",
            )
        self.kinds = tuple(kind for kind in self.kinds if kind.name not in (OWNED_OPERATION, OWNED_HIT))

    @staticmethod
    def configure(obj: BpfObject) -> None:
        PathFlow.configure(obj)
        # A constant of its own object.
        if "requests_alone" in obj.rodata:
            obj.rodata.requests_alone = True

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        return []

    @classmethod
    def hooks_here(cls) -> tuple[Hook, ...]:
        return cls.hooks

    def _parts_of_files(self, places: Sequence[Place]) -> list[Part]:
        return []

    def _offered(self) -> tuple[Hook, ...]:
        return self.hooks

    def start(self, reader: Reader) -> Start:
        found = super().start(reader)
        return found._replace(notes=[*self._why, *found.notes, _ONLY_REQUESTS])

    def plan(self) -> list[str]:
        return [*self._why, *super().plan()]
