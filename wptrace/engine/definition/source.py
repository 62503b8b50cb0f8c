# SPDX-License-Identifier: Apache-2.0
"""Reads definitions and configurations as TOML, with limits on their size."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from wptrace.engine.definition.faults import DefinitionError, Fault, Place
from wptrace.errors import UnsupportedError, UsageError
from wptrace.kernel.files import OtherKindError, is_regular, open_to_read

MAX_SIZE = 32 * 1024
MAX_LINE = 512
"""The time of Python's TOML reader grows with the square of the number of parts of a key."""

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def plain(path: Path, most: int) -> bytes:
    """Read a limited part of a file. Special files are refused, as they could block."""
    try:
        descriptor, _ = open_to_read(path, is_regular)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most)
    except OtherKindError:
        raise UsageError(f"{path} is not a file") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "this is no name of a file"
        raise UsageError(f"{path} cannot be read: {said}") from error


def read(path: Path, what: str = "definition of a flow") -> str:
    """Read a text file; `what` it should be is for the error message."""
    data = plain(path, MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise UsageError(f"{path} is larger than {MAX_SIZE // 1024} KiB: it is not a {what}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise DefinitionError(str(path), [Fault("this is not UTF-8", Place(line, column))]) from error


def tables(text: str, file: str) -> dict[str, Any]:
    """Parse TOML."""
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        try:
            import tomli as tomllib  # type: ignore[no-redef,import-not-found,unused-ignore]
        except ImportError:
            raise UnsupportedError(
                "reading TOML needs Python 3.11 or newer", hint="install tomli (python3-tomli)"
            ) from None
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            fault = Fault(f"the line has {len(line)} characters; there is room for {MAX_LINE}", Place(number, 1))
            raise DefinitionError(file, [fault])
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DefinitionError(file, [Fault("it is nested too deeply")]) from None
    except ValueError as error:
        raise DefinitionError(file, [_fault(str(error), text)]) from None


def _fault(said: str, text: str) -> Fault:
    found = _PLACE.search(said)
    message = said[: found.start()] if found else said
    if found and found.group(1):
        place = Place(int(found.group(1)), int(found.group(2)))
    else:
        lines = text.split("\n")
        place = Place(len(lines), len(lines[-1]) + 1)
    message = re.sub(r"[^ -~]", "?", message)[:160]
    return Fault(message[:1].lower() + message[1:], place)
