# SPDX-License-Identifier: Apache-2.0
"""Samples for `make test` of what `make test-all` tries at length."""

from __future__ import annotations

import os

import pytest

ALL = "WPTRACE_TESTS_ALL" in os.environ
only_all = pytest.mark.skipif(not ALL, reason="only make test-all runs it")


def cases(every: int, sample: int) -> int:
    return every if ALL else sample
