# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.errors import UsageError
from wptrace.flows.iopf import device_named


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    (tmp_path / "bus" / "pci" / "devices" / "0000:75:00.0").mkdir(parents=True)
    (tmp_path / "devices" / "rootless").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("name", ["0000:75:00.0", "rootless"])
def test_a_device_of_a_bus_or_of_none(sys: Path, name: str) -> None:
    assert device_named(name, sys) == name


@pytest.mark.parametrize("name", ["0000:76:00.0", "", ".", "..", "*", "0000:75:00.?", "../bus", "/dev/null"])
def test_what_is_none(sys: Path, name: str) -> None:
    with pytest.raises(UsageError, match="there is no device"):
        device_named(name, sys)
