# SPDX-License-Identifier: Apache-2.0
"""Rows by what a program works on, as a text (bpf_src/block/path/statement.h): `--by statement`, `--by unit`.

Programs distinguish texts by a hash. Texts that differ only in literals share a row here: several owners of the
programs have the same label.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from typing import Any

from wptrace.analysis import statements
from wptrace.bpf.object import BpfObject
from wptrace.flows.io.kinds import NO_UNIT, TEXT_FIELDS, TEXT_LABELS, UNREAD
from wptrace.flows.io.parts.owners import Owners
from wptrace.flows.io.parts.part import Tracing
from wptrace.flows.io.records import OwnersOfRecords
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.privileges import require_reading
from wptrace.model.kind import NOBODY, OTHERS, Comm, Group

# How many texts of freed owners are remembered.
_TEXTS = 1 << 14

_FACTOR, _ALL_BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Texts(Owners):
    empty = UNREAD
    """The owner that has a text of no characters."""

    def __init__(self, by: str, how: str, top: int = 0, rows: int = 0) -> None:
        """`how` texts are shown (wptrace/analysis/statements.py)."""
        super().__init__(by, CgroupNames(), top, rows)
        self._how = how
        self.fields = TEXT_FIELDS[by]
        self._texts: OrderedDict[int, Any] = OrderedDict()
        """Labels by what records have, kept after their owner was evicted: pages that a statement dirtied are written
        back later."""
        self._sharing: Counter[Any] = Counter()
        """By label: how many owners have it; 0: those that had it were freed."""

    @property
    def of_records(self) -> OwnersOfRecords:
        return OwnersOfRecords(TEXT_LABELS[self.by], self.of_record)

    @property
    def chosen(self) -> dict[str, Any]:
        return {**super().chosen, "statement_text": self._how}

    def prepare(self, obj: BpfObject) -> None:
        require_reading(f"--by {self.by}")
        super().prepare(obj)
        obj.maps["statement_texts"].max_entries = obj.length("owners")

    def start(self, tracing: Tracing) -> None:
        super().start(tracing)
        self._rows_of = self._obj.enum("statement_row")

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
        if row == "idle":
            return Comm(self._comm(values)) if values["key.id"] else NO_UNIT
        if row == "number":
            return self._number(values["key.id"])
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
        if hash_of(text, size) != hash_in_key:
            return UNREAD
        if not text:
            return self.empty
        found = statements.decoded(text, cut=len(text) == size - 1)
        if not found:
            return UNREAD
        return Comm(statements.title(found)) if is_title else self._shown(found)

    def _shown(self, text: str) -> str:
        return statements.shown(text, self._how)

    def _number(self, in_key: int) -> Any:
        """The label of a unit that is a number."""
        bits = self._obj.constants["STATEMENT_ROW_BITS"]
        number = in_key >> bits
        return str(number - (1 << 64 - bits) if in_key >> 63 else number)

    # --- Records ----------------------------------------------------------------------------------------------------

    def of_record(self, word: int) -> Any:
        """The label of the owner of a record; None for a program that is no server, or a thread, by its name."""
        row = self._rows_of[word & (1 << self._obj.constants["STATEMENT_ROW_BITS"]) - 1]
        if row == "number":
            return self._number(word)
        if row == "idle":
            return None if word >> self._obj.constants["STATEMENT_ROW_BITS"] else NO_UNIT
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


def hash_of(text: bytes, size: int) -> int:
    """The hash that programs compute: over words, up to the one that has the NUL."""
    text = text[: size - 1]
    found = 0
    for (word,) in struct.iter_unpack("<Q", text.ljust(len(text) // 8 * 8 + 8, b"\0")):
        found = (found ^ word) * _FACTOR & _ALL_BITS
        found ^= found >> 32
    return found | 1
