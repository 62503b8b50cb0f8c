# SPDX-License-Identifier: Apache-2.0
"""Where results go: files that options name, and which of them may not be the same one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from wptrace.cli.options import named, stream
from wptrace.errors import UsageError, WptraceError


def options(output: Path | str | None) -> argparse.Namespace:
    return argparse.Namespace(output=None if output is None else str(output))


def test_a_file_is_made_or_cut(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        for before in (None, "something longer"):
            if before is not None:
                (tmp_path / "file").write_text(before)
            with stream(options(tmp_path / "file"), str(tmp_path / "other")) as file:
                file.write("\udcff")
            assert (tmp_path / "file").read_text() == "\\udcff"
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)


@pytest.mark.parametrize("there", [True, False])
def test_two_options_name_two_files(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "file"
    if there:
        path.write_text("kept")
        (tmp_path / "link").symlink_to(path)
        os.link(path, tmp_path / "hard")
    for other in ("file", "link", "hard") if there else ("file", "./file"):
        refused = pytest.raises(UsageError, match=r"are the same file: one would overwrite the other|has 2 hard links")
        with refused, stream(options(path), f"{tmp_path}/{other}"):
            raise AssertionError("it was opened")
    assert path.exists() is there
    assert not there or path.read_text() == "kept"


def test_what_is_thrown_away_is_not_mixed() -> None:
    with stream(options("/dev/null"), "/dev/null") as file:
        file.write("x")


@pytest.mark.parametrize("option", ["-o", "--capture", "--log"])
def test_a_file_has_a_name(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} needs the name of a file"):
        named("", option)


def test_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="-o needs the name of a file"), stream(options("")):
        raise AssertionError("it was opened")


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    refused = pytest.raises(WptraceError, match="no/file cannot be written: No such file")
    with refused, stream(options(tmp_path / "no" / "file")):
        raise AssertionError("it was opened")
