# SPDX-License-Identifier: Apache-2.0
"""Commands other than io and doctor: bad command lines, and the flow that a good one starts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.unit.cli.command import WPTRACE, run, sentence
from wptrace.cli.main import main
from wptrace.errors import NotPermittedError, UsageError
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.sizes import SizesView
from wptrace.outputs.text.stacks import FoldedOutput, StacksView


@pytest.mark.parametrize(
    "words", [["size"], ["stacks"], ["cpu"], ["progs"], ["size", "--dry-run"], ["stacks", "--dry-run"]]
)
def test_without_privileges_nothing_is_traced(words: list[str]) -> None:
    found = run(WPTRACE, *words)
    assert found.returncode == 3
    assert found.stdout == ""
    assert sentence(found.stderr) == "tracing needs CAP_BPF and CAP_PERFMON, which are missing"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record what commands pass to the runner."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr("wptrace.engine.run.run", lambda *arguments: found.append(arguments))
    monkeypatch.setattr("wptrace.kernel.privileges.require_tracing", lambda: None)
    monkeypatch.setattr("wptrace.engine.devices.extents", lambda wanted, hidden: [])
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
    ((((flow, output),), run_options),) = traced
    assert flow.name == words[0]
    assert type(output) is kinds[0]
    assert kinds[1] is None or type(vars(output)["_view"]) is kinds[1]
    assert run_options[:3] == (0.5, 3, True)


@pytest.mark.parametrize(
    ("words", "top"), [([], 10), (["--top", "3"], 3), (["--top", "0"], 0), (["-j"], 0), (["-j", "--top", "5"], 5)]
)
def test_json_has_all_stacks_and_text_the_first_ten(words: list[str], top: int, traced: list[tuple[Any, ...]]) -> None:
    assert main(["stacks", "-o", os.devnull, "-p", str(os.getpid()), "--min", "2ms", "--user", *words]) == 0
    ((((flow, output),), _),) = traced
    assert (output._wanted if "-j" in words else output._view.wanted).top == top
    assert (flow._options.min_ns, flow._options.wanted["pid"], flow._options.user) == (2_000_000, os.getpid(), True)


@pytest.mark.parametrize("watched", ["1ms", "2h", "x"])
def test_doctor_watches_neither_for_no_time_nor_for_ever(watched: str) -> None:
    with pytest.raises(UsageError):
        main(["doctor", "--watch", watched])


def test_doctor_watches_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wptrace.kernel.privileges.effective", lambda: {"CAP_BPF", "CAP_PERFMON"})
    with pytest.raises(NotPermittedError, match="--watch needs CAP_SYS_ADMIN"):
        main(["doctor", "--watch", "1s"])


@pytest.mark.parametrize("command", ["net", "mem"])
def test_a_short_name_has_definitions_of_its_own(command: str, traced: list[tuple[Any, ...]]) -> None:
    with pytest.raises(UsageError, match="invalid choice: 'block'"):
        main([command, "--what", "block"])
    with pytest.raises(UsageError, match="--total makes one row"):
        main([command, "--total", "--by", "device"])
