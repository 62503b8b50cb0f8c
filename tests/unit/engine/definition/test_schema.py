# SPDX-License-Identifier: Apache-2.0
"""The schema for editors agrees with the reader."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.engine.definition import schema
from wptrace.engine.definition import definition, flow, keys, kinds, shipped, source, syntax
from wptrace.kernel import sdt
from wptrace.model.book import UNMATCHED_END

_ROOT = Path(__file__).parents[4]
_VALIDATOR = jsonschema.Draft202012Validator(schema.schema())


def _tables(text: str) -> dict[str, Any]:
    return source.tables(text, "x.toml")


def test_the_file_is_what_the_keys_say() -> None:
    command = "python -c 'from tests.unit.engine.definition import schema; print(schema.text(), end=\"\")'"
    assert (_ROOT / "docs" / "flow.schema.json").read_text() == schema.text(), f"{command} > docs/flow.schema.json"


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema())


@pytest.mark.parametrize("name", shipped.names())
def test_shipped_definitions_are_valid(name: str) -> None:
    text = (_ROOT / "wptrace" / "flows" / f"{name}.toml").read_text()
    assert [error.message for error in _VALIDATOR.iter_errors(_tables(text))] == []


@pytest.mark.parametrize(
    "line",
    [
        'kei = "a"',
        "quiet = 1",
        'role = "ends"',
        'at = "tq:x"',
        "labels = [5]",
        'letter = "XY"',
        'labels = [{ as = "text" }]',
    ],
)
def test_what_the_reader_refuses_is_not_valid(line: str) -> None:
    point = '[[point]]\nname = "a"\nkey = "a"\n'
    point += "" if line.startswith("at") else 'at = "tp:x"\n'
    text = f'name = "x"\n{point}{line}\n[[point]]\nname = "b"\nat = "tp:y"\n'
    assert list(_VALIDATOR.iter_errors(_tables(text)))


def test_all_keys_are_in_the_reference() -> None:
    page = (_ROOT / "docs" / "flows.md").read_text()
    missing = [key.name for key in (*keys.DEFINITION, *keys.POINT, *keys.LABEL) if f"| `{key.name}` |" not in page]
    assert not missing


def test_all_shipped_definitions_are_in_the_reference() -> None:
    page = (_ROOT / "docs" / "flows.md").read_text()
    assert [name for name in shipped.names() if f"| `{name}` | " not in page] == []


def test_the_reference_says_what_the_keys_say() -> None:
    page = (_ROOT / "docs" / "flows.md").read_text()
    for key in (*keys.DEFINITION, *keys.POINT, *keys.LABEL):
        assert f"| `{key.name}` | {key.about}" in page, key.name


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib itself is asked")
def test_examples_of_the_reference_are_definitions() -> None:
    from wptrace.engine.definition.reading import parse

    page = (_ROOT / "docs" / "flows.md").read_text()
    examples = [part.partition("```")[0] for part in page.split("```toml\n")[1:]]
    assert len(examples) >= 2
    for text in examples:
        assert parse(text, "docs/flows.md").points


def test_what_becomes_of_an_object_is_what_the_flow_counts() -> None:
    page = (_ROOT / "docs" / "flows.md").read_text()
    _, _, section = page.partition("## What happens where\n")
    section, _, _ = section.partition("\n## ")
    named = set(re.findall(r"`(\w+_end|restarted|replaced)`", section))
    assert named == {cause.name for cause in (flow._UNSEEN_END, flow._RESTARTED, UNMATCHED_END)}


def test_the_limits_are_in_the_reference() -> None:
    page = (_ROOT / "docs" / "flows.md").read_text()
    _, _, section = page.partition("## Limits\n")
    lists = keys.MAX_TARGETS, keys.MAX_WAYS, keys.MAX_PARTS, syntax.MAX_LITERALS
    assert keys.MAX_TARGETS == keys.MAX_FILTERS
    for limit in (
        f"including the end | {definition.MAX_COLUMNS} |",
        f"`[[point]]` | {definition.MAX_POINTS} |",
        f"outcomes | {definition.MAX_OUTCOMES} |",
        f"kept) | {definition.MAX_LABEL_WORDS} |",
        f"expression | {keys.TEXT_LENGTH} |",
        f"filter | {', '.join(map(str, lists))} |",
        f"of it | {source.MAX_SIZE >> 10} KiB, {source.MAX_LINE} characters |",
        f"probe | {sdt.MOST_PLACES} |",
        f"power of two | {flow.MOST_SLOTS:,}; with Linux 5.10 {flow.SLOTS_OF_OLD_KERNELS:,} |",
        f"`(rest)` | {flow.MOST_ROWS:,}, in {flow.MEMORY >> 20} MiB for all CPUs |",
    ):
        assert limit in section
    assert f"`{kinds.REST}`" in section
