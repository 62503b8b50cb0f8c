# SPDX-License-Identifier: Apache-2.0
"""Many owners of the programs may be one row: variants of a statement, and texts that are none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wptrace.bpf.object import BpfObject, open_object
from wptrace.engine.definition.unit import Argument, Chosen, Unit
from wptrace.flows.io.kinds import NO_UNIT, UNREAD
from wptrace.flows.io.options import STATEMENT, UNIT
from wptrace.flows.io.parts import texts
from wptrace.flows.io.parts.owners import KINDS
from wptrace.flows.io.parts.texts import hash_of
from wptrace.flows.io.parts.units import Units
from wptrace.model.kind import NOBODY, OTHERS, Comm

OPERATIONS = KINDS[STATEMENT][0]
SIZE = 1024


class Texts:
    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}

    def raw(self, place: int) -> memoryview:
        return memoryview(self.kept.get(place, b"").ljust(SIZE, b"\0"))


class Object:
    """The part of a BPF object that labels need, with room for some owners."""

    def __init__(self, obj: BpfObject, owners: int) -> None:
        self.maps, self.constants, self._owners = {"statement_texts": Texts()}, obj.constants, owners
        self.struct = obj.struct
        self.memory = bytearray(owners * obj.struct("owner").size)

    def view(self, name: str) -> memoryview:
        assert name == "owners"
        return memoryview(self.memory)

    def length(self, name: str) -> int:
        assert name == "owners"
        return self._owners


class Rows(texts.Texts):
    def __init__(self, obj: BpfObject, owners: int = 4096) -> None:
        super().__init__(STATEMENT, "normalised")
        self._obj = Object(obj, owners)  # type: ignore[assignment]
        self._rows_of = obj.enum("statement_row")
        self._last = 0

    def word(self, text: bytes, row: str = "statement") -> int:
        """Return the number of a text that records have."""
        return self._word(hash_of(text, SIZE), self._rows_of.index(row))

    def come(self, text: bytes, kept: bytes | None = None) -> None:
        """Another statement is in the table."""
        place, layout = len(self._obj.maps["statement_texts"].kept), self._obj.struct("owner")  # type: ignore[attr-defined]
        self._obj.maps["statement_texts"].kept[place] = text if kept is None else kept  # type: ignore[attr-defined]
        known = {
            "taken": 1,
            "known": 3,
            "key.id": hash_of(text, SIZE),
            "key.more": self._rows_of.index("statement"),
        }
        data = layout.struct.pack(*(known.get(name, 0) for name in layout.fields))
        self._obj.memory[place * layout.size : (place + 1) * layout.size] = data  # type: ignore[attr-defined]

    def forget_texts(self) -> None:
        self._texts.clear()

    def meet(self, text: bytes, row: str = "statement", kept: bytes | None = None) -> object:
        """The label of another owner that has the hash of a text."""
        self._last += 1
        self._obj.maps["statement_texts"].kept[self._last - 1] = text if kept is None else kept  # type: ignore[attr-defined]
        key = {"key.id": hash_of(text, SIZE), "key.more": self._rows_of.index(row)}
        letters = {f"key.comm[{half}]": int.from_bytes(text[8 * half :][:8], "little") for half in range(2)}
        return self._named(self._last, {**key, **letters})

    def rest(self, label: object) -> object:
        """Return the label whose row gets the counts of an owner that leaves."""
        rest = self._rest_of(OPERATIONS.group("vda", "read", label)).values[-1]
        self._left(label)
        return rest


class UnitRows(Units):
    """Rows of a unit without a program."""

    def __init__(self, obj: BpfObject, unit: Unit) -> None:
        texts.Texts.__init__(self, UNIT, "normalised")
        self._unit = unit
        self._obj = Object(obj, 8)  # type: ignore[assignment]
        self._rows_of = obj.enum("statement_row")

    def both(self, row: str, number: int) -> object:
        """The label of an owner with this in its key, which is that of its records."""
        of = self._rows_of.index(row)
        label = self._named(1, {"key.id": number, "key.more": of, "key.comm[0]": 0, "key.comm[1]": 0})
        assert self.of_record(self._word(number, of)) == label
        return label


@pytest.fixture(scope="module")
def obj() -> Iterator[BpfObject]:
    with open_object("io_path") as found:
        assert found.constants["STATEMENT_BYTES"] == SIZE
        yield found


def test_labels(obj: BpfObject) -> None:
    rows = Rows(obj)
    assert rows.meet(b"select 1 from t") == rows.meet(b"select 2 from t") == "select ? from t"
    assert rows.meet(b"postgres: checkpointer ", "title") == Comm("postgres: checkpointer")
    assert rows.meet(b"jbd2/vda", "program") == Comm("jbd2/vda")
    assert rows.meet(b"", "unread") == UNREAD


def test_units_that_are_numbers(obj: BpfObject) -> None:
    bits = obj.constants["STATEMENT_ROW_BITS"]
    rows = UnitRows(obj, Unit("jobs", "jobs"))
    assert [rows.both("number", number << bits) for number in (0, 1, 7, (1 << 60) - 1)] == [
        "0",
        "1",
        "7",
        str(2**60 - 1),
    ]
    assert rows.both("number", -5 << bits & (1 << 64) - 1) == "-5"
    assert rows.both("idle", 0) == NO_UNIT
    assert rows.both("unread", 0) == UNREAD


def test_units_without_a_label_of_their_own(obj: BpfObject) -> None:
    """Commands that have no text may have a name."""
    rows = UnitRows(obj, Unit("jobs", "jobs", only=Chosen(Argument(0), 3), others={23: "another"}))
    bits = obj.constants["STATEMENT_ROW_BITS"]
    assert rows.both("number", 23 << bits) == "another"
    assert rows.both("number", 24 << bits) == NO_UNIT


def test_a_unit_of_no_characters(obj: BpfObject) -> None:
    rows = UnitRows(obj, Unit("jobs", "jobs"))
    assert rows.both("statement", hash_of(b"", SIZE)) == NO_UNIT
    assert rows.both("statement", hash_of(b"x", SIZE)) == UNREAD


def test_texts_that_are_none(obj: BpfObject) -> None:
    rows = Rows(obj)
    assert rows.meet(b"\1\2") == rows.meet(b"", "title") == UNREAD
    assert rows.meet(b"select 1", kept=b"select 2") == UNREAD


def test_a_text_is_remembered(obj: BpfObject) -> None:
    """Pages that a statement dirtied may be written back after its owner was evicted."""
    rows = Rows(obj)
    rows.meet(b"insert into t values (1)")
    assert rows.meet(b"insert into t values (1)", kept=b"") == "insert into t values (?)"


def test_owners_of_records(obj: BpfObject) -> None:
    """A record has the row and the hash: the label is that of the rows, also after the owner was evicted."""
    rows = Rows(obj)
    rows.meet(b"select 1 from t")
    rows.meet(b"postgres: walwriter", "title")
    assert rows.of_record(rows.word(b"select 1 from t")) == "select ? from t"
    assert rows.of_record(rows.word(b"postgres: walwriter", "title")) == Comm("postgres: walwriter")
    names = ("none", "program", "unread", "others")
    assert [rows.of_record(obj.enum("statement_row").index(name)) for name in names] == [NOBODY, None, UNREAD, OTHERS]


def test_records_of_owners_that_no_row_has_yet(obj: BpfObject) -> None:
    rows = Rows(obj)
    rows.come(b"select 1 from t")
    rows.come(b"select 2 from t", kept=b"select 3 from t")
    assert rows.of_record(rows.word(b"select 1 from t")) == "select ? from t"
    assert rows.of_record(rows.word(b"select 2 from t")) == UNREAD
    assert rows.of_record(rows.word(b"select 4 from t")) == UNREAD


def test_a_text_of_an_owner_that_is_there_is_found_again(obj: BpfObject) -> None:
    rows = Rows(obj)
    rows.come(b"select a from t")
    word = rows.word(b"select a from t")
    assert rows.of_record(word) == "select a from t"
    rows.forget_texts()
    assert rows.of_record(word) == "select a from t"


def test_variants_that_leave_stay_in_their_row(obj: BpfObject) -> None:
    rows = Rows(obj)
    for number in range(300):
        label = rows.meet(b"select %d" % number)
    assert {rows.rest(label) for _ in range(300)} == {label}


def test_too_many_rows(obj: BpfObject) -> None:
    """Those without any owner make room."""
    rows = Rows(obj, owners=8)
    labels = [rows.meet(b"select a%d" % number) for number in range(5)]
    labels += [rows.meet(b"select a0")]
    assert [rows.rest(label) for label in labels] == ["select a0", OTHERS, *labels[2:]]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 1023, 1024, 1025])
def test_hashes_of_texts_of_any_length(length: int) -> None:
    text = b"a" * length
    found = {hash_of(text, SIZE), hash_of(text + b"b", SIZE), hash_of(b"b" + text, SIZE)}
    assert len(found) == (3 if length < SIZE - 1 else 2)
    assert all(one & 1 for one in found)
