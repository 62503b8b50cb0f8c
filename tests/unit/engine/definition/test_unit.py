# SPDX-License-Identifier: Apache-2.0
"""Definitions of units of work, and where their points are in a program."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import pytest

from tests.unit.docs.pages import blocks, section, tables
from tests.unit.kernel.test_elf_functions import ADDRESS, CODE, elf
from tests.unit.kernel.test_sdt import note
from tests.unit.kernel.test_sdt import program as with_probes
from wptrace.cli import io
from wptrace.engine.definition import unit
from wptrace.engine.definition.registers import ARGUMENTS, OFFSETS
from wptrace.engine.definition.unit import Argument, Chosen, Place, Unit
from wptrace.errors import UsageError

WHOLE = """
[unit]
name = "web"
about = "requests"
program = "/usr/sbin/web"
begin = ["ufn:handle", "usdt:web:begin"]
end = "uret:handle"
label = "arg1:str"
length = "arg2:32"
only = "arg0 == 3"
quotes = "mysql"
[unit.others]
7 = "seven"
"""
LATER = """
later = "ufn:know"
later_label = "arg3:str"
later_length = "arg0"
"""
VARIABLE = """
[unit]
name = "web"
program = "web"
variable = "current"
"""
NAMES = b"\0handle\0current\0numbers\0"
FUNCTION, OBJECT, OF_THREAD = 2, 1, 6


def parsed(text: str) -> Unit:
    return unit.parse(text, "made up")


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parsed(text)
    return caught.value.message


def test_a_unit_between_two_points() -> None:
    assert parsed(WHOLE) == Unit(
        "web",
        "/usr/sbin/web",
        ("ufn:handle", "usdt:web:begin"),
        ("uret:handle",),
        Argument(1, text=True),
        Argument(2, bits=32),
        Chosen(Argument(0), 3),
        {7: "seven"},
        quotes="mysql",
        about="requests",
    )


def test_a_text_that_becomes_known_later(program: str) -> None:
    text = WHOLE.replace('quotes = "mysql"', LATER).replace("/usr/sbin/web", program)
    found = parsed(text)
    assert (found.later, found.later_label, found.later_length) == (
        ("ufn:know",),
        Argument(3, text=True),
        Argument(0),
    )
    assert unit.look_up(found, "x86_64").laters == ()
    there = unit.look_up(parsed(text.replace("ufn:know", "ufn:handle")), "x86_64")
    assert [spot.offset for spot in there.laters] == [CODE + 0x20]
    first, *_, fourth = ARGUMENTS["x86_64"][:4]
    assert there.later_label == Place(place=fourth, known=1, in_register=1, bits=64)
    assert there.later_length == Place(place=first, known=1, in_register=1, bits=64)


def test_a_unit_in_a_variable() -> None:
    assert parsed(VARIABLE) == Unit("web", "web", variable="current", type="char *")


def test_those_that_come_with_wptrace() -> None:
    # The help names them without a look, as every start makes it.
    parser = argparse.ArgumentParser()
    io.add_arguments(parser)
    assert f"by name ({', '.join(unit.names())})" in " ".join(parser.format_help().split())
    for name in unit.names():
        assert unit.find(name).name == name
    with pytest.raises(UsageError, match="there is no unit 'mariadbd'; did you mean mariadb"):
        unit.find("mariadbd")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no table [unit]"),
        ("[unit]\n", "a unit lacks name"),
        ("name = 'x'", "line 1, column 1: there is no table 'name' here, only [unit]"),
        (VARIABLE + 'speed = "x"', "line 6, column 1: a unit has no key speed"),
        (VARIABLE + 'begin = "ufn:x"', "a unit has a variable or begin, not both"),
        (VARIABLE + 'length = "arg1"', "a unit has a variable or length, not both"),
        (VARIABLE.replace('variable = "current"', ""), "a unit lacks begin, or a variable"),
        (VARIABLE.replace("current", "cur rent"), "variable is the name of a variable, not cur rent"),
        (VARIABLE.replace('"web"\nv', '"a:b"\nv'), "program is a path or name without a colon, not a:b"),
        (VARIABLE + 'type = "float"', "type is char * or char[] or int, not float"),
        (WHOLE.replace("ufn:handle", "uret:handle"), "begin is ufn:FUNCTION or usdt:PROVIDER:NAME, not uret:handle"),
        (WHOLE.replace("ufn:handle", "fn:handle"), "begin is ufn:FUNCTION or usdt:PROVIDER:NAME, not fn:handle"),
        (WHOLE.replace('end = "uret:handle"', ""), "a unit lacks end, or a variable"),
        (WHOLE.replace("arg1:str", "arg1:65"), "label has at most 64 bits, not arg1:65"),
        (WHOLE.replace("arg1:str", "arg1[0]:str"), "label is argN:str, argN or argN:BITS, not arg1[0]:str"),
        (WHOLE.replace("arg1:str", "arg1"), "length is that of a text, and the label is a number"),
        (WHOLE.replace("arg2:32", "arg2:str"), "length is a number, not a text"),
        (WHOLE.replace("arg0 == 3", "arg0 > 3"), "only is argN == NUMBER or argN:BITS == NUMBER, not arg0 > 3"),
        (WHOLE.replace("arg0 == 3", "arg0:8 == 256"), "arg0:8 is never 256"),
        (WHOLE.replace("arg0 == 3", "arg0:str == 3"), "only is argN == NUMBER or argN:BITS == NUMBER"),
        (WHOLE.replace('only = "arg0 == 3"', ""), "others are other values"),
        (WHOLE.replace("7 =", "seven ="), "others has names for numbers, not for 'seven'"),
        (WHOLE.replace('7 = "seven"', "7 = 8"), "a name in others is one line"),
        (WHOLE.replace('7 = "seven"', '7 = "a\\nb"'), "a name in others is one line"),
        (WHOLE.replace('quotes = "mysql"', 'later = "ufn:know"'), "later has a later_label"),
        (WHOLE.replace('quotes = "mysql"', 'later_length = "arg0"'), "later has a later_label"),
        (WHOLE.replace('quotes = "mysql"', LATER.replace("arg3:str", "arg3")), "later gives a text"),
        (WHOLE.replace('quotes = "mysql"', LATER).partition("[unit.others]")[0], "later gives a text"),
        (WHOLE.replace('quotes = "mysql"', LATER.replace("arg0", "arg0:str")), "later_length is a number"),
        (VARIABLE + 'later = "ufn:know"', "a unit has a variable or later, not both"),
        (WHOLE.replace('quotes = "mysql"', 'type = "int"'), "type is that of a variable, and there is none"),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, said: str) -> None:
    assert said in refused(text)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(UsageError, match="is not a file"):
        unit.find(str(tmp_path / "pipe.toml"))
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 16))
    with pytest.raises(UsageError, match="it is not a definition of a unit"):
        unit.find(str(tmp_path / "large.toml"))


# --- In a program -----------------------------------------------------------------------------------------------------


def with_symbols(folder: Path, kind: int) -> str:
    """All of one kind."""
    symbols = [
        (NAMES.index(b"handle"), ADDRESS + 0x20, 0x10),
        (NAMES.index(b"current"), ADDRESS + 0x2000, 8),
        (NAMES.index(b"numbers"), ADDRESS + 0x2010, 3),
    ]
    return written(folder, elf(symbols, NAMES, type=kind))


@pytest.fixture
def program(tmp_path: Path) -> str:
    return with_symbols(tmp_path, FUNCTION)


def written(folder: Path, data: bytes) -> str:
    path = folder / "web"
    path.write_bytes(data)
    os.truncate(path, CODE + 0x100000)
    return str(path)


def test_arguments_of_a_function(program: str) -> None:
    text = WHOLE.replace("/usr/sbin/web", program).replace('"ufn:handle"', '"ufn:old_handle", "ufn:handle"')
    found = unit.look_up(parsed(text), "x86_64")
    assert [spot.offset for spot in (*found.begins, *found.ends)] == [CODE + 0x20, CODE + 0x20]
    assert found.at_return
    first, second, third = ARGUMENTS["x86_64"][:3]
    assert found.choice == Place(place=first, known=1, in_register=1, bits=64)
    assert found.label == Place(place=second, known=1, in_register=1, bits=64)
    assert found.length == Place(place=third, known=1, in_register=1, bits=32)


def test_arguments_of_a_static_probe(tmp_path: Path) -> None:
    path = written(tmp_path, with_probes(note(b"begin", arguments=b"8@%rbx -4@12(%rsp) 4@$7")))
    text = (
        WHOLE.replace("/usr/sbin/web", path).replace("uret:handle", "usdt:mine:begin").replace("usdt:web", "usdt:mine")
    )
    text = text.replace("arg1:str", "arg0:str").replace("arg2:32", "arg1").replace("arg0 ==", "arg2 ==")
    found = unit.look_up(parsed(text), "x86_64")
    assert not found.at_return
    assert found.label == Place(0, OFFSETS["x86_64"]["bx"], 1, 1, 0, 8, 64)
    assert found.length == Place(12, OFFSETS["x86_64"]["sp"], 1, 1, 1, 4, 32)
    assert found.choice == Place(7, known=1, bits=32)
    with pytest.raises(UsageError, match="has no arg3: it has 3"):
        unit.look_up(parsed(text.replace("arg2 ==", "arg3 ==")), "x86_64")


def test_variables(tmp_path: Path) -> None:
    program = with_symbols(tmp_path, OBJECT)
    text = VARIABLE.replace('"web"\nv', f'"{program}"\nv')
    found = unit.look_up(parsed(text), "x86_64")
    assert found.begins == ()
    assert found.variable == (0x2000, 8)
    for name, said in (
        ("numbers", "has 3 bytes: it is no char *"),
        ("nothing", "has no variable nothing"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            unit.look_up(parsed(text.replace("current", name)), "x86_64")
    with_symbols(tmp_path, OF_THREAD)
    with pytest.raises(UsageError, match="each thread has a variable current of its own"):
        unit.look_up(parsed(text), "x86_64")
    with_symbols(tmp_path, FUNCTION)
    with pytest.raises(UsageError, match="has no variable current"):
        unit.look_up(parsed(text), "x86_64")


def test_points_that_are_not_there(program: str) -> None:
    text = WHOLE.replace("/usr/sbin/web", program)
    with pytest.raises(UsageError, match="has no function other"):
        unit.look_up(parsed(text.replace('"ufn:handle"', '"ufn:other"')), "x86_64")
    with pytest.raises(UsageError, match="arg6 is not in a register: the limit is arg5"):
        unit.look_up(parsed(text.replace("arg1:str", "arg6:str")), "x86_64")
    with pytest.raises(UsageError, match="cannot be read"):
        unit.look_up(parsed(WHOLE.replace("/usr/sbin/web", "/nowhere/web")), "x86_64")


# --- In the documentation ---------------------------------------------------------------------------------------------

PAGE = section("owners.md", "## Units of any program")


def test_the_keys_are_those_of_the_page() -> None:
    (rows, _) = tables(PAGE)
    assert dict(rows) == {key.name: key.about.replace("`", "") for key in unit.UNIT}


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_the_examples_of_the_page_are_right(text: str) -> None:
    assert parsed(text).name == "jobs"
