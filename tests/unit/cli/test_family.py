# SPDX-License-Identifier: Apache-2.0
"""What the commands beside io and doctor refuse, and what they make of a good command line."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.unit.cli.command import WPTRACE, run, sentence
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.sizes import SizesView
from wptrace.outputs.text.stacks import FoldedOutput, StacksView

BAD = [
    (["size", "0"], "an interval of 0 is too short: 10ms is the least"),
    (["size", "1", "none"], "the count 'none' is not a whole number above 0"),
    (["size", "-d", "nope"], "there is no block device nope"),
    (["size", "-p", "1"], "size: unrecognized arguments: -p"),
    (["stacks", "-d", "nope"], "there is no block device nope"),
    (["stacks", "--min", "5"], "the duration '5' has no unit: the units are ns, us, ms, s, m, h"),
    (["stacks", "--top", "few"], "'few' is not a number of stacks"),
    (["stacks", "--top", "-1"], "'-1' is not a number of stacks"),
    (["stacks", "--folded", "bytes"], "stacks: argument --folded: invalid choice: 'bytes'"),
    (["stacks", "--folded", "time", "-j"], "--folded and --json are two forms of the same: choose one"),
    (["stacks", "-p", "nobody"], "'nobody' is not a process id"),
]


@pytest.mark.parametrize(
    ("words", "message"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_bad_command_line_is_a_usage_error(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        main(words)
    assert message in caught.value.message


@pytest.mark.parametrize("words", [["size"], ["stacks"], ["size", "--dry-run"], ["stacks", "--dry-run"]])
def test_without_privileges_nothing_is_traced(words: list[str]) -> None:
    found = run(WPTRACE, *words)
    assert found.returncode == 3
    assert found.stdout == ""
    assert sentence(found.stderr) == "tracing needs root, or CAP_BPF and CAP_PERFMON"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What commands hand to the runner."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr("wptrace.engine.run.run", lambda *arguments: found.append(arguments))
    monkeypatch.setattr("wptrace.kernel.privileges.require_tracing", lambda: None)
    monkeypatch.setattr("wptrace.engine.devices.extents", lambda wanted: [])
    return found


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["size"], (TextOutput, SizesView)),
        (["size", "-j"], (NdjsonOutput, None)),
        (["stacks"], (TextOutput, StacksView)),
        (["stacks", "-j"], (NdjsonOutput, None)),
        (["stacks", "--folded", "time"], (FoldedOutput, StacksView)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_good_one_is_handed_to_the_runner(
    words: list[str], kinds: tuple[type, type | None], traced: list[tuple[Any, ...]]
) -> None:
    assert main([*words, "-o", os.devnull, "0.5", "3", "--stats"]) == 0
    ((flow, output, seconds, count, statistics, _),) = traced
    assert flow.name == words[0]
    assert type(output) is kinds[0]
    assert kinds[1] is None or type(output._view) is kinds[1]
    assert (seconds, count, statistics) == (0.5, 3, True)


@pytest.mark.parametrize(
    ("words", "top"), [([], 10), (["--top", "3"], 3), (["--top", "0"], 0), (["-j"], 0), (["-j", "--top", "5"], 5)]
)
def test_json_has_all_stacks_and_text_the_first_ten(words: list[str], top: int, traced: list[tuple[Any, ...]]) -> None:
    assert main(["stacks", "-o", os.devnull, "-p", str(os.getpid()), "--min", "2ms", "--user", *words]) == 0
    ((flow, output, *_),) = traced
    assert (output._wanted if "-j" in words else output._view.wanted).top == top
    assert (flow._options.min_ns, flow._options.wanted["pid"], flow._options.user) == (2_000_000, os.getpid(), True)
