# SPDX-License-Identifier: Apache-2.0
"""A file that is either complete or not there, whatever is put in its place."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.unit.outputs import path, samples
from wptrace.errors import UsageError, WptraceError
from wptrace.outputs import export
from wptrace.outputs.export.file import ExportFile
from wptrace.outputs.export.folder import ExportFolder
from wptrace.outputs.registry import Wanted


def left(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_it_is_there_with_commit_and_its_owner_alone_reads_it(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text("older")
    place.chmod(0o644)
    file = ExportFile(place)
    file.write(b"new")
    assert place.read_text() == "older"
    file.commit()
    assert place.read_text() == "new"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert left(tmp_path) == ["report.html"]


def test_what_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "report.html")
    file.write(b"half of it")
    file.discard()
    file.discard()
    assert left(tmp_path) == []


def test_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_text("kept")
    place = tmp_path / "report.html"
    place.symlink_to("kept")
    with pytest.raises(UsageError, match="is a link"):
        ExportFile(place)
    place.unlink()
    # Another user is the first with the name of the temporary file, or replaces the file itself.
    monkeypatch.setattr("wptrace.outputs.export.file.os.urandom", bytes)
    taken = tmp_path / f".wptrace-{bytes(8).hex()}"
    taken.symlink_to("kept")
    file = ExportFile(place)
    with pytest.raises(WptraceError, match="cannot be written"):
        file.write(b"new")
    taken.unlink()
    file.write(b"new")
    place.symlink_to("kept")
    file.commit()
    assert (tmp_path / "kept").read_text() == "kept"
    assert not place.is_symlink()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_link_in_the_place_of_its_folder_is_not_followed(tmp_path: Path, when: str) -> None:
    """Who owns the folder above it can put one there at any moment after the file was looked at."""
    place, kept = tmp_path / "theirs" / "report.html", tmp_path / "kept"
    place.parent.mkdir()
    kept.mkdir()
    (kept / "report.html").write_text("kept")
    file = ExportFile(place)
    if when == "meanwhile":
        file.write(b"new")
    place.parent.rename(tmp_path / "moved")
    place.parent.symlink_to(kept)
    file.write(b"new")
    file.commit()
    assert (left(kept), (kept / "report.html").read_text()) == (["report.html"], "kept")
    assert left(tmp_path / "moved") == ["report.html"]


def test_a_link_in_the_place_of_a_folder_that_is_filled_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "traces.otf2").write_text("kept")
    (tmp_path / "theirs").mkdir()
    file = ExportFolder(tmp_path / "theirs" / "out")
    folder = file.folder()
    (begun,) = (tmp_path / "theirs").iterdir()
    begun.rename(tmp_path / "moved")
    begun.symlink_to(kept)
    (folder / "traces.otf2").write_text("new")
    file.discard()
    assert (kept / "traces.otf2").read_text() == "kept"
    assert left(tmp_path / "moved") == ["traces.otf2"]


def test_it_leaves_no_descriptor(tmp_path: Path) -> None:
    before = left(Path("/proc/self/fd"))
    for target in (ExportFile, ExportFolder):
        for number in range(3):
            file = target(tmp_path / f"{target.__name__}{number}")
            if isinstance(file, ExportFolder):
                file.folder()
            if number:
                file.commit()
            file.discard()
    with pytest.raises(UsageError):
        ExportFile(tmp_path / "ExportFolder1")
    assert left(Path("/proc/self/fd")) == before


def test_the_name_it_has_until_then_cannot_be_predicted(tmp_path: Path) -> None:
    """Whoever sees the command could take a name made of it, and the trace would be lost at its end."""
    names = set()
    for _ in range(2):
        file = ExportFile(tmp_path / "report.html")
        file.write(b"half of it")
        names.update(left(tmp_path))
        file.discard()
    assert len(names) == 2


def test_its_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    place = tmp_path / ("x" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    file = ExportFile(place)
    file.write(b"new")
    file.commit()
    assert left(tmp_path) == [place.name]


@pytest.mark.parametrize("place", ["missing/report.html", "folder", "fifo", "/", "."])
def test_what_cannot_be_a_file_is_found_out_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WptraceError):
        ExportFile(tmp_path / place if place != "." else Path())


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ExportFile(tmp_path / "report.html")

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        flush = close = lambda self: None

    opened = file.open()
    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(WptraceError, match="cannot be written: No space left on device"):
        file.write(b"more")
    file.discard()
    opened.close()
    assert left(tmp_path) == []


def test_a_file_system_that_fails_at_the_end_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS and quotas refuse what was written as late as at the close."""
    place = tmp_path / "report.html"
    place.write_text("older")
    file = ExportFile(place)

    class Late:
        def close(self) -> None:
            raise OSError(122, "Disk quota exceeded")

        flush = write = lambda self, *_: None

    file.open().close()
    monkeypatch.setattr(file, "_file", Late())
    with pytest.raises(WptraceError, match="cannot be written: Disk quota exceeded"):
        file.commit()
    file.discard()
    assert (left(tmp_path), place.read_text()) == (["report.html"], "older")


@pytest.mark.parametrize("name", [name for name in export.FORMATS if name != "speedscope"])
def test_each_format_is_whole_with_a_summary_and_absent_without(tmp_path: Path, name: str) -> None:
    made = export.make(name, tmp_path / "out", "stages", Wanted())
    samples.play(made, path.start(), path.operation(), path.report())
    assert left(tmp_path) == []
    made = export.make(name, tmp_path / "out", "stages", Wanted())
    samples.play(made, path.start(), path.operation(), path.report(), path.report(kind="summary"))
    assert left(tmp_path) == ["out"]
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == (0o700 if name == "otf2" else 0o600)


@pytest.mark.parametrize(
    ("form", "module"),
    [("otf2", "otf2"), ("parquet", "pyarrow"), ("perfetto", "perfetto.protos.perfetto.trace.perfetto_trace_pb2")],
)
def test_a_library_that_is_missing_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(
        WptraceError, match=f"^{form} files need the Python package {package}, which is not installed$"
    ) as error:
        export.make(form, tmp_path / "x", "stages", Wanted())
    assert error.value.hint == f"pip install 'wptrace[{form}]'"
    assert left(tmp_path) == []
