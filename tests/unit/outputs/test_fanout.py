# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.outputs import samples
from wptrace.model.book import RECURSION, RING_FULL
from wptrace.model.report import Output
from wptrace.outputs.fanout import FanOut

METHODS = [name for name in vars(Output) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_each_output_gets_everything(name: str) -> None:
    one, other = (Mock(losses=Mock(return_value={})) for _ in range(2))
    reported: list[Any] = [object() for _ in list(inspect.signature(getattr(Output, name)).parameters)[1:]]
    getattr(FanOut(one, other), name)(*reported)
    for output in (one, other):
        assert [(call[0], list(call.args)) for call in output.method_calls] == [(name, reported)]


def test_what_any_of_them_lost_is_reported() -> None:
    outputs = (Mock(losses=lambda: {RING_FULL: 2}), Mock(losses=dict), Mock(losses=lambda: {RECURSION: 1}))
    assert FanOut(*outputs).losses() == {RING_FULL: 2, RECURSION: 1}


def test_all_are_closed_whatever_one_says() -> None:
    outputs = [Mock(close=Mock(side_effect=error)) for error in (None, OSError("full"), None)]
    with pytest.raises(OSError, match="full"):
        FanOut(*outputs).close()
    assert [output.close.call_count for output in outputs] == [1, 1, 1]


@pytest.mark.parametrize("name", sorted({*METHODS} - {"losses", "close"}))
def test_files_are_written_to_their_ends_when_the_reader_of_the_first_has_left(name: str) -> None:
    gone, file = Mock(**{f"{name}.side_effect": BrokenPipeError}), Mock()
    outputs = FanOut(gone, file)
    reported = [object() for _ in list(inspect.signature(getattr(Output, name)).parameters)[1:]]
    getattr(outputs, name)(*reported)
    outputs.summary(samples.report({}, kind="summary"))
    outputs.close()
    assert [call[0] for call in file.method_calls] == [name, "summary", "close"]
    assert [call[0] for call in gone.method_calls] == [name]
    assert outputs.first is gone
