# SPDX-License-Identifier: Apache-2.0
"""The system's libbpf: found, checked, and made to speak through Python's logging."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from typing import Any, NoReturn, cast

from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, VerifierError, WptraceError

log = logging.getLogger("wptrace.libbpf")

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_LOG_TAIL = 12
_PROGRAM = re.compile(r"prog '([^']+)': (?:BPF program load failed|-- BEGIN PROG LOAD LOG)")

# Advice for the common refusals.
_HINTS = (
    ("null-check it first", "this kernel hands module tracepoints pointers that may be null: check them first"),
    ("invalid CO-RE relocation", "a field or type that the program reads is not in this kernel"),
    ("unknown func", "this kernel lacks a helper that the program calls"),
    ("doesn't have", "the tracepoint or function has fewer arguments on this kernel"),
    ("too large", "the program exceeds the verifier's limit"),
    ("BPF_STX uses reserved fields", "this kernel lacks atomic operations that return a value (before 5.12)"),
)


# cffi frees a callback with its last reference, and libbpf keeps calling those that it was given.
_CALLBACKS: list[Any] = []


class Libbpf:
    """The opened library. `call` turns libbpf's error returns into exceptions."""

    def __init__(self, path: str | None = None) -> None:
        try:
            from wptrace.bpf import _libbpf
        except ImportError as error:
            if error.name == "_cffi_backend":
                raise WptraceError(
                    f"Python {sys.version_info.major}.{sys.version_info.minor} ({sys.executable}) has no cffi",
                    hint="install it (Debian, Ubuntu, Fedora: python3-cffi)",
                ) from error
            raise WptraceError(
                "the libbpf binding is not built", hint="run make in the source tree, or reinstall wptrace"
            ) from error
        self.ffi = cast("Any", _libbpf.ffi)
        self.path = path or os.environ.get("WPTRACE_LIBBPF") or "libbpf.so.1"
        try:
            self.lib = self.ffi.dlopen(self.path)
            major = self.lib.libbpf_major_version()
        except (OSError, AttributeError, self.ffi.error) as error:
            raise LibbpfError(_why_no_libbpf(self.ffi, self.path), hint=_INSTALL) from error
        self.version: tuple[int, int] = (major, self.lib.libbpf_minor_version())
        if self.version < (1, 0):
            raise LibbpfError(f"{self.path} is libbpf {major}.{self.version[1]}; 1.0 or newer is needed", _INSTALL)
        self.recent: deque[str] = deque(maxlen=64)
        self._interrupted = False
        self._printer = self.ffi.callback("int(int, const char *, void *)", self._print, onerror=self.failed)
        _CALLBACKS.append(self._printer)
        self.lib.libbpf_set_print(self._printer)

    def _print(self, level: int, form: Any, arguments: Any) -> int:
        severity = _LEVELS[level] if 0 <= level < len(_LEVELS) else logging.DEBUG
        if level != 0 and not log.isEnabledFor(severity):
            return 0
        text = self._format(form, arguments).rstrip("\n")
        if level == 0:
            self.recent.append(text)
        log.log(severity, "%s", text)
        return 0

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Take no messages where none is used: at debug level there is one for each place that libbpf relocates, and a
        call of Python takes longer than the relocation."""
        wanted = log.isEnabledFor(logging.DEBUG)
        self.lib.libbpf_set_print(self._printer if wanted else self.ffi.NULL)
        try:
            yield
        finally:
            self.lib.libbpf_set_print(self._printer)

    def failed(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """No exception leads through libbpf. Ctrl-C is one wherever Python runs next, which may be here."""
        if issubclass(kind, KeyboardInterrupt):
            self._interrupted = True
        else:
            log.error("a call from libbpf failed: %s", kind.__name__)

    def _interrupt(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _format(self, form: Any, arguments: Any) -> str:
        # vsnprintf uses its va_list up, and the length is known only after a first pass, so it gets a copy. A
        # va_list passed as an argument is a pointer to 24 (x86-64) or 32 (arm64) bytes.
        ffi = self.ffi
        spare = ffi.new("char[32]")
        ffi.memmove(spare, arguments, 32)
        size = self.lib.vsnprintf(ffi.NULL, 0, form, spare) + 1
        text = ffi.new("char[]", size)
        self.lib.vsnprintf(text, size, form, arguments)
        return bytes(ffi.string(text)).decode("utf-8", "replace")

    def trim(self) -> None:
        """Gives the system what libbpf freed, as the kernel's types that each load reads: more than all else here."""
        # Only glibc has this function.
        with suppress(AttributeError):
            self.lib.malloc_trim(0)

    @cached_property
    def sees_modules(self) -> bool:
        """Whether the kernel lists type information, by which libbpf finds that of modules: to CAP_SYS_ADMIN alone."""
        return bool(self.lib.bpf_btf_get_next_id(0, self.ffi.new("__u32 *")) not in (-errno.EPERM, -errno.EACCES))

    @property
    def cpus(self) -> int:
        """The number of possible CPUs, which is the number of values in an element of a per-CPU map."""
        return int(self.check(self.lib.libbpf_num_possible_cpus(), "the number of possible CPUs is unknown"))

    def check(self, result: int, what: str) -> int:
        """Returns `result`, or raises for a negative one."""
        self._interrupt()
        if result < 0:
            self.fail(-result, what)
        return result

    def pointer(self, result: Any, what: str) -> Any:
        """Returns `result`, or raises for NULL."""
        self._interrupt()
        if result == self.ffi.NULL:
            self.fail(self.ffi.errno, what)
        return result

    def fail(self, number: int, what: str) -> NoReturn:
        said = list(self.recent)
        self.recent.clear()
        for text in said:
            match = _PROGRAM.search(text)
            if match:
                raise _refusal(match.group(1), "\n".join(said), number)
        reason = os.strerror(number) if number < 4000 else "libbpf cannot read it"
        if number in (errno.EPERM, errno.EACCES):
            raise NotPermittedError(f"{what}: {reason}")
        detail = f" ({said[-1].replace('libbpf: ', '')})" if said else ""
        raise LibbpfError(f"{what}: {reason}{detail}", errno=number)


_INSTALL = "install libbpf 1.x (Debian: libbpf1; Fedora, RHEL: libbpf), or name one in WPTRACE_LIBBPF"


def _why_no_libbpf(ffi: Any, path: str) -> str:
    if path != "libbpf.so.1":
        return f"{path} cannot be opened as libbpf"
    try:
        ffi.dlopen("libbpf.so.0")
    except OSError:
        return "libbpf.so.1 is not installed"
    return "only libbpf.so.0 is installed; it is older than 1.0 and cannot read the type information of new kernels"


def _refusal(program: str, text: str, number: int) -> WptraceError:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("libbpf: ")]
    tail = "\n".join(lines[-_LOG_TAIL:])
    if not tail and number == errno.EPERM:
        # Refused before the verifier looked at it: a privilege or a policy of this kernel.
        return NotPermittedError(f"the kernel does not permit the program {program}", program=program)
    hint = next((hint for sign, hint in _HINTS if sign in text), "wptrace doctor shows which ways work on this kernel")
    return VerifierError(program, tail, hint, number)


@lru_cache(maxsize=1)
def libbpf() -> Libbpf:
    """The system's libbpf, opened once."""
    return Libbpf()


def memory_of(fd: int) -> int:
    """Return the bytes of kernel memory of a program or map, as the kernel accounts for them."""
    with open(f"/proc/self/fdinfo/{fd}") as info:  # noqa: PTH123
        return next((int(line.split()[1]) for line in info if line.startswith("memlock:")), 0)


def require_kernel_btf() -> None:
    """Without the kernel's own type information nothing can be relocated."""
    if not os.path.exists("/sys/kernel/btf/vmlinux"):  # noqa: PTH110 - start-up: no pathlib import for one question
        raise UnsupportedError(
            "this kernel has no type information (/sys/kernel/btf/vmlinux)",
            hint="boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (RHEL 8.2+, Debian 11+, Ubuntu 20.10+ have it)",
        )
