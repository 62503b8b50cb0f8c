# SPDX-License-Identifier: Apache-2.0
"""Texts of statements without their literals."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.analysis.statements import FULL, MYSQL, NORMALISED, OFF, SQL, decoded, normalised, shown, title


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT * FROM t WHERE id = 42 AND name = 'it''s';", "SELECT * FROM t WHERE id = ? AND name = ?"),
        ("select  -- why\n 1 /* and\n what */ from\tt1", "select ? from t1"),
        (r"select E'a\'b', 'c\', 2", "select ?, ..."),
        ("select $$it's$$ || $of$a $$ b$of$ || x", "select ? || ? || x"),
        ("select .5 + 1.e3 - 0xFF, t1.a2[1:2]", "select ? + ? - ?, t1.a2[?:?]"),
        ('select "a 1", "b""2" from "T"', 'select "a 1", "b""2" from "T"'),
        ("select x'1F', B'01', N'n', u&'x'", "select ?, ..."),
        ("select 1 where id in (1,2, 3)", "select ? where id in (?, ...)"),
        ("insert into t values (1, 'a'), (2, 'b'),(3,'c')", "insert into t values (?, ...), ..."),
        ("insert into t values (1),(2)", "insert into t values (?), ..."),
        ("select 0b101, 0o17, 0B1_0", "select ?, ..."),
        ("select 1 - 1 from t where id in (-1, 2 , -3)", "select ? - ? from t where id in (?, ...)"),
        ("select f(-1), f( 1)", "select f(?), f( ?)"),
        ("insert into t values (1, -2), (-1, 2) , (3, 4)", "insert into t values (?, ...), ..."),
        ("select * from t where id in ($1, $2,$3)", "select * from t where id in ($1, ...)"),
        ("select 'cut of", "select ?"),
        ("select E'cut \\", "select ?"),
        ("select $a$ cut $a", "select ?"),
        ('select "cut', 'select "cut'),
        ("select 1 /* cut", "select ?"),
        ("/* a comment that is longer than what is kept", "/* ... */"),
        ("-- nothing else", "/* ... */"),
        ("größe = 1", "größe = ?"),
        ("select a1, b_2 from t$3", "select a1, b_2 from t$3"),
    ],
)
def test_literals_comments_and_blanks(text: str, found: str) -> None:
    assert normalised(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"""select "it's", 'a\'b', "a\"b", 'c' from `t 1`""", "select ?, ... from `t 1`"),
        ("select 1 # why\n from t -- and\n where a--1 > 0x1F", "select ? from t where a--? > ?"),
        ("select _utf8mb4 'x', b'01', 0b11, @a1, @@x.y_2", "select ?, ..., @a1, @@x.y_2"),
        ('select "cut \\', "select ?"),
        ("select `cut", "select `cut"),
    ],
)
def test_literals_as_mysql_writes_them(text: str, found: str) -> None:
    assert normalised(text, MYSQL) == found


def test_variants_are_one() -> None:
    every = {normalised(f"select x from t where id = {number} and s = '{number * 7}'") for number in range(300)}  # noqa: S608
    assert every == {"select x from t where id = ? and s = ?"}


@given(st.text(max_size=1024), st.sampled_from((SQL, MYSQL)))
def test_any_text_has_an_answer(text: str, quotes: str) -> None:
    assert len(normalised(text, quotes)) <= max(len(text) + 5 * text.count(","), len("/* ... */"))
    assert normalised(text, quotes) == normalised(text.strip(), quotes)


@pytest.mark.parametrize(
    "piece", ["'", '"', "$", "$a$", "(1,", "(?),", "--", "/*", "e'\\", " ", "1", "?, ", "\\", "_a", "`"]
)
@pytest.mark.parametrize("quotes", [SQL, MYSQL])
def test_no_text_takes_long(piece: str, quotes: str) -> None:
    """Quadratic time would be a minute here."""
    text = (piece * 200_000)[:200_000]
    before = time.thread_time()
    normalised(text, quotes)
    assert time.thread_time() - before < 15


def test_what_is_shown() -> None:
    one, other = "select 'secret' from t", "select 'other' from t"
    assert shown(one, FULL) == one
    assert shown(one, NORMALISED) == shown(other, NORMALISED) == "select ? from t"
    assert shown(one, OFF) == shown(other, OFF)
    assert "select" not in shown(one, OFF)
    assert shown(one, OFF) != shown("select ? from u", OFF)


@pytest.mark.parametrize(
    ("text", "cut", "found"),
    [
        (b"select\n\t1\r\n", False, "select 1"),
        ("größe".encode(), False, "größe"),
        ("größe".encode("latin-1"), False, "gr\udcf6\udcdfe"),
        ("grö".encode()[:-1], True, "gr"),
        ("grö".encode()[:-1], False, "gr\udcc3"),
        (b"select \x1b[2J", False, ""),
        ("select \x9b2J".encode(), False, ""),
        (b"\x7fELF\x02\x01", False, ""),
        (b"", False, ""),
    ],
)
def test_what_is_a_text(text: bytes, cut: bool, found: str) -> None:
    assert decoded(text, cut) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("postgres: 15/main: walwriter ", "postgres: 15/main: walwriter"),
        ("postgres: app shop 10.0.0.1(53412) idle", "postgres: app shop 10.0.0.1 idle"),
        ("postgres: parallel worker for PID 812 ", "postgres: parallel worker"),
        ("postgres: walsender r [local] streaming 0/3000148", "postgres: walsender r [local] streaming ?"),
        ("postgres: archiver last was 000000010000000000000003.partial", "postgres: archiver last was ?"),
    ],
)
def test_titles(text: str, found: str) -> None:
    assert title(text) == found
