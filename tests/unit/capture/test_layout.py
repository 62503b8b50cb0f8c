# SPDX-License-Identifier: Apache-2.0
"""Layouts of records from a capture, which anybody may have written."""

from __future__ import annotations

from typing import Any

import pytest

from wptrace.capture.layout import Described, description, structure

NUMBERS: list[Any] = [["a", 0, ["u", 8]], ["b", 8, ["i", 4]], ["c", 16, ["[]", ["u", 2], 2]]]
RECORD: list[Any] = [
    "{}",
    32,
    [*NUMBERS, ["in", 20, ["{}", 2, [["ok", 1, ["?", 1]]]]], ["comm", 22, ["c", 5]], ["raw", 27, ["b", 2]]],
]


def test_a_layout_is_the_same_again() -> None:
    made = structure(RECORD)
    assert description(made) == RECORD
    assert description(made, without=("a", "comm")) == ["{}", 32, [*NUMBERS[1:], *RECORD[2][3:4], RECORD[2][5]]]
    data = bytes(range(32))
    read = vars(made.read(data, 0))
    assert (read["a"], read["b"], read["c"]) == (0x0706050403020100, 0x0B0A0908, (0x1110, 0x1312))
    assert (vars(read["in"]), read["raw"]) == ({"ok": True}, bytes((27, 28)))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        ["u", 8],
        ["x", 8],
        [["u"], 8],
        ["{}", 8],
        ["{}", 8, None],
        ["{}", -1, []],
        ["{}", True, []],
        ["{}", (1 << 14) + 1, []],
        ["{}", 8, [["a", 0]]],
        ["{}", 8, [[1, 0, ["u", 8]]]],
        ["{}", 8, [["a", 1, ["u", 8]]]],
        ["{}", 8, [["a", 9, ["u", 1]]]],
        ["{}", 8, [["a", 0, ["u", 4]], ["a", 4, ["u", 4]]]],
        ["{}", 8, [["a", 0, ["u", 4]], ["b", 3, ["u", 4]]]],
        ["{}", 8, [["a", 4, ["u", 4]], ["b", 0, ["u", 4]]]],
        ["{}", 1 << 14, [[f"f{at}", at, ["u", 1]] for at in range(2049)]],
        *(["{}", 16, [["a", 0, inner]]] for inner in (["u", 3], ["i", 16], ["?", 2], ["c", -1], ["u"], ["u", 8, 8])),
        ["{}", 16, [["a", 0, ["[]", ["u", 4], 5]]]],
        ["{}", 1 << 14, [["a", 0, ["[]", ["u", 1], 2049]]]],
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        structure(wrong)


def test_as_deep_and_as_large_as_may_be() -> None:
    def nested(depth: int) -> list[Any]:
        return ["{}", 8, [["a", 0, nested(depth - 1) if depth else ["u", 8]]]]

    assert len(structure(nested(7)).fields) == 1
    with pytest.raises(ValueError, match="not a type"):
        structure(nested(8))
    assert structure(["{}", 1 << 14, []]).size == 1 << 14
    assert len(structure(["{}", 2048, [["a", 0, ["[]", ["u", 1], 2048]]]]).fields) == 2048


def facts(**more: Any) -> dict[str, Any]:
    found = {
        "record": "struct request",
        "names": ["sda"],
        "struct": ["{}", 12, [["a", 0, ["u", 4]]]],
        "constants": {"ID_BITS": 63, "MOST": 1 << 40},
        "enums": {"op": ["read", "write"]},
        "number": 1,
    }
    return {**found, **more}


def test_records_mean_the_same_whatever_devices_are_called() -> None:
    made = Described(facts())
    assert made == Described(facts(names=["sdb", "sdc"], number=2))
    assert made != Described(facts(constants={"ID_BITS": 62, "MOST": 1 << 40}))
    assert (made.stride, made.enum("op"), made.struct("struct request").size) == (16, ["read", "write"], 12)
    assert Described(facts(struct=["{}", 16, []])).stride == 16
    for missing in (lambda: made.enum("kind"), lambda: made.struct("struct other")):
        with pytest.raises(KeyError):
            missing()


@pytest.mark.parametrize("wrong", [{"ID_BITS": 64}, {"ID_SHIFT": -1}, {"MOST": "7"}, {"MOST": True}, {3: 4}])
def test_constants_are_numbers_by_which_may_be_shifted(wrong: dict[Any, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Described(facts(constants=wrong))
