# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.kernel import procfs

PACKAGE = Path(procfs.__file__).parent
# Everything that str.splitlines or bytes.splitlines takes for the end of a line.
ENDS = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", ENDS)
def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path, end: str) -> None:
    path = tmp_path / "status"
    name = f"Name:\ta{end}Tgid:\t1"
    path.write_bytes(f"{name}\nTgid:\t41\n\n".encode() + b"\xff\x85\n")
    assert procfs.lines(path) == [name.encode(), b"Tgid:\t41", b"", b"\xff\x85"]
    assert procfs.field(path, "Tgid") == "41"


def test_a_field(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_bytes(b"Tgid2:\t3\nEmpty:\nTgid: 41 42\n")
    assert [procfs.field(path, name) for name in ("Tgid", "Empty", "None")] == ["41", "", ""]


def test_no_text_of_the_kernel_is_split_at_more() -> None:
    """The owner of a name could end a line anywhere if `splitlines` of text or bytes were used."""
    assert [path.name for path in PACKAGE.glob("*.py") if "splitlines(" in path.read_text()] == []
