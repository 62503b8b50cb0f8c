# SPDX-License-Identifier: Apache-2.0
"""Errors of the lab, each with an exit code that differs from those of the command."""

from __future__ import annotations


class LabError(Exception):
    """The lab could not do what it was asked; its text is one sentence for a person."""

    exit_code = 1


class UsageError(LabError):
    """The request makes no sense."""

    exit_code = 2


class GuestDiedError(LabError):
    """The guest ended before the command: a panic, or a kernel or QEMU that does not start."""

    exit_code = 125

    def __init__(self, message: str, console: str = "", output: bytes = b"") -> None:
        super().__init__(message)
        self.console = console
        self.output = output


class GuestHungError(GuestDiedError):
    """The time limit ran out."""

    exit_code = 124
