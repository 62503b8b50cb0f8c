# SPDX-License-Identifier: Apache-2.0
"""The files of an installed wptrace, wherever it is put. Nothing but Python's own library is needed here."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ("x86_64", "arm64")
# Definitions of flows are read by `wptrace flow`, the others are parts of a report.
_PARTS = ("*.py", "*.toml", "*.css", "*.js")
COMPLETIONS = {
    "bash": "share/bash-completion/completions/wptrace",
    "zsh": "share/zsh/site-functions/_wptrace",
    "fish": "share/fish/vendor_completions.d/wptrace.fish",
}
"""Where each shell looks for what completes the words of a command, below a prefix."""


FIRST = """\
# Until the command itself is there, Ctrl-C just ends the process.
import _signal

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
"""
"""The first lines of each launcher, before Python looks for packages."""


class PackagingError(Exception):
    """One sentence of what is missing, or cannot be done."""


def version() -> str:
    """The one place that has it is wptrace/__init__.py, which is read and not run."""
    for node in ast.parse((ROOT / "wptrace/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise PackagingError("wptrace/__init__.py has no __version__")


def package(machines: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """The files of the package with the objects of these machines, each with its place in the package."""
    top = ROOT / "wptrace"
    for path in sorted((*(path for kind in _PARTS for path in top.rglob(kind)), top / "py.typed")):
        yield path, path.relative_to(top).as_posix()
    if not (top / "bpf/_libbpf.py").is_file():
        raise PackagingError("the binding to libbpf is not built: run make")
    for machine in machines:
        objects = sorted((top / "objects" / machine).glob("*.bpf.o"))
        # Every source has one: half of them is an installation that fails at its first command.
        lacking = _sources() - {path.name for path in objects}
        if lacking:
            raise PackagingError(f"wptrace/objects/{machine} lacks {', '.join(sorted(lacking))}: run make")
        for path in objects:
            yield path, path.relative_to(top).as_posix()


def _sources() -> set[str]:
    return {path.name.replace(".bpf.c", ".bpf.o") for path in (ROOT / "bpf_src").rglob("*.bpf.c")}


def manuals() -> list[Path]:
    return sorted((ROOT / "docs/man").glob("*.1"))


def licences() -> list[Path]:
    return sorted((ROOT / "LICENSES").glob("*.txt"))


def completions(made: Path) -> Iterator[tuple[Path, str]]:
    """Those that were made, with their places below a prefix."""
    for place in COMPLETIONS.values():
        if (made / place).is_file():
            yield made / place, place


UNITS = tuple(f"lib/systemd/system/{name}.service" for name in ("wptrace-agent", "wptrace-io"))
"""Below a prefix; systemd looks into /usr and /usr/local."""


def unit(place: str, prefix: str) -> bytes:
    """A service that runs the command of this prefix."""
    text = (ROOT / "packaging" / Path(place).name).read_text()
    return text.replace("/usr/bin/wptrace", f"{prefix}/bin/wptrace").encode()
