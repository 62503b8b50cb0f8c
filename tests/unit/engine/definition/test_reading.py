# SPDX-License-Identifier: Apache-2.0
"""Definitions are read completely, or refused with all errors and their places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.engine.definition import keys, reading, source
from wptrace.engine.definition.definition import (
    BEGIN,
    DROP,
    END,
    MAX_POINTS,
    PASS,
    Definition,
)
from wptrace.engine.definition.faults import DefinitionError
from wptrace.errors import UsageError, WptraceError

_SMALL = """
name = "small"
key = "a"
[[point]]
name = "first"
at = "tp:one"
{first}
[[point]]
name = "last"
at = "tp:two"
{last}
"""


def _small(first: str = "", last: str = "") -> str:
    return _SMALL.format(first=first, last=last)


def _read(text: str) -> Definition:
    return reading.parse(text, "x.toml")


def _faults(text: str) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        _read(text)
    return [str(fault) for fault in caught.value.faults]


def test_the_smallest_definition() -> None:
    found = _read(_small())
    assert [point.role for point in found.points] == [BEGIN, END]
    assert [point.letter for point in found.points] == ["F", "L"]
    assert [point.stage for point in found.points] == ["first", ""]
    assert (found.noun, found.nouns, found.columns, found.outcomes) == ("object", "objects", ("first",), ())
    assert [str(target) for point in found.points for target in point.targets] == ["tp:one", "tp:two"]


@pytest.mark.parametrize(
    ("points", "roles"),
    [
        (("a", "b", "c"), [BEGIN, PASS, END]),
        # Branches have the role of their name.
        (("a", "a", "b", "c", "c"), [BEGIN, BEGIN, PASS, END, END]),
        # The last without a role ends where others drop.
        (("a", "b", "c", 'm"\nrole = "drop'), [BEGIN, PASS, END, DROP]),
        # Where points have outcomes, those end.
        (("a", "b", 'c"\noutcome = "gone', 'd"\noutcome = "lost'), [BEGIN, PASS, END, END]),
    ],
)
def test_roles_follow_from_the_order(points: tuple[str, ...], roles: list[str]) -> None:
    text = "".join(f'[[point]]\nat = "tp:a"\nname = "{point}"\n' for point in points)
    assert [point.role for point in _read(f'name = "x"\nkey = "a"\n{text}').points] == roles


def test_points_that_come_after_each_other_may_have_branches_that_do_not() -> None:
    points = (("m", 'after = "n"'), ("n", 'after = "m"'), ("n", ""))
    passes = "".join(f'[[point]]\nname = "{name}"\nat = "tp:{name}"\n{after}\n' for name, after in points)
    assert len(_read(_small(passes)).points) == 5


def test_a_begin_with_a_filter_makes_the_others_quiet() -> None:
    assert [point.quiet for point in _read(_small()).points] == [False, False]
    assert [point.quiet for point in _read(_small('filter = "a == 1"')).points] == [False, True]


def test_what_is_dropped_has_its_name_as_the_outcome() -> None:
    text = _small() + '[[point]]\nname = "merged"\nat = "tp:m"\nrole = "drop"'
    assert _read(text).outcomes == ("merged",)


def test_a_label_has_the_name_of_its_last_field() -> None:
    found = _read(_small(last='labels = ["a->q->disk_name", { name = "op", value = "a->x:8", enum = "op" }]'))
    assert found.labels == ("disk_name", "op")
    assert [label.type for label in found.points[1].labels] == ["auto", "enum"]


def test_faults_have_their_places() -> None:
    text = """name = "x"
kei = "a"
[[point]]
name = "a"
at = ["tp:one", "tq:two"]
key = "  b->"
[[point]]
name = "b"
at = "tp:x"
filter = [
    "a == 1",
    'b ==',
]
labels = [{ name = "n", value = "a", nam = "b" }]
"""
    assert _faults(text) == [
        "line 2, column 1: the definition has no key kei; did you mean key?",
        "line 5, column 18: at is tp:TRACEPOINT, fn:FUNCTION, ret:FUNCTION, event:CATEGORY/NAME, ufn:PATH:SYMBOL, "
        "uret:PATH:SYMBOL or usdt:PATH:PROVIDER:NAME, not tq:two",
        "line 6, column 13: key: the name of a field is needed here, not the end",
        "line 7, column 1: the point b has no key, and the definition has none for all points",
        "line 12, column 10: filter: a number, a text in quotes or the name of an enum's value is needed here, "
        "not the end",
        "line 14, column 38: a label has no key nam; did you mean name?",
    ]


def test_the_first_fault_is_reported_and_how_many_follow() -> None:
    with pytest.raises(DefinitionError) as caught:
        _read("")
    assert caught.value.message == "x.toml: line 1, column 1: the definition lacks name: what the flow is called"
    assert caught.value.hint == "wptrace flow --check shows 1 more"
    assert caught.value.exit_code == 2


_WRONG = {
    "a number": "5",
    "true": "true",
    "a list": "[[1]]",
    "a table": "{ x = 1 }",
    "a time": "1979-05-27",
    "a text": '"?!"',
}


def _accepted(key: keys.Key, kind: str) -> bool:
    """Return the accepted types of a key."""
    if kind == "a text":
        # These accept any line.
        return key.kind in (keys.LINE, keys.NOUN)
    if kind == "true":
        return key.kind == keys.FLAG
    return kind == "a table" and key.kind == keys.LABELS


@pytest.mark.parametrize("kind", _WRONG)
@pytest.mark.parametrize(
    ("where", "key"),
    [(where, key) for where in ("DEFINITION", "POINT", "LABEL") for key in getattr(keys, where)],
    ids=lambda value: value.name if isinstance(value, keys.Key) else value,
)
def test_each_key_refuses_each_wrong_type(where: str, key: keys.Key, kind: str) -> None:
    if _accepted(key, kind):
        return
    line = f"{key.name} = {_WRONG[kind]}"
    if where == "DEFINITION":
        rest = _small() if key.name not in ("name", "key") else _small().replace(f"\n{key.name} =", "\n#", 1)
        text = f"{line}\n{rest}"
        if key.name == "point":
            text = f'name = "x"\n{line}'
    elif where == "POINT":
        point = 'name = "p"\nat = "tp:p"\n'.replace(f"{key.name} = ", "# ")
        text = f'name = "x"\nkey = "a"\n[[point]]\n{point}{line}\n[[point]]\nname = "q"\nat = "tp:q"\n'
    else:
        value = "" if key.name == "value" else 'value = "a", '
        text = _small(last=f"labels = [{{ {value}{line} }}]")
    place = text[: text.index(line)].count("\n") + 1
    found = _faults(text)
    assert any(fault.startswith(f"line {place}, ") and (key.name in fault or kind == "a table") for fault in found), (
        found
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_small(first='role = "end"'), "no point begins an object"),
        (_small(last='role = "pass"'), "no point ends an object: two points at least are needed, with different names"),
        (
            _small(first='outcome = "x"\nrole = "begin"'),
            "an outcome is for points that end, and first",
        ),
        (_small(last="begins = true"), "begins is for points that pass, and last is one that ends"),
        (_small(last='becomes = "b"'), "becomes is for points that pass, and last is one that ends"),
        (_small(last='repeat = "first"'), "repeat is for points that begin, and last is one that ends"),
        (_small(first='failed = "a < 0"'), "failed is for points that end, and first is one that begins"),
        (_small(last='role = "drop"\nfailed = "a < 0"'), "failed is for points that end, and last is one that drops"),
        (_small(last='role = "drop"\nvalue = "a"'), "value and labels are for points that do not drop"),
        (_small(last='role = "drop"\nlabels = ["a"]'), "value and labels are for points that do not drop"),
        (_small(last='after = "firts"'), "no point that begins or passes is called firts; did you mean first?"),
        (
            _small('[[point]]\nname = "m"\nat = "tp:m"\nafter = "m"', 'after = "m"'),
            "m comes after m, which no object can pass before",
        ),
        (
            _small('[[point]]\nname = "m"\nat = "tp:m"\nafter = "n"\n[[point]]\nname = "n"\nat = "tp:n"\nafter = "m"'),
            "m comes after n, which no object can pass before",
        ),
        (_small(last='reached = "a"'), "no point has a mark that could be reached, and last is one that ends"),
        (_small(first='mark = "a"'), "there is a mark, and no point at which it is reached"),
        (
            _small(last='role = "pass"\nmark = "a"\nreached = "b"\n[[point]]\nname = "z"\nrole = "end"\nat = "tp:z"'),
            "a point has mark or reached, and last has both",
        ),
        (_small(first='stage = "total"'), "no stage can be called total"),
        (
            _small(first='value = "a"', last='value = "b"\nunit = "ns"'),
            "an object has one value: last has ns, and first bytes",
        ),
        (_small(last='outcome = "untimed"'), "no outcome can be called untimed"),
        (_small(last='outcome = "bytes"'), "no outcome can be called bytes"),
        (_small(last='outcome = "pages"\nvalue = "a"\nunit = "pages"'), "no outcome can be called pages"),
        (_small(last='outcome = "pages"\nvalue = "a"\nunit = "ns"'), ""),
        (_small(first='letter = "X"', last='letter = "X"'), "another point has the letter X"),
        (_small(last='labels = ["a->x", "b->x"]'), "two labels are called x: give one a name"),
        (_small(last='labels = ["a", "b", "c", "d", "e"]'), "labels has 5; there is room for 4"),
        (_small().replace('key = "a"', 'key = "a"\nkeys = ["b"]'), "there are both key and keys"),
        (
            _small(first='key = ["a", "b"]'),
            "keys of some points have two parts and those of others one",
        ),
        (_small(first='key = ["a", "b", "c"]'), "key has 3; there is room for 2"),
        (_small(first="key = []"), "key is empty"),
        (_small().replace("tp:one", "fn:one") + 'value = "ret"', ""),
        (
            _small(first='value = "ret"').replace("tp:one", "fn:one"),
            "what the function returned is known only at ret: and uret:",
        ),
        (
            _small(first='value = "ret"').replace("tp:one", "ufn:/a:one"),
            "what the function returned is known only at ret: and uret:",
        ),
        (_small(last='advice = "' + "x" * 161 + '"'), "advice has 161 characters; there is room for 160"),
        (f'noun = " "\n{_small()}', "noun is blank"),
        (f'noun = ["entry", ""]\n{_small()}', "noun is blank"),
        (_small(last='advice = "a\\u0007b"'), "advice is one line of plain text"),
    ],
)
def test_what_does_not_fit_together_is_reported(text: str, message: str) -> None:
    if not message:
        _read(text)
        return
    assert any(fault.partition(": ")[2].startswith(message) for fault in _faults(text))


@pytest.mark.parametrize(
    ("target", "kind", "name"),
    [
        ("ufn:redis-server:call", "ufn", "redis-server:call"),
        ("ufn:/usr/lib/a b/x.so.1:_ZN3abcEv", "ufn", "/usr/lib/a b/x.so.1:_ZN3abcEv"),
        ("uret:/usr/bin/go:net/http.(*Server).Serve", "uret", "/usr/bin/go:net/http.(*Server).Serve"),
        ("usdt:/usr/bin/postgres:postgresql:query__start", "usdt", "/usr/bin/postgres:postgresql:query__start"),
    ],
)
def test_places_in_programs(target: str, kind: str, name: str) -> None:
    (found,) = _read(_small().replace("tp:one", target)).points[0].targets
    assert (found.kind, found.name) == (kind, name)


@pytest.mark.parametrize(
    "target",
    ["ufn:x", "ufn::x", "ufn:a:", "ufn:a:b:c", "ufn:a:b c", "usdt:a:b", "usdt:a:b:c:d", "usdt:a:b-c:d", "ufn:\u00e4:b"],
)
def test_places_in_programs_that_are_none(target: str) -> None:
    (found,) = _faults(_small().replace("tp:one", target))
    assert "ufn:PATH:SYMBOL, uret:PATH:SYMBOL or usdt:PATH:PROVIDER:NAME, not " in found


def test_there_is_room_for_so_many_points() -> None:
    def points(count: int) -> str:
        more = "".join(f'[[point]]\nname = "last"\nat = "tp:p{number}"\n' for number in range(count - 2))
        return _small() + more

    assert len(_read(points(MAX_POINTS)).points) == MAX_POINTS
    assert any("there is room for 24" in fault for fault in _faults(points(MAX_POINTS + 1)))


def test_there_is_room_for_so_many_columns() -> None:
    def columns(count: int) -> str:
        return "".join(f'[[point]]\nname = "p{number}"\nat = "tp:p"\n' for number in range(count))

    head = 'name = "x"\nkey = "a"\n'
    assert len(_read(head + columns(8)).columns) == 7
    assert "8 points begin or pass; there is room for 8 with the end" in _faults(head + columns(9))[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a\n', "line 1, column 10: illegal character '?n'"),
        ("name = \n", "line 1, column 8: invalid value"),
        ("name = 1\nname = 2\n", "line 2, column 9: cannot overwrite a value"),
        ("[[[[", "line 1, column 3: "),
        ("a" + ".a" * 300 + " = 1", "line 1, column 1: the line has 605 characters; there is room for 512"),
    ],
)
def test_what_is_no_toml_is_reported_with_its_place(text: str, message: str) -> None:
    (found,) = _faults(text)
    assert message.split("'")[0] in found


def test_deep_nesting_is_refused() -> None:
    (found,) = _faults("x = " + "[\n" * 5000)
    assert found == "it is nested too deeply"


def test_a_file_is_bounded_and_plain(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_text("#" * (source.MAX_SIZE + 1))
    with pytest.raises(UsageError, match="is larger than 32 KiB"):
        reading.read(large)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a file"):
        reading.read(tmp_path / "pipe")
    with pytest.raises(UsageError, match="No such file"):
        reading.read(tmp_path / "none")
    (tmp_path / "bytes.toml").write_bytes(b'name = "x"\nabout = "\xff"\n')
    with pytest.raises(DefinitionError, match="line 2, column 10: this is not UTF-8"):
        reading.read(tmp_path / "bytes.toml")


_VALUES = st.recursive(
    st.one_of(
        st.booleans().map(lambda flag: str(flag).lower()), st.integers().map(str), st.text(max_size=20).map(repr)
    ),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: f"[{', '.join(parts)}]"),
    max_leaves=6,
)
_NAMES = st.sampled_from([key.name for key in (*keys.DEFINITION, *keys.POINT, *keys.LABEL)])
_LINES = st.one_of(
    st.sampled_from(["[[point]]", "[point]", "[[point.labels]]", 'name = "x"', 'at = "tp:x"', 'key = "a"', "# x", ""]),
    st.tuples(_NAMES, _VALUES).map(" = ".join),
)


@given(st.one_of(st.text(max_size=200), st.lists(_LINES, max_size=20).map("\n".join)))
def test_whatever_the_file_is_it_is_read_or_refused(text: str) -> None:
    try:
        found = reading.parse(text, "x.toml")
    except WptraceError as error:
        said = error.message
    else:
        assert found.points
        return
    assert said.startswith("x.toml: ")
