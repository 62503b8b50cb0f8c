# SPDX-License-Identifier: Apache-2.0
"""The lab's command line."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn

from tests.lab import fetch, matrix, modules, qemu
from tests.lab.errors import GuestDiedError, LabError, UsageError
from tests.lab.guest import Guest, Sink, run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        options = parser().parse_args(arguments)
        return int(options.run(options))
    except GuestDiedError as error:
        if error.console:
            print(f"lab: the console ended with\n{error.console}", file=sys.stderr)
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter must not write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"lab: {error.filename or 'the lab'}: {error.strerror}", file=sys.stderr)
        return LabError.exit_code


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def parser() -> argparse.ArgumentParser:
    names = ", ".join(kernel.name for kernel in (*matrix.KERNELS, *matrix.OTHER_MACHINES))
    top = _Parser(prog="python3 -m tests.lab", description="Kernels to test on, and guests that run them.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    sub = commands.add_parser("run", help="run a command in a guest")
    sub.add_argument("--kernel", required=True, metavar="NAME", help=f"one of {names}")
    sub.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="KIND[=COUNT][:OPTIONS]",
        help="nvme, virtio or scsi; repeatable; OPTIONS are properties of QEMU's device",
    )
    sub.add_argument("--disk-size", default="256M", metavar="SIZE", help="of each disk (default 256M)")
    sub.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE[,OPTIONS]",
        help="of the next disk, instead of an empty one; OPTIONS are properties of QEMU's drive; repeatable",
    )
    sub.add_argument("--cpus", type=int, metavar="N", help="default 2; 1 with --icount")
    sub.add_argument("--memory", default="2G", metavar="SIZE", help="default 2G")
    sub.add_argument(
        "--icount",
        nargs="?",
        const="on",
        choices=("on", "off"),
        metavar="on|off",
        help="a clock that counts instructions; idle time passes (--icount) or is skipped (--icount=off)",
    )
    sub.add_argument("--timeout", default="600", metavar="SECONDS", help="default 600")
    sub.add_argument("--silence", metavar="SECONDS", help="give it up when it prints nothing for so long")
    sub.add_argument("--append", default="", metavar="WORDS", help="more for the kernel's command line")
    sub.add_argument(
        "--share",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a directory in which files that the guest writes stay; repeatable",
    )
    sub.add_argument("--console", type=Path, metavar="FILE", help="keep the guest's console")
    sub.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    sub.set_defaults(run=_run)

    sub = commands.add_parser("kernels", help="list the kernels")
    sub.set_defaults(run=_kernels)

    sub = commands.add_parser("fetch", help="bring kernels into the cache")
    sub.add_argument("--newer", action="store_true", help="ask for newer ones than those in the cache")
    sub.add_argument("kernel", nargs="*", metavar="KERNEL", help=f"one of {names}; default: those of this machine")
    sub.set_defaults(run=_fetch)

    sub = commands.add_parser("modules", help="build the tests' kernel modules")
    can = ", ".join(kernel.name for kernel in _with_modules())
    sub.add_argument("kernel", nargs="*", metavar="KERNEL", help=f"one of {can}; default: all of them")
    sub.set_defaults(run=_modules)
    return top


def _run(options: argparse.Namespace) -> int:
    guest = guest_from(options)
    result = run(guest, options.command, _sink(sys.stdout.buffer), _sink(sys.stderr.buffer))
    return result.code


def guest_from(options: argparse.Namespace) -> Guest:
    icount = options.icount or ""
    cpus = options.cpus if options.cpus is not None else (1 if icount else 2)
    if cpus < 1:
        raise UsageError(f"--cpus {cpus}: a guest needs at least one")
    if icount and cpus != 1:
        raise UsageError("--icount counts the instructions of one CPU: leave --cpus out")
    for directory in options.share:
        if not directory.is_dir():
            raise UsageError(f"--share {directory}: no such directory")
    if options.console and not options.console.absolute().parent.is_dir():
        raise UsageError(f"--console {options.console}: no such directory")
    if re.search(r"\s", "".join(str(directory.absolute()) for directory in options.share)):
        raise UsageError("--share: a path with blanks cannot be shared")
    disks = tuple(disk for text in options.disk for disk in qemu.parse_disk(text))
    if len(options.image) > len(disks):
        raise UsageError("--image: there are more of them than disks")
    return Guest(
        kernel=matrix.find(options.kernel),
        machine=qemu.Machine(cpus, _checked_size(options.memory), icount, options.append),
        disks=disks,
        disk_size=size(options.disk_size),
        images=tuple(map(qemu.parse_image, options.image)),
        timeout=seconds(options.timeout),
        silence=seconds(options.silence) if options.silence else 0.0,
        share=tuple(directory.absolute() for directory in options.share),
        console=options.console,
    )


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if not match or int(match[1]) == 0:
        raise UsageError(f"no size: {text!r} (as 256M or 2G)")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def _checked_size(text: str) -> str:
    """Check a size. QEMU takes a plain number for megabytes; here it is bytes, as everywhere."""
    return f"{size(text) >> 10}K"


def seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise UsageError(f"no time: {text!r} (seconds, as 600)")
    return value


def _sink(stream: BinaryIO) -> Sink:
    def write(data: bytes) -> None:
        stream.write(data)
        stream.flush()

    return write


def _kernels(_options: argparse.Namespace) -> int:
    rows = [("NAME", "SUITE", "PACKAGES", "IN CACHE")]
    for kernel in (*matrix.KERNELS, *matrix.OTHER_MACHINES):
        if kernel.running:
            rows.append((kernel.name, "-", "-", os.uname().release))
            continue
        found = fetch.present(kernel)
        rows.append(
            (
                kernel.name,
                found.suite if found else " ".join(kernel.suites),
                " ".join(kernel.package_names(found.release if found else "*")),
                found.release if found else "no",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0


def _fetch(options: argparse.Namespace) -> int:
    chosen = [matrix.find(name) for name in options.kernel] or list(matrix.KERNELS)
    for kernel in chosen:
        if not kernel.running:
            found = fetch.fetch(kernel, newer=options.newer)
            print(f"{kernel.name}  {found.release}  {found.suite}")
    return 0


def _with_modules() -> list[matrix.Kernel]:
    return [kernel for kernel in (*matrix.KERNELS, *matrix.OTHER_MACHINES) if kernel.headers]


def _modules(options: argparse.Namespace) -> int:
    chosen = [matrix.find(name) for name in options.kernel] or _with_modules()
    for kernel in chosen:
        print(f"{kernel.name}  {modules.build(kernel)}")
    return 0
