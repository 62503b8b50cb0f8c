# SPDX-License-Identifier: Apache-2.0
"""Rows by statement of a database (bpf_src/block/path/statement.h): `--by statement`.

Programs distinguish texts by a hash. Texts that differ only in literals share a row here: several owners of the
programs have the same label.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from itertools import islice
from threading import Thread
from typing import Any

from wptrace.analysis import statements
from wptrace.bpf.object import BpfObject
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.kinds import STATEMENT_FIELDS, UNREAD
from wptrace.flows.io.options import STATEMENT
from wptrace.flows.io.part import Tracing
from wptrace.flows.io.parts.owners import Owners
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.privileges import require_reading
from wptrace.kernel.servers import PROGRAMS, VARIABLE, Program, Programs, map_texts
from wptrace.model.kind import NOBODY, OTHERS, Comm, Group

# How many texts of freed owners are remembered.
_TEXTS = 1 << 14

# For how long a trace waits for the memory of a server, which may be anybody's.
_PATIENCE_S = 1

_FACTOR, _ALL_BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Statements(Owners):
    fields = STATEMENT_FIELDS

    def __init__(self, how: str, top: int = 0, rows: int = 0) -> None:
        """`how` texts are shown (wptrace/analysis/statements.py)."""
        super().__init__(STATEMENT, CgroupNames(), top, rows)
        self._how = how
        self._found: list[Program] = []
        self._texts: OrderedDict[int, Any] = OrderedDict()
        """Labels by what records have, kept after their owner was evicted: pages that a statement dirtied are written
        back later."""
        self._sharing: Counter[Any] = Counter()
        """By label: how many owners have it; 0: those that had it were freed."""

    @property
    def chosen(self) -> dict[str, Any]:
        return {**super().chosen, "statement_text": self._how}

    def prepare(self, obj: BpfObject) -> None:
        require_reading("--by statement")
        super().prepare(obj)
        obj.maps["statement_texts"].max_entries = obj.length("owners")

    def start(self, tracing: Tracing) -> None:
        super().start(tracing)
        self._rows_of = self._obj.enum("statement_row")
        self._programs = Programs(self._obj.length("servers"))
        self._mapping: Thread | None = None
        self._look()

    def _look(self) -> None:
        """Register the executables of servers, so that the programs find them."""
        self._found = self._programs.look()
        usable = [one for one in self._found if one.variables]
        found = [{"inode": one.inode, "size": one.size, **one.variables} for one in usable]
        self._obj.bss.servers = [*found, *({} for _ in range(self._obj.length("servers") - len(found)))]
        if self._programs.processes and (self._mapping is None or not self._mapping.is_alive()):
            arguments = (self._programs.processes, self._obj.constants)
            self._mapping = Thread(target=map_texts, args=arguments, name="texts", daemon=True)
            self._mapping.start()
            self._mapping.join(_PATIENCE_S)

    def notes(self, loaded: Loaded) -> list[str]:
        if any(one.variables for one in self._found):
            return []
        if self._found:
            return [f"{one.path} has no variable {VARIABLE}: what it does has no statements" for one in self._found]
        return [f"no server of PostgreSQL runs (no process executes {_either(PROGRAMS)}): one that comes is followed"]

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        if obj.bss.unknown_server:
            obj.bss.unknown_server = 0
            self._look()
        super().refresh(obj, devices_changed)

    # --- Labels -----------------------------------------------------------------------------------------------------

    def _named(self, number: int, values: dict[str, Any]) -> Any:
        found = self._label(number, values)
        self._sharing[found] += 1
        return found

    def _label(self, number: int, values: dict[str, Any]) -> Any:
        row = self._rows_of[values["key.more"]]
        if row == "program":
            return Comm(self._comm(values))
        if row == "unread":
            return UNREAD
        found = self._text(number, values["key.id"], row == "title")
        word = self._word(values["key.id"], values["key.more"])
        if found is UNREAD:
            return self._texts.get(word, UNREAD)
        self._remember(word, found)
        return found

    def _word(self, hash_in_key: int, row: int) -> int:
        bits = self._obj.constants["STATEMENT_ROW_BITS"]
        return hash_in_key >> bits << bits | row

    def _remember(self, word: int, label: Any) -> None:
        self._texts[word] = label
        self._texts.move_to_end(word)
        if len(self._texts) > _TEXTS:
            self._texts.popitem(last=False)

    def _text(self, number: int, hash_in_key: int, is_title: bool) -> Any:
        memory = self._obj.maps["statement_texts"].raw(number - 1)
        size = self._obj.constants["STATEMENT_BYTES"]
        text = b"" if memory is None else bytes(memory).split(b"\0", 1)[0]
        # If it could not be read, or has changed meanwhile, the hash differs.
        if hash_of(text, self._obj.constants["STATEMENT_PIECE"], size) != hash_in_key:
            return UNREAD
        found = statements.decoded(text, cut=len(text) == size - 1)
        if not found:
            return UNREAD
        return Comm(statements.title(found)) if is_title else statements.shown(found, self._how)

    # --- Records ----------------------------------------------------------------------------------------------------

    def of_record(self, word: int) -> Any:
        """The label of the owner of a record; None for a program that is no server, by its name."""
        row = self._rows_of[word & (1 << self._obj.constants["STATEMENT_ROW_BITS"]) - 1]
        if row not in ("statement", "title"):
            return {"none": NOBODY, "program": None, "others": OTHERS}.get(row, UNREAD)
        found = self._texts.get(word)
        if found is None:
            found = self._new(word)
            self._remember(word, found)
        return found

    def _new(self, word: int) -> Any:
        """Look at all owners that are new, as there may be many."""
        layout = self._obj.struct("owner")
        words, stride = self._obj.view("owners").cast("Q"), layout.size // 8
        # All members up to these are words.
        places = map(layout.fields.index, ("taken", "key.id", "key.more"))
        taken, hashes, rows = (words[place::stride].tolist() for place in places)
        found = UNREAD
        for number, (is_taken, hash_in_key, row) in enumerate(zip(taken, hashes, rows), 1):
            if is_taken and (number not in self._labels or self._word(hash_in_key, row) == word):
                label = self.label(number)
                if label is not None and self._word(hash_in_key, row) == word:
                    found = label
        return self._texts.get(word, found)

    # --- Owners that are gone ---------------------------------------------------------------------------------------

    def _rest_of(self, group: Group) -> Group:
        """Keep the counts of a variant in the row that all variants share, unless there are too many rows."""
        label = group.values[-1]
        few = 2 * len(self._sharing) <= self._obj.length("owners")
        return group if few or self._sharing[label] > 1 else super()._rest_of(group)

    def _left(self, label: Any) -> None:
        self._sharing[label] -= 1
        if not self._sharing[label] and 2 * len(self._sharing) > self._obj.length("owners"):
            del self._sharing[label]


def hash_of(text: bytes, piece: int, size: int) -> int:
    """The hash that programs compute: over pieces, the last one padded with zeros, with at least one."""
    text = text[: size - 1]
    pieces, found = len(text) // piece + 1, 0
    for (word,) in islice(struct.iter_unpack("<Q", text.ljust(size, b"\0")), pieces * piece // 8):
        found = (found ^ word) * _FACTOR & _ALL_BITS
        found ^= found >> 32
    return found | 1


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
