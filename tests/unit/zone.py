# SPDX-License-Identifier: Apache-2.0
"""The time zone of this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def zone(name: str) -> Iterator[None]:
    """Set another time zone for a while."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", name)
            time.tzset()
            yield
    finally:
        time.tzset()
