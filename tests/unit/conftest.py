# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need no root and no BPF."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.thorough import cases
from wptrace.bpf.object import BpfObject, open_object
from wptrace.flows.io import calls

# Thousands of tests are no garbage: nothing is collected before all of them are there, and they are left out later.
gc.disable()

# Examples have no deadline, because a busy machine must not fail a test.
settings.register_profile("wptrace", deadline=None, max_examples=cases(100, 30))
settings.load_profile("wptrace")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _every_kernel_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count no system calls to choose a level at the start."""
    monkeypatch.setattr(calls, "are_all_that_is_left", lambda: False)


@pytest.fixture(scope="session")
def obj() -> Iterator[BpfObject]:
    """The object of the path flow, opened but not loaded, which needs no privilege."""
    with open_object("io_path") as found:
        yield found
