# SPDX-License-Identifier: Apache-2.0
"""Walking the ids of BPF objects, without those that come or go meanwhile."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from wptrace.bpf import loaded
from wptrace.bpf.lib import Libbpf
from wptrace.errors import LibbpfError, NotPermittedError


class FakeCalls:
    """Objects by id: a descriptor, or a negative error number."""

    def __init__(self) -> None:
        self.objects: dict[int, int] = {}
        self.list_result = -errno.ENOENT

    def bpf_link_get_next_id(self, start: int, following: Any) -> int:
        later = [number for number in self.objects if number > start]
        if not later:
            return self.list_result
        following[0] = min(later)
        return 0

    def bpf_link_get_fd_by_id(self, number: int) -> int:
        return self.objects[number]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> FakeCalls:
    made = FakeCalls()
    fake = Libbpf()
    fake.lib = made
    monkeypatch.setattr(loaded, "libbpf", lambda: fake)
    return made


def opened() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def test_all_ids_are_walked_and_descriptors_closed(calls: FakeCalls) -> None:
    calls.objects = {3: opened(), 7: opened()}
    found = []
    for number, fd in loaded._each("link"):
        os.fstat(fd)
        found.append(number)
    assert found == [3, 7]
    for fd in calls.objects.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EAGAIN])
def test_what_goes_or_comes_meanwhile_is_left_out(calls: FakeCalls, error: int) -> None:
    """A link has an id before it can be opened."""
    calls.objects = {1: opened(), 2: -error, 3: opened()}
    assert [number for number, _ in loaded._each("link")] == [1, 3]


def test_what_is_forbidden_is_an_error(calls: FakeCalls) -> None:
    calls.objects = {1: -errno.EPERM}
    with pytest.raises(NotPermittedError, match="link 1 cannot be looked at"):
        list(loaded._each("link"))
    calls.objects, calls.list_result = {}, -errno.EINVAL
    with pytest.raises(LibbpfError, match="the links in the kernel cannot be listed"):
        list(loaded._each("link"))
