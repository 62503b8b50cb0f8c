# SPDX-License-Identifier: Apache-2.0
"""Every error wptrace raises on purpose.

    WptraceError                 1  something failed
     +-- UsageError              2  the command line or an API argument is wrong
     +-- NotPermittedError       3  the caller lacks a privilege
     +-- UnsupportedError        4  this kernel or this libbpf cannot do it
          +-- LibbpfError        4  libbpf is missing, too old, or a call into it failed
               +-- VerifierError 4  the kernel refused a program
     +-- ConditionError          5  a condition holds under which the caller wanted a failure

Each class has the exit code of the command line; each error may carry a hint: what the reader can do about it.
"""

from __future__ import annotations

from typing import ClassVar, Final

REBUILD: Final = "rebuild it with make, or reinstall wptrace"
"""The hint where a file of wptrace itself is not what it should be."""


class WptraceError(Exception):
    """An error with one clear sentence, an exit code and, where there is one, a way out."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(WptraceError):
    exit_code = 2


class AbsentError(UsageError):
    """A device or cgroup is not there; it may come later."""


class NotPermittedError(WptraceError):
    """`program` names the BPF program that was refused, where it was one."""

    exit_code = 3

    def __init__(self, message: str, hint: str | None = None, program: str = "") -> None:
        super().__init__(message, hint)
        self.program = program


class UnsupportedError(WptraceError):
    exit_code = 4


class LibbpfError(UnsupportedError):
    """A call into libbpf failed; `errno` is the positive error number, 0 where there is none."""

    def __init__(self, message: str, hint: str | None = None, errno: int = 0) -> None:
        super().__init__(message, hint)
        self.errno = errno


class VerifierError(LibbpfError):
    """The kernel refused `program`; `log` holds the last lines of what the verifier said."""

    def __init__(self, program: str, log: str, hint: str | None = None, errno: int = 0) -> None:
        super().__init__(f"the kernel refused the program {program}", hint, errno)
        self.program = program
        self.log = log


class ConditionError(WptraceError):
    """A condition of --fail-if holds; otherwise the command succeeded."""

    exit_code = 5
