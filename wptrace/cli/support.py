# SPDX-License-Identifier: Apache-2.0
"""`wptrace support`."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from wptrace.cli import options as common
from wptrace.errors import UsageError, WptraceError

if TYPE_CHECKING:
    from wptrace.model.kind import Group
    from wptrace.model.report import Report, Start
    from wptrace.outputs.ndjson import NdjsonOutput

SUMMARY = "write what a bug report needs to one file, without names of files, processes and cgroups"

_CONFIG = Path("/etc/wptrace/agent.toml")
_LARGEST_HISTORY = 1 << 28
_MOST_FLOWS = 32
_README = """\
What wptrace support found on this machine. Look at it before you send it.

{there}
{absent}
{names}
"""
_ABOUT = {
    "versions.json": "versions of wptrace, its libraries and the kernel, and the settings that matter",
    "doctor.json": "what this kernel lets wptrace see (wptrace doctor --json)",
    "doctor.txt": "the same as text (wptrace doctor -v)",
    "config.json": "the configuration of the agent",
}
_OF_HISTORY = "the summary of the newest file of the agent's history"

Part = tuple[str, Callable[[], str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE.toml", help=f"the configuration of the agent (default: {_CONFIG}, if it exists)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file (default: wptrace-support-DATE-TIME.tar.gz in this directory)"
    )
    parser.add_argument(
        "--names", action="store_true", help="with names of files, processes and cgroups, and commands of triggers"
    )


def run(options: argparse.Namespace) -> int:
    from wptrace.outputs.export.file import ExportFile

    usual = time.strftime("wptrace-support-%Y%m%d-%H%M%S.tar.gz")
    path = common.named(usual if options.output is None else options.output, "-o")
    if path.exists():
        raise UsageError(f"{path} exists: name a file that does not")
    # Fail before the checks of doctor, which take long, if a file cannot be read or written.
    file = ExportFile(path)
    tables = _tables(options.config)
    try:
        file.open()
        found: dict[str, str] = {}
        absent: dict[str, str] = {}
        for name, content in _parts(tables, options.names):
            try:
                found[name] = content()
            except (WptraceError, OSError) as error:
                absent[name] = error.message if isinstance(error, WptraceError) else str(error.strerror)
        if tables is None:
            absent["config.json"] = f"there is no {_CONFIG}: wptrace support -c FILE.toml names another"
        file.write(_packed(path.name.partition(".")[0], {"README": _readme(found, absent, options.names), **found}))
        file.commit()
    finally:
        file.discard()
    print(f"wrote {path}: {', '.join(found)}")
    for name, why in absent.items():
        print(f"without {name}: {why}", file=sys.stderr)
    print(f"look at it before you send it: tar -xzOf {path} | less")
    return 0


def _tables(config: str | None) -> dict[str, Any] | None:
    """The configuration, unchecked: a wrong one is a reason to ask for help."""
    from wptrace.engine.definition import source

    if config is None and not _CONFIG.exists():
        return None
    path = _CONFIG if config is None else Path(config)
    return source.tables(source.read(path, "configuration of the agent"), str(path))


def _parts(tables: dict[str, Any] | None, names: bool) -> Iterator[Part]:
    from wptrace import __version__
    from wptrace.cli import doctor
    from wptrace.outputs import doctor as show
    from wptrace.outputs.json_line import encoded
    from wptrace.tools import support

    yield "versions.json", lambda: encoded(support.versions(__version__))
    diagnosis = doctor.diagnosed()
    yield "doctor.json", lambda: encoded(show.as_json(diagnosis, doctor.EXIT_FLOW))
    yield "doctor.txt", lambda: "\n".join(show.lines(diagnosis, True))
    if tables is None:
        return
    yield "config.json", lambda: encoded(tables if names else support.without_names(tables))
    try:
        folders = _histories(tables)
    except OSError as error:
        yield "history", partial(_unlisted, str(error.strerror))
        return
    for folder in folders:
        yield f"history-{folder.name}.json", partial(_summary, folder, names)


def _histories(tables: Mapping[str, Any]) -> list[Path]:
    """A folder of each flow."""
    from wptrace.agent.config import HISTORY

    history = tables.get(HISTORY.name)
    if not isinstance(history, dict):
        return []
    folder = Path(str(history.get("dir", HISTORY.keys[0].default)))
    return sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())[:_MOST_FLOWS]


def _unlisted(why: str) -> str:
    # Its path may be a name.
    raise WptraceError(f"the folder of the agent's history cannot be listed: {why[:1].lower()}{why[1:]}")


def _summary(folder: Path, names: bool) -> str:
    """The start and the summary of its newest file, as JSON lines."""
    from wptrace.capture.reader import Capture
    from wptrace.capture.selection import Selection
    from wptrace.outputs.ndjson import NdjsonOutput
    from wptrace.outputs.registry import Wanted as Shown
    from wptrace.tools.replay import Wanted, replay

    files = sorted(one for one in folder.iterdir() if one.name.endswith(".wpt"))
    if not files:
        raise WptraceError(f"{folder} has no captures")
    if (size := files[-1].lstat().st_size) > _LARGEST_HISTORY:
        raise WptraceError(f"{files[-1]} has {size >> 20} MiB; at most {_LARGEST_HISTORY >> 20} MiB are read")
    stream = io.StringIO()
    with closing(Capture(files[-1])) as capture:
        output = NdjsonOutput(stream, Shown(buckets=True))
        replay(capture, output if names else _Nameless(output), Wanted(Selection({}), singles=False))
    return stream.getvalue().rstrip("\n")


class _Nameless:
    """An output without what names files, owners and commands."""

    def __init__(self, output: NdjsonOutput) -> None:
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def start(self, start: Start) -> None:
        from wptrace.tools.support import HIDDEN

        self._output.start(start._replace(filters=dict.fromkeys(start.filters, HIDDEN), notes=[], file=""))

    def summary(self, report: Report) -> None:
        self._output.summary(
            report.only(filter(_is_nameless, report.cells))._replace(
                counters={group: counts for group, counts in report.counters.items() if _is_nameless(group)},
                verdict=None,
                incident=None,
                lists={},
            )
        )


def _is_nameless(group: Group) -> bool:
    from wptrace.model.kind import CALL, CPU, DEVICE, NUMBER, OPERATION

    return all(label.type in (CALL, CPU, DEVICE, NUMBER, OPERATION) for label in group.kind.labels)


def _readme(found: Mapping[str, str], absent: Mapping[str, str], names: bool) -> str:
    there = "\n".join(f"{name:<24} {_ABOUT.get(name, _OF_HISTORY)}" for name in found)
    lacking = "\n".join(f"{name:<24} is not here: {why}" for name, why in absent.items())
    said = "Names of files, processes, cgroups and commands are left out; wptrace support --names has them."
    return _README.format(there=there, absent=lacking, names="" if names else said)


def _packed(folder: str, found: Mapping[str, str]) -> bytes:
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in found.items():
            data = (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()
