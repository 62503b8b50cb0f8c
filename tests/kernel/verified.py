# SPDX-License-Identifier: Apache-2.0
"""The size of each program, and how many instructions each kernel's verifier processes for it (verified.json).

A program that has grown by more than a quarter fails tests/kernel/test_load.py until the new figures are written and
committed:

    python3 -m tests.kernel.verified [KERNEL...]        runs the test on these kernels, or all, and writes the figures
    python3 -m tests.kernel.verified --logs             takes them from the logs of the last `make test`

Both figures are the same for the same object and kernel. The size is what libbpf passes to the kernel, so it depends on
the compiler and not on the kernel. The second figure also depends on the kernel; it limits how large a program may
become, and is 0 if the kernel does not report it (before 5.16).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lab.matrix import KERNELS, OTHER_MACHINES, Kernel, find
from tests.run import DISKS, LOGS, PYTEST, ROOT

FILE = Path(__file__).with_suffix(".json")
RENEWING = "WPTRACE_TEST_RENEW"
"""A variable of the environment with which verified.json is not compared."""
# A quarter, and room for a few more instructions in a small program.
_GROWTH, _SLACK = 1.25, 32
_HEAD = "verifier on "
_LINE = re.compile(r"  (\w+/\w+) +(\d+) +(\d+)")


class Size(NamedTuple):
    instructions: int
    verified: int


Sizes = dict[str, Size]
"""Sizes by object and program, such as io_path/queue_tp_btf."""


def grown(kernel: str, sizes: Mapping[str, Size]) -> list[str]:
    """Return the programs that are larger than in verified.json, or missing there."""
    if os.environ.get(RENEWING):
        return []
    written = read().get(kernel, {})
    found = []
    for name, size in sizes.items():
        before = written.get(name)
        if before is None:
            found.append(f"{name} is not written down for {kernel}: {_HINT}")
        elif any(now > _GROWTH * then + _SLACK for now, then in zip(size, before)):
            found.append(
                f"{name} on {kernel} has {size.instructions} instructions, {size.verified} were verified;"
                f" written down are {before.instructions} and {before.verified}: {_HINT}"
            )
    return found


_HINT = "if that is meant, run python3 -m tests.kernel.verified"


def read() -> dict[str, Sizes]:
    written = json.loads(FILE.read_text())
    return {kernel: {name: Size(*size) for name, size in sizes.items()} for kernel, sizes in written.items()}


def write(every: Mapping[str, Sizes]) -> None:
    """Write one program a line, so that a diff shows each change."""
    order = [kernel.name for kernel in (*KERNELS, *OTHER_MACHINES)]
    blocks = []
    for kernel in sorted(every, key=order.index):
        lines = [f"    {json.dumps(name)}: {json.dumps(list(size))}" for name, size in sorted(every[kernel].items())]
        blocks.append(f"  {json.dumps(kernel)}: {{\n" + ",\n".join(lines) + "\n  }")
    FILE.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def listing(release: str, sizes: Mapping[str, Size]) -> str:
    """Return the lines that the tests print and `parse` reads."""
    lines = [f"{_HEAD}{release}: program, instructions, instructions verified"]
    lines += [f"  {name:<36}{size.instructions:>6}{size.verified:>8}" for name, size in sizes.items()]
    return "\n".join(lines)


def parse(text: str) -> Sizes:
    _, head, rest = text.partition(_HEAD)
    sizes: Sizes = {}
    for line in rest.splitlines()[1:] if head else []:
        found = _LINE.fullmatch(line.rstrip())
        if not found:
            break
        sizes[found[1]] = Size(int(found[2]), int(found[3]))
    return sizes


def main(words: Sequence[str]) -> int:
    from_logs = "--logs" in words
    names = [word for word in words if word != "--logs"]
    kernels = [find(name) for name in names] or [*KERNELS, *OTHER_MACHINES]
    every = read() if FILE.exists() else {}
    failed = False
    for kernel in kernels:
        text, whole = (_log(kernel), True) if from_logs else _run(kernel)
        sizes = parse(text)
        print(f"{kernel.name}: {len(sizes)} programs" if sizes else f"{kernel.name}: found nothing", flush=True)
        failed = failed or not sizes or not whole
        if sizes:
            # Programs that did not load keep their figures.
            every[kernel.name] = sizes if whole else {**every.get(kernel.name, {}), **sizes}
            write(every)
    return 1 if failed else 0


def _log(kernel: Kernel) -> str:
    try:
        return (LOGS / f"{kernel.name}.log").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _run(kernel: Kernel) -> tuple[str, bool]:
    """Return the output of the test, and whether it passed."""
    python = "python3" if kernel in OTHER_MACHINES else sys.executable
    test = [python, *PYTEST[1:], "tests/kernel/test_load.py", "-k", "test_every_program_loads"]
    if not kernel.running:
        test = [sys.executable, "-m", "tests.lab", "run", "--kernel", kernel.name, *DISKS, "--", *test]
    environment = {**os.environ, RENEWING: "1"}
    done = subprocess.run(test, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        print("\n".join(line[:300] for line in done.stdout.splitlines()[-15:]), file=sys.stderr)
    return done.stdout, not done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
