# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.outputs.json_line import encoded


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("größe \U0001f600", "größe \U0001f600"),
        ("a\udcffb", r"a\xffb"),
        ("\udc80\U0001f600", "\\x80\U0001f600"),
        (r"C:\udo", r"C:\udo"),
        # No byte decodes to this, but a forged capture may have it.
        ("\ud800", "\ufffd"),
        ("a\udc00", "a\ufffd"),
        ('\x00\x1b\n"', '\x00\x1b\n"'),
    ],
)
def test_names(name: str, reported: str) -> None:
    line = encoded({"a": name, name: [name, {"b": (name, 1, None)}]})
    assert json.loads(line) == {"a": reported, reported: [reported, {"b": [reported, 1, None]}]}
    assert line.isascii()
    assert "\n" not in line


@given(st.binary(max_size=20))
def test_every_parser_takes_a_line(name: bytes) -> None:
    """Any string of Python can be written as UTF-8, even with a surrogate."""
    (reported,) = json.loads(encoded({"name": os.fsdecode(name)})).values()
    reported.encode()
