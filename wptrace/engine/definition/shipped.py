# SPDX-License-Identifier: Apache-2.0
"""The definitions that come with wptrace, by name."""

from __future__ import annotations

from pathlib import Path

from wptrace.engine.definition.definition import Definition
from wptrace.engine.definition.faults import did_you_mean
from wptrace.engine.definition.reading import read
from wptrace.errors import UsageError

_HOME = Path(__file__).parents[2] / "flows"


def names() -> list[str]:
    return sorted(path.stem for path in _HOME.glob("*.toml"))


def find(text: str) -> Definition:
    """Find the definition that the user named: one of these, or a file."""
    if text in names():
        return read(_HOME / f"{text}.toml")
    if "/" in text or text.endswith(".toml"):
        return read(Path(text))
    hint = did_you_mean(text, names())
    raise UsageError(
        f"there is no flow {text!r}{hint}", hint="wptrace flow --list shows them; a file is named FILE.toml"
    )
