# SPDX-License-Identifier: Apache-2.0
"""Points on a made-up kernel, with one of each difficulty."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.definition import made_up
from tests.unit.kernel.damage import written
from tests.unit.kernel.test_elf_functions import ADDRESS, elf
from tests.unit.kernel.test_sdt import CODE, CODE_AT, DATA, DATA_AT, note
from tests.unit.kernel.test_sdt import program as with_probes
from wptrace.bpf import kernel_btf
from wptrace.engine.definition import reading
from wptrace.engine.definition.check import check, lines
from wptrace.engine.definition.faults import DefinitionError
from wptrace.engine.definition.kernel import RunningKernel
from wptrace.engine.definition.kinds import Names
from wptrace.engine.definition.recipe import Attachment, Load, Recipe
from wptrace.engine.definition.recipe import Test as Filter
from wptrace.engine.definition.resolution import Attempt, attempt, resolve
from wptrace.engine.definition.resolved import first_words
from wptrace.kernel import system_calls

_KERNEL = made_up.kernel()
_END = '[[point]]\nname = "z"\nat = "tp:ended"\nkey = "item"\n'
_NUMBER_END = _END.replace("item", "cpu")
_HEAD = 'name = "x"\n'


def _attempt(point: str, head: str = _HEAD, end: str = _END, **how: Any) -> Attempt:
    text = f'{head}[[point]]\nname = "a"\n{point}\n{end}'
    return attempt(reading.parse(text, "x.toml"), _KERNEL, **how)


def _first(point: str, at: str = "tp:made", key: str = "item", **how: Any) -> list[Attachment]:
    found = _attempt(f'at = "{at}"\nkey = "{key}"\n{point}', **how)
    assert not found.faults, found.faults
    return list(found.resolution.points[0].attachments)


def _fault(point: str, at: str = "tp:made", key: str = "item") -> str:
    found = _attempt(f'at = "{at}"\nkey = "{key}"\n{point}', thorough=True)
    assert found.faults
    return str(found.faults[0].message)


def _value(expression: str) -> Recipe:
    """Resolve an expression, read in the best way."""
    found = _first(f'value = "{expression}"')[0].value
    assert found is not None
    return found


def test_an_argument_is_found_by_its_struct_wherever_it_is() -> None:
    assert _first("")[0].keys == (Recipe("argument", 0, pointer=True),)
    assert _first("", "tp:moved")[0].keys == (Recipe("argument", 1, pointer=True),)
    assert _first("", key="task")[0].keys == (Recipe("task", pointer=True),)


def test_an_argument_is_found_by_its_name_or_number() -> None:
    assert _value("count") == _value("arg1") == Recipe("argument", 1, signed=True, size=4)


def test_ways_of_a_tracepoint() -> None:
    found = _first('value = "item->len"')
    assert [(one.way, one.btf_id > 0) for one in found] == [("tp_btf", True), ("tp_btf", True), ("raw_tp", False)]
    assert [one.value.loads[0].direct for one in found if one.value] == [True, False, False]


@pytest.mark.parametrize(
    ("at", "key", "without", "ways"),
    [
        # With nothing to read, none is offered twice.
        ("tp:made", "item", (), ["tp_btf", "raw_tp"]),
        ("fn:do_item", "item", (), ["fentry", "kprobe"]),
        # It is known to be refused.
        ("fn:do_item", "item", ("fentry",), ["kprobe"]),
        # A kprobe sees what is in registers.
        ("fn:wide", "item", (), ["fentry"]),
        ("fn:untyped", "arg1", (), ["kprobe"]),
    ],
)
def test_ways(at: str, key: str, without: tuple[str, ...], ways: list[str]) -> None:
    assert [one.way for one in _first("", at, key, without=without)] == ways


def test_ways_of_a_return() -> None:
    found = _first('value = "ret"', "ret:do_item", "task")
    assert [(one.way, one.value) for one in found] == [
        ("fexit", Recipe("returned", 2, signed=True, size=4)),
        ("kretprobe", Recipe("returned", 2, signed=True, size=4)),
    ]


def test_a_kretprobe_has_no_arguments() -> None:
    found = _attempt('at = "ret:do_item"\nkey = "item"').resolution.points[0]
    assert [one.way for one in found.attachments] == ["fexit"]
    assert (found.notes, found.rest) == ((), ("a kretprobe has no arguments: take the task as the key",))
    refused = _attempt('at = "ret:do_item"\nkey = "item"', without=("fexit",))
    assert refused.faults[0].message == "a kretprobe has no arguments: take the task as the key"


def test_functions_with_structs_by_value_take_a_kprobe() -> None:
    found = _first("", "fn:by_value")
    assert [(one.way, one.keys[0].number) for one in found] == [("kprobe", 1)]


def test_a_kprobe_sees_what_is_in_registers() -> None:
    found = _attempt('at = "fn:wide"\nkey = "item"')
    assert found.resolution.points[0].rest == ("a kprobe does not see argument 7, which is not in a register",)


@pytest.mark.parametrize(
    ("expression", "loads"),
    [
        ("item->dev->uid", [(0, 8, True), (48, 4, True)]),
        ("item->embedded.uid.val", [(104, 4, True)]),
        ("item->list[2]", [(40, 4, True)]),
        # Behind a union the verifier may see another type.
        ("item->owner->pid", [(8, 8, True), (8, 4, False)]),
        ("item->hash", [(8, 8, True)]),
        # Behind a cast it sees nothing.
        ("(struct outer *)item->more", [(137, 4, False)]),
        ("(struct dev *)(item->private)->uid", [(120, 8, True), (48, 4, False)]),
        # The first that this kernel has.
        ("item->size | item->len", [(16, 4, True)]),
    ],
)
def test_fields_are_followed(expression: str, loads: list[tuple[int, int, bool]]) -> None:
    assert [(load.offset, load.size, load.direct) for load in _value(expression).loads] == loads


@pytest.mark.parametrize(
    ("expression", "recipe"),
    [
        # Bit-fields are cut out.
        ("item->low", Recipe("argument", 0, (Load(28, 1, True),), size=1, bits=4)),
        ("item->high", Recipe("argument", 0, (Load(28, 2, True),), size=2, shift=4, bits=12)),
        ("item->len:8", Recipe("argument", 0, (Load(16, 4, True),), size=4, bits=8)),
        ("cpu", Recipe("cpu", size=4)),
        ("7", Recipe("constant", 7)),
        ("task.pid", Recipe("task", 0, (Load(8, 4, False),), True, 4)),
    ],
)
def test_numbers(expression: str, recipe: Recipe) -> None:
    assert _value(expression) == recipe


def test_network_order() -> None:
    assert _value("ntohs(item->port)").swap == 16


def test_the_first_that_is_not_0() -> None:
    found = _first("", key="item->owner || item")[0].keys[0]
    assert found.pointer
    assert found.otherwise == Recipe("argument", 0, pointer=True)


def test_texts_are_labels() -> None:
    point = 'labels = ["item->dev->name", { name = "title", value = "item->dev->title", as = "text" }]'
    found = _attempt(f'at = "tp:made"\nkey = "item"\n{point}')
    name, title = found.resolution.points[0].attachments[0].labels
    assert name == Recipe("argument", 0, (Load(0, 8, True), Load(1, 1, False)), text=True, size=16)
    assert title == Recipe("argument", 0, (Load(0, 8, True), Load(40, 8, True), Load(0, 1, False)), text=True, size=16)
    labels = found.resolution.labels
    assert [(label.name, label.type, label.words) for label in labels] == [("name", "text", 2), ("title", "text", 2)]
    assert first_words(labels) == {"name": 0, "title": 2}


def test_a_text_at_an_address_without_a_type() -> None:
    (label,) = _first('labels = [{ name = "n", value = "arg0:str" }]', "tp:of_module", "arg0")[0].labels
    assert label == Recipe("argument", 0, (Load(0, 1, False),), text=True, size=16)
    (label,) = _first('labels = [{ name = "n", value = "item->private:str" }]')[0].labels
    assert label.loads == (Load(120, 8, True), Load(0, 1, False))
    assert _fault('labels = [{ name = "n", value = "item->len:str" }]') == "unsigned int is not a pointer"


def test_labels_of_enums_have_their_names_without_what_all_begin_with() -> None:
    found = _attempt('at = "tp:made"\nkey = "item"\nlabels = ["item->op"]').resolution.labels[0]
    assert (found.type, found.names) == ("enum", {0: "read", 1: "write"})


def test_letters_may_be_unsigned_and_bytes_are_none() -> None:
    found = _attempt('at = "tp:made"\nkey = "item"\nlabels = ["item->dev->letters", "item->dev->numbers"]')
    assert [(label.name, label.type) for label in found.resolution.labels] == [("letters", "text"), ("numbers", "hex")]


def test_constants_of_an_enum_without_a_name_have_names() -> None:
    """The enum is found by one of its names. The last one counts the others, and their common suffix is dropped."""
    found = _attempt('at = "tp:made"\nkey = "item"\nlabels = [{ value = "count", enum = "OUT_PART" }]')
    assert (found.resolution.labels[0].type, found.resolution.labels[0].names) == ("enum", {0: "in", 1: "out"})


def test_system_calls_have_names() -> None:
    found = _attempt('at = "tp:made"\nkey = "item"\nlabels = [{ value = "count", as = "syscall" }]')
    label = found.resolution.labels[0]
    assert (label.type, label.names[system_calls.numbers()["fsync"]]) == ("syscall", "fsync")
    assert [Names().of(label, [number]) for number in (system_calls.numbers()["read"], 4000)] == ["read", "call 4000"]


def test_labels_take_at_most_four_words() -> None:
    point = 'labels = ["item->dev->name", { name = "b", value = "task.comm" }, "count"]'
    assert _fault(point) == "the labels take 5 words; there is room for 4, and a text takes 2"


def test_an_optional_label_is_0_where_it_is_not() -> None:
    label = '{ name = "n", value = "item->none", optional = true }'
    assert _first(f"labels = [{label}]")[0].labels == (Recipe("constant"),)


@pytest.mark.parametrize("absent", [0, 1])
def test_an_optional_label_has_the_type_that_it_has_elsewhere(absent: int) -> None:
    """Its words are those of a text, as the programs read all of them."""
    values = ["item->dev->name", "item->dev->name"]
    values[absent] = "item->none"
    labels = [f'labels = [{{ name = "n", value = "{value}", optional = true }}]\n' for value in values]
    found = _attempt(f'at = "tp:made"\nkey = "item"\n{labels[0]}', end=f"{_END}{labels[1]}")
    assert not found.faults
    assert [(label.type, label.words) for label in found.resolution.labels] == [("text", 2)]
    assert found.resolution.points[absent].attachments[0].labels == (Recipe("constant", text=True),)


def test_a_label_has_one_type() -> None:
    end = _END + 'labels = [{ name = "n", value = "ret" }]\n'
    found = _attempt('at = "tp:made"\nkey = "item"\nlabels = [{ name = "n", value = "task.comm" }]', end=end)
    assert found.faults[0].message == "the label n is number here and text at another point"


def test_a_label_has_the_names_of_one_enum() -> None:
    """They are decoded by the name of the label alone."""

    def faults(enum: str) -> list[str]:
        end = _END + f'labels = [{{ name = "n", value = "ret", enum = "{enum}" }}]\n'
        label = '{ name = "n", value = "item->op" }'
        found = _attempt(f'at = "tp:made"\nkey = "item"\nlabels = [{label}]', end=end)
        return [fault.message for fault in found.faults]

    assert faults("op") == []
    assert faults("IN_PART") == [
        "the label n has names of another enum at another point: give one another name",
    ]


def test_filters() -> None:
    point = """filter = ["item->op == MY_OP_WRITE", "task.comm == 'fio'", "count in [-1, 2]"]"""
    op, comm, count = _first(point)[0].filters
    assert (op.operator, op.right) == ("==", (1,))
    assert (comm.left.text, comm.right) == (True, (b"fio",))
    assert (count.operator, count.right) == ("in", (-1, 2))


def test_a_cgroup_and_all_below_it() -> None:
    level, ancestor = _first("filter = \"task.cgroup in '/a/b'\"")[0].filters
    to_cgroup = (Load(64, 8, False), Load(8, 8, False))
    assert level == Filter(Recipe("task", 0, (*to_cgroup, Load(8, 4, False)), True, 4), ">=", (2,))
    loads = (*to_cgroup, Load(32, 8, False), Load(0, 8, False), Load(8, 8, False))
    assert ancestor == Filter(Recipe("task", 0, loads, size=8), "==", (4711,))


def test_a_classic_event_has_the_fields_of_its_record() -> None:
    found = _first('value = "delta"\nlabels = ["comm"]', "event:made/item", "dev", end=_NUMBER_END)[0]
    assert (found.way, found.target, found.btf_id) == ("event", "made/item", 0)
    assert found.keys == (Recipe("argument", 8, size=4),)
    assert found.value == Recipe("argument", 12, signed=True, size=4)
    assert found.labels == (Recipe("argument", 16, text=True, size=16),)
    (first, second) = _first('labels = ["line", "rest"]', "event:made/item", "dev", end=_NUMBER_END)[0].labels
    assert (first.text, first.number, first.located, first.size) == (True, 32, 0, 16)
    assert (second.number, second.located) == (64, 68)
    cut = _first('value = "dev:8"', "event:made/item", "dev", end=_NUMBER_END)[0].value
    assert cut == Recipe("argument", 8, size=4, bits=8)
    pointed = _first('value = "(struct item *)skb->len"', "event:made/item", "dev", end=_NUMBER_END)[0].value
    assert pointed == Recipe("argument", 56, (Load(16, 4, False),), size=4)


def test_what_has_no_types_is_known_by_its_number() -> None:
    found = _first("", "tp:of_module", "item | arg0")
    assert [(one.way, one.keys) for one in found] == [("raw_tp", (Recipe("argument", signed=True),))]


def test_the_first_target_that_is_there() -> None:
    found = _attempt('at = ["tp:none", "fn:do_item", "tp:made"]\nkey = "item"').resolution.points[0]
    assert [one.target for one in found.attachments] == ["do_item", "do_item", "made", "made"]
    assert found.notes == ("there is no tracepoint none",)


def test_an_optional_point_may_be_missing() -> None:
    end = _END + '[[point]]\nname = "y"\nat = "tp:none"\nkey = "item"\nrole = "drop"\noptional = true\n'
    found = _attempt('at = "tp:made"\nkey = "item"', end=end)
    assert not found.faults
    assert found.resolution.points[2].attachments == ()


def test_what_may_be_in_a_module_that_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _attempt('at = "tp:begun"\nkey = "arg0"', f'{_HEAD}module = ["mine", "other"]\n')
    assert [str(fault) for fault in found.faults] == [
        "line 5, column 7: there is no tracepoint begun on made-up: nothing is known of the module mine"
    ]
    monkeypatch.setattr(kernel_btf, "vmlinux", lambda: _KERNEL.types)
    monkeypatch.setattr("wptrace.engine.definition.kernel._MODULES", tmp_path)
    running = RunningKernel()
    assert running.without_module("mine") == ": the module mine is not loaded"
    (tmp_path / "mine").mkdir()
    assert running.without_module("mine") == ""


def test_not_all_begins_may_be_missing() -> None:
    found = _attempt('at = "tp:none"\nkey = "item"\noptional = true')
    assert [fault.message for fault in found.faults] == ["this kernel has none of the points that begin"]


@pytest.mark.parametrize(
    ("optional", "message"),
    [("false", "z comes after y, which this kernel lacks"), ("true", "this kernel has none of the points that end")],
)
def test_what_comes_after_a_point_needs_it(optional: str, message: str) -> None:
    passes = '[[point]]\nname = "y"\nat = "tp:none"\nkey = "item"\noptional = true\n'
    end = f'{passes}{_END}after = "y"\noptional = {optional}\n'
    found = _attempt('at = "tp:made"\nkey = "item"', end=end)
    assert found.faults[0].message == message
    assert not _attempt('at = "tp:made"\nkey = "item"', end=end.replace("tp:none", "tp:moved")).faults
    # What comes after it may be there in vain.
    between = '[[point]]\nname = "x"\nat = "tp:moved"\nkey = "item"\noptional = true\nafter = "y"\n'
    through = end.replace(_END, between + _END).replace(
        f'after = "y"\noptional = {optional}', f'after = "x"\noptional = {optional}'
    )
    found = _attempt('at = "tp:made"\nkey = "item"', end=through)
    assert found.faults[0].message == message.replace("after y", "after x")


def test_what_begins_by_an_address_does_not_end_by_a_number() -> None:
    """As with the key `task` here and `task.pid` there."""
    end = '[[point]]\nname = "z"\nat = "tp:made"\nkey = "KEY"\n'
    found = _attempt('at = "tp:made"\nkey = "item"', end=end.replace("KEY", "count"))
    assert [fault.message for fault in found.faults] == [
        "what begins at a never ends: its key is an address, those of all ends are numbers"
    ]
    found = _attempt('at = "tp:made"\nkey = "count"', end=end.replace("KEY", "item"))
    assert "its key is a number, those of all ends are addresses" in found.faults[0].message
    # Another one ends it, its key changes on the way, or may be an address after all.
    both = end.replace("KEY", "count") + end.replace("KEY", "item")
    assert not _attempt('at = "tp:made"\nkey = "item"', end=both).faults
    moved = '[[point]]\nname = "y"\nat = "tp:made"\nkey = "item"\nbecomes = "count"\n'
    assert not _attempt('at = "tp:made"\nkey = "item"', end=moved + end.replace("KEY", "count")).faults
    assert not _attempt('at = "tp:made"\nkey = "item"', end=end.replace("KEY", "count || item")).faults


def test_the_first_key_that_all_points_have() -> None:
    end = '[[point]]\nname = "z"\nat = "ret:do_item"\n'
    head = 'name = "x"\nkeys = ["item->none", "item", "task"]\n'
    found = [_attempt('at = "fn:do_item"', head, end, without=without) for without in ((), ("fexit",))]
    assert [one.resolution.points[0].attachments[0].keys[0].source for one in found] == ["argument", "task"]


@pytest.mark.parametrize(
    ("point", "at", "message"),
    [
        ('value = "item->lne"', "tp:made", "struct item has no field lne on this kernel; did you mean len?"),
        ('value = "item->dev"', "tp:none", "there is no tracepoint none on made-up"),
        ('value = "item->embedded"', "tp:made", "struct dev is not a number: name a field of it, as name, title, uid"),
        ('value = "item->list"', "tp:made", "this is a list: name an element, as [0]"),
        ('value = "item->list[4]"', "tp:made", "it has 4 elements"),
        ('value = "item->dev->name"', "tp:made", "this is a text, and a number is needed"),
        ('value = "item->len->x"', "tp:made", "unsigned int has no fields"),
        ('value = "item->private->x"', "tp:made", "void * does not point to a struct: write (struct NAME *) before it"),
        (
            'value = "item->hidden->x"',
            "tp:made",
            "struct hidden * does not point to a struct: write (struct NAME *) before it",
        ),
        ('value = "(struct none *)item->x"', "tp:made", "this kernel has no struct none"),
        ('value = "(struct dev *)(item->len)->uid"', "tp:made", "unsigned int is not a pointer"),
        ('value = "item->len:32"', "tp:made", "it is an address, or has no more than 32 bits"),
        ('value = "ntohl(item->port)"', "tp:made", "it has 2 bytes, but the swap is of 4"),
        ('value = "itm"', "tp:made", "tp:made has no itm; did you mean item?"),
        ('value = "arg3"', "tp:made", "tp:made has 3 arguments, counted from arg0"),
        (
            'value = "task_struct->pid"',
            "tp:switched",
            "tp:switched has 2 arguments of the type task_struct: write prev",
        ),
        ('filter = "count == MY_OP_READ"', "tp:made", "count is not an enum, so MY_OP_READ has no meaning here"),
        (
            'filter = "item->op == MY_OP_REED"',
            "tp:made",
            "the enum of item->op has no MY_OP_REED; did you mean MY_OP_READ",
        ),
        ('filter = "item->len == -1"', "tp:made", "item->len has 32 bits without a sign and is never -1"),
        ('filter = "item->len < 0"', "tp:made", "item->len has 32 bits without a sign and is never below 0"),
        ('filter = "item->len:8 == 256"', "tp:made", "item->len:8 has 8 bits and is never 256"),
        ('filter = "cpu == -1"', "tp:made", "cpu has 32 bits without a sign and is never -1"),
        ('filter = "item->port > 65536"', "tp:made", "item->port has 16 bits and is never 65536"),
        ('labels = [{ name = "n", value = "count", as = "text" }]', "tp:made", "the label n is not a text"),
        (
            'labels = [{ name = "n", value = "count", as = "enum" }]',
            "tp:made",
            "the type of count is not an enum",
        ),
        ('labels = [{ name = "n", value = "count", enum = "none" }]', "tp:made", "this kernel has no enum none"),
        ("filter = \"task.comm == '0123456789abcdef'\"", "tp:made", "task.comm has at most 15 bytes to compare"),
        ("filter = \"count == 'x'\"", "tp:made", "count is not a text"),
        ('filter = "task.comm == 1"', "tp:made", "this is a text, and a number is needed"),
    ],
)
def test_what_this_kernel_lacks_is_reported_in_a_sentence(point: str, at: str, message: str) -> None:
    key = "item" if at not in ("tp:switched",) else "prev"
    assert _fault(point, at, key).startswith(message)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (
            "ret:put_item",
            "ret",
            "put_item is not a function on made-up: the compiler made put_item.constprop.0 of it",
        ),
        ("ret:large", "ret", "__int128 has 16 bytes; 8 is the maximum"),
        ("event:none/none", "x", "there is no event none/none on made-up"),
        ("event:made/item", "line", "this is a text, and a number is needed"),
        ("event:made/item", "lines", "lines is a list, which cannot be read here"),
        ("event:made/item", "words", "words is a list, which cannot be read here"),
        ("event:made/item", "comm", "this is a text, and a number is needed"),
        ("event:made/item", "dve", "the event made/item has no field dve; did you mean dev?"),
        ("tp:made", "nothing", "tp:made has no nothing; it has struct item * it, int count, void * where"),
        ("tp:of_module", "item", "the argument types of tp:of_module are unknown here: write arg0, arg1 and so on"),
        ("tp:of_module", "arg0->x", "the type of this is unknown: write (struct NAME *) before it"),
    ],
)
def test_what_a_target_lacks_is_reported_in_a_sentence(at: str, value: str, message: str) -> None:
    found = _fault(f'value = "{value}"', at, "task")
    assert found == message


def test_a_fault_has_the_place_of_the_field() -> None:
    text = _HEAD + '[[point]]\nname = "a"\nat = "tp:made"\nkey = "item->dev->nmae"\n' + _END
    with pytest.raises(DefinitionError) as caught:
        resolve(reading.parse(text, "x.toml"), _KERNEL)
    assert caught.value.message == (
        "x.toml: line 5, column 19: struct dev has no field nmae on this kernel; did you mean name?"
    )


def test_the_check_tells_what_each_point_will_be() -> None:
    end = _END + '[[point]]\nname = "yy"\nat = "tp:none"\nkey = "item"\nrole = "drop"\noptional = true\n'
    text = _HEAD + '[[point]]\nname = "a"\nat = "tp:made"\nkey = "item"\nvalue = "item->len"\n' + end
    assert lines(check(reading.parse(text, "x.toml"), _KERNEL)) == [
        "x on made-up: can be traced",
        "  a   begin  tp_btf made",
        "             else tp_btf made (probe reads)",
        "             else raw_tp made",
        "  z   end    tp_btf ended",
        "             else raw_tp ended",
        "  yy  drop   not there",
        "             there is no tracepoint none",
    ]


# --- Programs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A program with a function at 0x20 of its code, and static probes at two places."""
    arguments = b"8@%rdi -4@-16(%rbp) -4@$-7 8@_end(%rip)"
    probes = note(arguments=arguments, counter=DATA) + note(address=CODE + 0x30, arguments=arguments)
    return written(tmp_path, with_probes(probes))


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "functions"
    path.write_bytes(elf([(1, ADDRESS + 0x20, 0x10)], b"\0work\0"))
    os.truncate(path, CODE_AT + 0x100)
    return str(path)


_TASK_END = _END.replace('"item"', '"task"')


def _in_program(at: str, point: str = "") -> Attempt:
    return _attempt(f'at = "{at}"\nkey = "task"\n{point}', end=_TASK_END)


def test_a_function_of_a_program(functions: str) -> None:
    (begin,) = _in_program(f"ufn:{functions}:work", 'value = "arg1"').resolution.points[0].attachments
    assert begin.spot is not None
    assert (begin.way, begin.target, begin.spot.offset) == ("uprobe", f"{functions}:work", CODE_AT + 0x20)
    assert begin.value == Recipe("argument", 1, signed=True)
    (end,) = _in_program(f"uret:{functions}:work", 'value = "ret:32"').resolution.points[0].attachments
    assert (end.way, end.value) == ("uretprobe", Recipe("returned", 0, signed=True, bits=32))


@pytest.mark.parametrize(
    ("written", "left", "right"),
    [
        ("ret < 0", Recipe("returned", 0, signed=True), 0),
        ("ret == -1", Recipe("returned", 0, signed=True), -1),
        ("ret:32 < 0", Recipe("returned", 0, signed=True, bits=32), 0),
        ("ret:32 == 0xffffffff", Recipe("returned", 0, signed=True, bits=32), -1),
        ("ret:32 & 0x80000000", Recipe("returned", 0, signed=True, bits=32), -0x80000000),
        ("ret:8 == 255", Recipe("returned", 0, bits=8), 255),
    ],
)
def test_numbers_of_programs_have_the_sign_of_c(functions: str, written: str, left: Recipe, right: int) -> None:
    """What fails returns -1: without the sign it would be a large number, and no failure."""
    (end,) = _in_program(f"uret:{functions}:work", f'filter = "{written}"').resolution.points[0].attachments
    assert [(one.left, one.right) for one in end.filters] == [(left, (right,))]


def test_memory_of_a_program_is_read_by_words(functions: str) -> None:
    def loads(expression: str, key: str = "value") -> tuple[Load, ...]:
        text = f'value = "{expression}"' if key == "value" else f'labels = [{{ name = "n", value = "{expression}" }}]'
        (found,) = _in_program(f"ufn:{functions}:work", text).resolution.points[0].attachments
        recipe = found.value if key == "value" else found.labels[0]
        assert recipe is not None
        return recipe.loads

    assert loads("arg0[2]") == (Load(16, 8, False, True),)
    assert loads("arg0[2][1]:8") == (Load(16, 8, False, True), Load(8, 8, False, True))
    assert loads("arg0:str", "label") == (Load(0, 1, False, True),)
    assert loads("arg0[1]:str", "label") == (Load(8, 8, False, True), Load(0, 1, False, True))


def test_a_static_probe_at_several_places_is_as_many_branches(program: str) -> None:
    found = _in_program(f"usdt:{program}:mine:began")
    assert not found.faults
    *sites, end = found.resolution.points
    assert [point.attachments[0].target for point in sites] == [
        f"{program}:mine:began (place 1 of 2)",
        f"{program}:mine:began (place 2 of 2)",
    ]
    spots = [point.attachments[0].spot for point in sites]
    assert [(spot.offset, spot.counter) for spot in spots if spot] == [(CODE_AT + 0x10, DATA_AT), (CODE_AT + 0x30, 0)]
    assert {point.spec.name for point in sites} == {"a"}
    assert end.attachments[0].spot is None


def test_arguments_of_a_static_probe(tmp_path: Path) -> None:
    path = written(tmp_path, with_probes(note(arguments=b"8@%rdi -4@-16(%rbp) -4@$-7 4@%eax")))

    def value(expression: str) -> Recipe | None:
        (found,) = _in_program(f"usdt:{path}:mine:began", f'value = "{expression}"').resolution.points[0].attachments
        return found.value

    assert value("arg0") == Recipe("register", 112)
    assert value("arg0[1]") == Recipe("register", 112, (Load(8, 8, False, True),), signed=True)
    assert value("arg1") == Recipe("register", 32, (Load(-16, 4, False, True),), signed=True, size=4)
    assert value("arg2") == Recipe("constant", (1 << 64) - 7)
    assert value("arg3") == Recipe("register", 80, size=4)
    assert value("ntohl(arg3)") == Recipe("register", 80, size=4, swap=32)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        ("ufn:FUNCTIONS:wrok", "arg0", "FUNCTIONS has no function wrok; did you mean work?"),
        ("ufn:/dev/null:work", "arg0", "/dev/null is not a regular file"),
        ("usdt:FUNCTIONS:mine:began", "arg0", "FUNCTIONS has no static probes"),
        ("usdt:PROGRAM:mine:begin", "arg0", "PROGRAM has no static probe mine:begin; did you mean mine:began?"),
        ("ufn:FUNCTIONS:work", "arg6", "a uprobe does not see argument 6, which is not in a register"),
        ("ufn:FUNCTIONS:work", "name", "the argument types of ufn:FUNCTIONS:work are unknown here: write arg0, arg1"),
        ("ufn:FUNCTIONS:work", "arg0->x", "the memory of a program has no types: write [0] for its first 8 bytes"),
        ("ufn:FUNCTIONS:work", "(struct dev *)arg0->uid", "the memory of a program has no types"),
        ("ufn:FUNCTIONS:work", "arg0:str", "this is a text, and a number is needed"),
        ("ufn:FUNCTIONS:work", "arg0[200000]", "the offset is too large"),
        ("uret:FUNCTIONS:work", "arg0", "a uretprobe has no arguments: take the task as the key"),
        ("usdt:PROGRAM:mine:began", "arg4", "usdt:PROGRAM:mine:began has 4 arguments, counted from arg0"),
        ("usdt:PROGRAM:mine:began", "arg1[0]", "this has 4 bytes, and is no address"),
        ("usdt:PROGRAM:mine:began", "arg1:32", "it has no more bits"),
        ("usdt:PROGRAM:mine:began", "ntohs(arg1)", "it has 4 bytes, but the swap is of 2"),
        (
            "usdt:PROGRAM:mine:began",
            "arg3",
            "argument 3 of usdt:PROGRAM:mine:began is at '8@_end(%rip)', which cannot be read here",
        ),
    ],
)
def test_what_a_program_lacks_is_reported_in_a_sentence(
    program: str, functions: str, at: str, value: str, message: str
) -> None:
    def named(text: str) -> str:
        return text.replace("PROGRAM", program).replace("FUNCTIONS", functions)

    found = _in_program(named(at), f'value = "{value}"')
    assert found.faults
    assert found.faults[0].message.startswith(named(message))
    assert "made-up" not in found.faults[0].message


@pytest.mark.parametrize("label", ["cpu:str", "task:str", "arg2:str"])
def test_what_is_no_address_of_a_text(program: str, label: str) -> None:
    found = _in_program(f"usdt:{program}:mine:began", f'labels = [{{ name = "n", value = "{label}" }}]')
    assert found.faults[0].message == f"{label[:-4]} is not the address of a text"


def test_another_program_at_all_points(program: str, functions: str) -> None:
    end = _TASK_END.replace("tp:ended", "uret:/nowhere:work")
    text = (
        f'{_HEAD}[[point]]\nname = "a"\nat = ["ufn:/nowhere:work", "ufn:/neither:work", "tp:made"]\nkey = "task"\n{end}'
    )
    made = reading.parse(text, "x.toml").in_program(functions)
    assert [[str(target) for target in point.targets] for point in made.points] == [
        [f"ufn:{functions}:work", "tp:made"],
        [f"uret:{functions}:work"],
    ]
