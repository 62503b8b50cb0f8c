# SPDX-License-Identifier: Apache-2.0
"""Pages whose shell blocks are run from the top to the bottom, and whose outputs are compared with what comes.

A block of `sh` that stands before a block without a language made that one. What differs from run to run are figures:
a line of the page is there if the output has the same words in the same order, behind the line before.

In a guest, so that nothing of the machine is touched; with --write the page gets the lines of this run:

    python3 -m tests.lab run --kernel 6.12 --cpus 1 --icount=off --share $PWD/docs -- \\
        $PWD/.venv/bin/python -m tests.pages.page --write docs/recipes.md
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RUN = [ROOT / "docs" / "recipes.md", ROOT / "docs" / "tutorial.md"]
"""The pages that are run."""
LEFT_OUT = "..."
# A limit, not a measurement.
PATIENCE_S = 3000
_BLOCK = re.compile(r"^```sh\n(?P<script>.*?)^```\n(?:\n```\n(?P<shown>.*?)^```\n)?", re.M | re.S)


class Step(NamedTuple):
    script: str
    shown: str | None
    """The output of a step, as the page shows it."""


def steps(page: str) -> list[Step]:
    return [Step(found["script"], found["shown"]) for found in _BLOCK.finditer(page)]


def only(page: str, *titles: str) -> str:
    """Return these sections of a page."""
    return "".join(part for part in re.split(r"^(?=## )", page, flags=re.M) if part.splitlines()[0][3:] in titles)


def words(line: str) -> str:
    """Return a line without what may differ between runs: figures with units, bars, spaces, numbers of devices."""
    line = re.sub(r"[▏▎▍▌▋▊▉█|#-]+", " ", line)
    line = re.sub(r"\b(?:loop|dm-)\d+\b", "DISK", line)
    line = re.sub(r"\b0 lost", "none lost", line)
    # A sentence may be about one or several.
    line = re.sub(r"\b(operation|request|bio|owner)s\b", r"\1", line)
    line = re.sub(r"[\d,.:]*\d(?: ?(?:ns|us|ms|s|k|M|[KMG]iB|B)\b)?%?(?:/s)?", "N", line)
    line = re.sub(r"N(?: ?[kM]?/s| ?[KMG]iB/s| B/s)", "N", line)
    # The verdict only names parts of a stage that are large enough. The largest one is first.
    line = re.sub(r"(\): N [^,]*)(?:, N [^,]*)+$", r"\1", line)
    # Of a stage that took no time there are fewer figures.
    line = re.sub(r"(?:\s+N)+\s*$", " N", line)
    # What is several times as long is no percentage.
    line = re.sub(r"(?<=[ (])Nx", "+N", line)
    # A task that is preempted did not sleep before.
    line = line.replace(" after N of sleep", "")
    return " ".join(line.split())


def matching(shown: str, written: Sequence[str]) -> list[str | None]:
    """Return for each shown line the matching written line, or None."""
    found: list[str | None] = []
    at = 0
    known = [words(line) for line in written]
    for line in shown.splitlines():
        if line == LEFT_OUT or not line.strip():
            found.append(line)
            continue
        place = next((place for place in range(at, len(written)) if known[place] == words(line)), None)
        found.append(None if place is None else written[place])
        at = at if place is None else place + 1
    return found


def _command(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run(page: str, folder: Path) -> list[str]:
    """Run all steps in one shell and return the output of each. If one fails early, output is missing."""
    commands = folder / "bin"
    commands.mkdir()
    python = f"env PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -m"
    _command(commands / "wptrace", f'exec {python} wptrace "$@"')
    # Of PostgreSQL: `runuser -u postgres -- COMMAND`.
    _command(
        commands / "runuser",
        f'shift 3\nexec unshare --mount --propagation private {python} tests.pages.postgres "$@"',
    )
    # Guests have no udev, for which these tools would wait.
    lines = ["set -eu", "export DM_DISABLE_UDEV=1 MDADM_NO_UDEV=1", f"PATH={shlex.quote(str(commands))}:$PATH"]
    # dm-crypt waits a minute for its cipher's modules, which passes at once if idle time is skipped (ETIMEDOUT).
    lines += ["modprobe -a aesni_intel xts || true"]
    for number, step in enumerate(steps(page)):
        # In braces, not in parentheses, so that variables are kept for later steps.
        lines += ["{", step.script, f"}} >{folder}/{number}.out 2>&1"]
    script = folder / "page.sh"
    script.write_text("\n".join(lines) + "\n")
    work = folder / "work"
    work.mkdir()
    for linked in re.findall(r"\]\((\S+\.wpt)\)", page):
        shutil.copy(ROOT / "docs" / linked, work)
    # Into a file, because processes that it leaves running would hold a pipe open.
    with (folder / "errors").open("w") as errors:
        done = subprocess.run(
            ["bash", str(script)], cwd=work, stdin=subprocess.DEVNULL, stderr=errors, timeout=PATIENCE_S, check=False
        )
    written = []
    for number in range(len(steps(page))):
        out = folder / f"{number}.out"
        written.append(out.read_text(errors="replace") if out.exists() else "")
    if done.returncode:
        written[-1] += f"the shell ended with {done.returncode}: {(folder / 'errors').read_text()}"
    return written


def differences(page: str, written: Sequence[str]) -> list[str]:
    """Return the lines of the page that the run did not write."""
    found = []
    for step, text in zip(steps(page), written):
        if step.shown is None:
            continue
        lines = text.splitlines()
        for line, real in zip(step.shown.splitlines(), matching(step.shown, lines)):
            if real is None:
                found.append(f"{step.script.splitlines()[-1]}: no line as {line!r} in\n{text}")
    return found


def renewed(page: str, written: Sequence[str]) -> str:
    """Return the page with the lines of this run. A block that shows nothing yet gets all of them."""
    outputs = iter(written)

    def one(found: re.Match[str]) -> str:
        text = next(outputs)
        shown = found["shown"]
        if shown is None:
            return found[0]
        if not shown:
            lines = text.splitlines()
        else:
            pairs = zip(shown.splitlines(), matching(shown, text.splitlines()))
            lines = [line if real is None else real for line, real in pairs]
        return f"```sh\n{found['script']}```\n\n```\n" + "".join(f"{line}\n" for line in lines) + "```\n"

    return _BLOCK.sub(one, page)


def main() -> int:
    write = "--write" in sys.argv
    file = Path(sys.argv[-1])
    page = file.read_text()
    # If a page fails early, its mounts end with the guest.
    written = run(page, Path(tempfile.mkdtemp()))
    found = differences(page, written)
    print("\n".join(found))
    if write:
        file.write_text(renewed(page, written))
    return 0 if write or not found else 1


if __name__ == "__main__":
    sys.exit(main())
