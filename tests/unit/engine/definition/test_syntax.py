# SPDX-License-Identifier: Apache-2.0
"""Expressions are read, or refused at the wrong character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.engine.definition import syntax
from wptrace.engine.definition.expression import Name, Path
from wptrace.engine.definition.faults import Place

_HERE = Place(3, 7)


def _only(text: str) -> Path:
    found = syntax.expression(text, _HERE)
    assert len(found.choices) == len(found.choices[0]) == 1
    return found.choices[0][0]


def _steps(path: Path) -> list[str | int | None]:
    return [step.name or step.element for step in path.steps]


def test_a_path_has_its_root_and_its_steps() -> None:
    path = _only("request->q . disk[2]->name")
    assert (path.root, _steps(path), path.text) == ("request", ["q", "disk", 2, "name"], "request->q . disk[2]->name")


def test_a_cast_binds_to_what_follows_it_at_once() -> None:
    path = _only("(struct tcp_sock *)sk->write_seq")
    assert (path.root, path.cast, _steps(path)) == ("sk", "tcp_sock", ["write_seq"])


def test_a_cast_of_a_field_needs_parentheses() -> None:
    path = _only("(struct tcphdr *)(sk_buff->head)->dest")
    assert isinstance(path.root, Path)
    assert (path.root.root, _steps(path.root)) == ("sk_buff", ["head"])
    assert (path.cast, _steps(path)) == ("tcphdr", ["dest"])


def test_what_is_in_network_order_is_swapped() -> None:
    assert [_only(f"{name}(sk->x)").swap for name in ("ntohs", "ntohl", "ntohll")] == [16, 32, 64]


def test_the_lowest_bits_can_be_taken() -> None:
    assert _only("request->cmd_flags:8").bits == 8


def test_alternatives_of_the_kernel_bind_more_tightly_than_those_of_the_moment() -> None:
    found = syntax.expression("a->b | c || d", _HERE)
    assert [[path.text for path in choice] for choice in found.choices] == [["a->b", "c"], ["d"]]


@pytest.mark.parametrize(
    ("text", "left", "operator", "right"),
    [
        ("ret != 0", "ret", "!=", (0,)),
        ("a & 0xf0", "a", "&", (0xF0,)),
        ("a->b | c <= -5", "a->b | c", "<=", (-5,)),
        ("x in [1, 2,3]", "x", "in", (1, 2, 3)),
        ('task.comm in ["a", "b c"]', "task.comm", "in", ("a", "b c")),
        ("task.comm == 'fio'", "task.comm", "==", ("fio",)),
        ('task.cgroup in "/user.slice"', "task.cgroup", "in", ("/user.slice",)),
        ("op == REQ_OP_READ", "op", "==", (Name("REQ_OP_READ", 6),)),
    ],
)
def test_comparisons(text: str, left: str, operator: str, right: tuple[object, ...]) -> None:
    found = syntax.comparison(text, _HERE)
    assert (found.left.text, found.operator, found.right) == (left, operator, right)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 0, "a name is needed here, not the end"),
        ("a->", 3, "the name of a field is needed here, not the end"),
        ("a->5", 3, "the name of a field is needed here, not 5"),
        ("a[b]", 2, "a number is needed here, not b"),
        ("a[1", 3, "] is needed here, not the end"),
        ("a b", 2, "b is not expected here"),
        ("a ; b", 2, "';' means nothing here"),
        ("system(a)", 0, "there is no function system, only ntohs, ntohl, ntohll"),
        ("(struct *)a", 8, "the name of a struct is needed here, not *"),
        ("(struct x)a", 9, "*, as all that is cast is a pointer, is needed here, not )"),
        ("(struct x *)5", 8, "only a pointer can be cast"),
        ("5->x", 3, "a number has no fields"),
        ("ntohs(a)->x", 10, "a swapped value is a number and has no fields"),
        ("ntohs(ntohs(a))", 0, "a value that was swapped or cut, or a text, cannot be swapped"),
        ("ntohs(a:str)", 0, "a value that was swapped or cut, or a text, cannot be swapped"),
        ("(a:str)->b", 9, "bits and texts have no fields"),
        ("(a:8)[1]", 6, "bits and texts have no fields"),
        ("(struct x *)(a:str)", 8, "only a pointer can be cast"),
        ("(a:str):8", 8, "bits can only be taken once, and of a value that is read"),
        ("(a:8):str", 6, "a text is at an address that is read"),
        ("5:str", 2, "a text is at an address that is read"),
        ("a:string", 2, "a number of bits or str is needed here, not string"),
        ("a:0", 2, "1 to 63 bits can be taken"),
        ("a:64", 2, "1 to 63 bits can be taken"),
        ("a:8:4", 3, ": is not expected here"),
        ("((((a))))", 4, "parentheses and casts are nested more than 4 deep"),
        ("a" + "->b" * 13, 37, "there is room for 12 steps"),
        ("a|b|c|d|e", 7, "there is room for 4 alternatives"),
        ("9" * 20, 0, "the number does not fit 64 bits"),
        ("5x", 0, "this is not a number"),
        ("a" * 257, 256, "it has 257 characters; there is room for 256"),
    ],
)
def test_a_wrong_expression_is_refused_where_it_is_wrong(text: str, at: int, message: str) -> None:
    with pytest.raises(syntax.TextError) as caught:
        syntax.expression(text, _HERE)
    assert (caught.value.message, caught.value.at) == (message, at)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("a", 1, "a comparison is needed here: one of == != < <= > >= & in"),
        ("a = 1", 2, "'=' means nothing here"),
        ("a == ", 5, "a number, a text in quotes or the name of an enum's value is needed here, not the end"),
        ("a == 1 && b == 2", 7, "&& is not expected here; write several filters, all of which must hold"),
        ('a < "b"', 2, "< does not compare texts; == != and in do"),
        ('a in ["b", 1]', 2, "a text cannot be compared with a number"),
        ("a in []", 6, "a number, a text in quotes or the name of an enum's value is needed here, not ]"),
        ("a in [1,2,3,4,5,6,7,8,9]", 22, "there is room for 8 values"),
        ("task.cgroup in '/\0'", 15, "a text has no NUL"),
        ('a == "b', 5, "this text is not terminated"),
        ("a == -9223372036854775809", 5, "the number does not fit 64 bits"),
    ],
)
def test_a_wrong_comparison_is_refused_where_it_is_wrong(text: str, at: int, message: str) -> None:
    with pytest.raises(syntax.TextError) as caught:
        syntax.comparison(text, _HERE)
    assert (caught.value.message, caught.value.at) == (message, at)


_PIECES = st.sampled_from([*"a.[]()*|&1,:- '", "->", "str", "struct", "ntohs", "||", "==", "in", "0x", '"'])


@given(st.one_of(st.text(max_size=300), st.lists(_PIECES, max_size=40).map("".join)))
def test_whatever_the_text_is_it_is_read_or_refused(text: str) -> None:
    for read in (syntax.expression, syntax.comparison):
        try:
            found = read(text, _HERE)
        except syntax.TextError as error:
            place = error.at
        else:
            assert found.text == text
            continue
        assert 0 <= place <= len(text)
