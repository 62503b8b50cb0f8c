# SPDX-License-Identifier: Apache-2.0
"""A tool of another project that runs next to wptrace."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kernel.trace import PATIENCE, wait_until
from tests.lab import peers
from wptrace.bpf import loaded
from wptrace.bpf.kernel_btf import vmlinux

# What verifiers before 5.12 say about an atomic operation that returns a value; current tools contain such operations.
_TOO_NEW = re.compile(r"prog '(\w+)': BPF program load failed(?:.*\n)+?BPF_STX uses reserved fields")
_MISSING = re.compile(r"prog '\w+': failed to find kernel BTF type ID of '(\w+)'")


def _why_not(complaint: str) -> str:
    """Return what the tool needs that this kernel lacks; empty for any other complaint."""
    refused, missing = _TOO_NEW.search(complaint), _MISSING.search(complaint)
    if refused:
        return f"Linux 5.12: this kernel refuses its program {refused[1]}"
    if missing and not vmlinux().has_function(missing[1]):
        return f"the function {missing[1]}, which this kernel has not"
    return ""


@contextmanager
def running_peer(tool: str, *arguments: str, links: int) -> Iterator[subprocess.Popen[str]]:
    """Run a tool until it has attached `links` hooks, by the kernel's count: the tool's output is buffered."""
    command = peers.command(tool, *arguments)
    known = len(list(loaded.links()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait_until(
                lambda: len(list(loaded.links())) >= known + links or process.poll() is not None, f"{tool} to attach"
            )
            if process.poll() is not None:
                complaint = process.communicate()[0]
                needs = _why_not(complaint)
                assert needs, complaint
                pytest.skip(f"{tool} needs {needs}")
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """End the process and return its output."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE)[0]
