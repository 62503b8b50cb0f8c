# SPDX-License-Identifier: Apache-2.0
"""Commands other than io and doctor: bad command lines, and the flow that a good one starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.conftest import Handed
from tests.unit.outputs.samples import KIND, start
from wptrace.cli import flow as of_definitions
from wptrace.cli.main import main
from wptrace.errors import NotPermittedError, UsageError
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.sizes import SizesView
from wptrace.outputs.text.stacks import FoldedOutput, StacksView


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
    words: list[str], kinds: tuple[type, type | None], handed: Callable[..., Handed]
) -> None:
    flow, output, run_options = handed(*words, "-o", os.devnull, "0.5", "3", "--stats")
    assert flow.name == words[0]
    assert type(output) is kinds[0]
    assert kinds[1] is None or type(vars(output)["_view"]) is kinds[1]
    assert run_options[:3] == (0.5, 3, True)


@pytest.mark.parametrize(
    ("words", "top"), [([], 10), (["--top", "3"], 3), (["--top", "0"], 0), (["-j"], 0), (["-j", "--top", "5"], 5)]
)
def test_json_has_all_stacks_and_text_the_first_ten(words: list[str], top: int, handed: Callable[..., Handed]) -> None:
    pid = os.getpid()
    flow, output, _ = handed("stacks", "-o", os.devnull, "-p", str(pid), "--min", "2ms", "--user", *words)
    assert (output._wanted if "-j" in words else output._view.wanted).top == top
    assert (flow._options.min_ns, flow._options.wanted["pid"], flow._options.user) == (2_000_000, pid, True)


@pytest.mark.parametrize(("words", "top"), [([], 0), (["--top", "3"], 3)])
def test_folded_has_all_stacks_unless_few_are_wanted(words: list[str], top: int, handed: Callable[..., Handed]) -> None:
    _, output, _ = handed("stacks", "-o", os.devnull, "--folded", "time", *words)
    assert output._view.wanted.top == top


@pytest.mark.parametrize("watched", ["1ms", "2h", "x"])
def test_doctor_watches_neither_for_no_time_nor_for_ever(watched: str) -> None:
    with pytest.raises(UsageError):
        main(["doctor", "--watch", watched])


def test_doctor_watches_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wptrace.kernel.privileges.effective", lambda: {"CAP_BPF", "CAP_PERFMON"})
    with pytest.raises(NotPermittedError, match="--watch needs CAP_SYS_ADMIN"):
        main(["doctor", "--watch", "1s"])


@pytest.mark.parametrize("command", ["net", "mem"])
def test_a_short_name_has_definitions_of_its_own(command: str) -> None:
    with pytest.raises(UsageError, match="invalid choice: 'block'"):
        main([command, "--what", "block"])
    with pytest.raises(UsageError, match="--total makes one row"):
        main([command, "--total", "--by", "device"])


@pytest.mark.parametrize(("form", "expected"), [([], 1), (["-j"], 2)])
def test_what_several_flows_note_is_said_once(
    form: list[str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of JSON stands alone."""
    flows = [SimpleNamespace(name=name, view="objects", kinds=(KIND,)) for name in ("netrx", "nettx")]

    def runner(pairs: list[tuple[Any, Any]], options: object) -> None:
        for flow, output in pairs:
            output.start(start(notes=["of both", f"of {flow.name}"]))

    monkeypatch.setattr("wptrace.engine.run.run", runner)
    monkeypatch.setattr("wptrace.kernel.privileges.require_tracing", lambda: None)
    monkeypatch.setattr(of_definitions, "_flows", lambda *_: flows)
    shown = tmp_path / "shown"
    assert main(["net", "-o", str(shown), *form]) == 0
    words = shown.read_text()
    assert [words.count(f"of {whose}") for whose in ("both", "netrx", "nettx")] == [expected, 1, 1]
