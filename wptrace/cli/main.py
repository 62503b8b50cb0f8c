# SPDX-License-Identifier: Apache-2.0
"""The command `wptrace`: finds the command's module, and turns every end into an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from wptrace import __version__
from wptrace.cli.options import joined
from wptrace.errors import NotPermittedError, UsageError, VerifierError, WptraceError

log = logging.getLogger("wptrace")

# Modules of this package that are not commands.
_OTHERS = {"main", "options", "recorder", "tracing"}


@lru_cache(maxsize=1)
def _width() -> int:
    """Return the width as shutil.get_terminal_size does, whose import takes as long as the rest of the command line."""
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch(r"[0-9]{1,6}", columns) and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


class Help(argparse.HelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"width": _width() - 2, **options})


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one sentence instead of a page of usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)

    @property
    def long_options(self) -> list[str]:
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        command = self.prog.partition(" ")[2]
        raise UsageError(f"{command}: {message}" if command else message, hint=f"{self.prog} --help")


def command_names() -> list[str]:
    """A command is a module here with SUMMARY, add_arguments and run; its name is the command's."""
    return sorted({path.stem for path in Path(__file__).parent.glob("[a-z]*.py")} - _OTHERS)


def parser(names: Sequence[str], whole: Sequence[str]) -> Parser:
    """The command line with these commands; those that are `whole` have their arguments, the others are only listed."""
    made = Parser(prog="wptrace", description="Follow I/O requests through the Linux kernel, stage by stage.")
    made.add_argument("--version", action="version", version=f"wptrace {__version__}")
    commands = made.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name in names:
        module = importlib.import_module(f"wptrace.cli.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        if name in whole:
            module.add_arguments(command)
        command.set_defaults(run=module.run)
        command.add_argument("-v", "--verbose", action="count", default=0, help="say more; twice: libbpf's debug log")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    words, workload = _parted(list(sys.argv[1:] if arguments is None else arguments))
    words = joined(words)
    if not words:
        hint = "wptrace --help lists them, wptrace io --help the options of that one"
        raise UsageError("name a command, such as io", hint)
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    known = command_names()
    asked = next((word for word in words if not word.startswith("-")), "")
    # Only the command that is run is imported. To list commands takes all of them, but no arguments and so no flows.
    options, unknown = parser([asked] if asked in known else known, [asked]).parse_known_args(words)
    unknown = _placed(options, unknown)
    if unknown:
        _refuse(options.command, unknown)
    if workload is not None:
        if "workload" not in options:
            raise UsageError(f"wptrace {options.command} does not run commands: only wptrace io takes one after --")
        if not workload:
            raise UsageError("name the command to run after --")
        options.workload = workload
    _log(options.verbose)
    if "WPTRACE_BPF_DIR" in os.environ:
        from wptrace.bpf.object import named_folder

        # Even if this command opens no object, as in a dry run, which says what would be done with them.
        named_folder()
    return int(options.run(options))


def _parted(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the arguments into those of wptrace and the command after the first `--`."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _placed(options: argparse.Namespace, words: list[str]) -> list[str]:
    """Without those that need not be there: argparse takes none of them that stand behind options and a first word."""
    left = list(words)
    for name in ("guest", "host", "interval", "count"):
        if left and not left[0].startswith("-") and getattr(options, name, "") is None:
            setattr(options, name, left.pop(0))
    return left


def _refuse(command: str, unknown: Sequence[str]) -> NoReturn:
    """Name the unknown options, without the words that follow them, or else the words that are too many."""
    with_its_options = Parser(prog=f"wptrace {command}")
    importlib.import_module(f"wptrace.cli.{command}").add_arguments(with_its_options)
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    meant = _meant(options[0], with_its_options.long_options) if options else ""
    with_its_options.error(f"unrecognized arguments: {' '.join(options or unknown)}{meant}")


def _meant(option: str, known: Sequence[str]) -> str:
    """A suggestion to append to a message; empty if no option is similar. Two dashes are no similarity."""
    from difflib import get_close_matches  # Imported late: most starts do not need it.

    names = [name[2:] for name in known]
    wanted = option.lstrip("-")[:64]
    # argparse takes the beginning of a name for the whole, and --device means --dev.
    near = [name for name in names if wanted.startswith(name)] or get_close_matches(wanted, names, 1, 0.7)
    return f"; did you mean --{near[0]}?" if near else ""


def _log(verbosity: int) -> None:
    level = {0: logging.ERROR, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    logging.basicConfig(level=level, format="%(name)s: %(message)s", stream=sys.stderr)


def run() -> NoReturn:
    """The entry point."""
    _open_streams()
    _name_process()
    code = _ended()
    _flush_errors()
    sys.exit(code)


def _name_process() -> None:
    """`pkill -USR1 -x wptrace` finds it, whichever interpreter, shell or launcher started it."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text("wptrace")


def _ended() -> int:
    """Print the error and return its exit code."""
    try:
        with _interruptible():
            code = _main()
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard(sys.stdout)
        return 0
    except OSError as error:
        # Only what writes results may get here: a disk that is full, say.
        log.debug("where it failed", exc_info=True)
        _discard(sys.stdout)
        what = error.filename or "the output cannot be written"
        return _complain(WptraceError(f"{what}: {error.strerror or error}"))
    except WptraceError as error:
        return _complain(error)
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        # Before Python 3.12 one is made of what __set_name__ raises, and so of a Ctrl-C while a class is made.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 130
        raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C an exception while a command runs, so that output is kept; otherwise it ends the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_DFL:
        sys.unraisablehook = _unraisable
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Raise once: a second Ctrl-C does not wait for the first one to finish."""
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    """The import system and the garbage collector have callbacks, out of which no exception leads."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    sys.__unraisablehook__(error)


def _main() -> int:
    try:
        return main()
    except SystemExit as end:  # what argparse does after --help and --version
        return end.code if isinstance(end.code, int) else 0


def _open_streams() -> None:
    """Closed ones (`>&-`) would be None, and the next file to be opened would get their number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, closefd=False))
    # PYTHONUNBUFFERED, which is set in many containers, leaves them no buffer: a write that a signal interrupts loses
    # the rest of its text.
    for name, buffering in (("stdout", -1), ("stderr", 1)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.RawIOBase):
            made = os.fdopen(stream.fileno(), "w", buffering, stream.encoding, stream.errors, closefd=False)
            setattr(sys, name, made)
    # A character that the terminal's encoding lacks is no reason to end.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Drop what is left in the buffer; the interpreter would try to write it once more and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _flush_errors() -> None:
    """If standard error cannot be written, the exit code still reports the failure."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _complain(error: WptraceError) -> int:
    """Print an error and its hint, one line each; a name in it may have any character, but not end a line."""
    from wptrace.outputs.text.words import printable

    lines = [f"wptrace: {printable(error.message)}"]
    if isinstance(error, VerifierError) and error.log:
        lines += map(printable, error.log.splitlines())
    hint = error.hint
    if hint is None and isinstance(error, NotPermittedError):
        from wptrace.kernel.privileges import advice

        hint = advice()
    if hint:
        lines.append(f"hint: {printable(hint)}")
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr)
    return error.exit_code
