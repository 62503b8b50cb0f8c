# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clean_root: in a root of its own, made by debootstrap: `make test-packages`")
