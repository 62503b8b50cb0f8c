# SPDX-License-Identifier: Apache-2.0
"""The table in which programs find the rows of stacked devices."""

from __future__ import annotations

import pytest

from tests.unit.docs.pages import ROOT
from tests.unit.engine.test_devices import slot_of
from wptrace.bpf.object import BpfObject
from wptrace.errors import UsageError
from wptrace.flows.io.parts import layers
from wptrace.kernel import blockdev
from wptrace.kernel.blockdev import EVERYTHING, Extent, kernel_dev

HEADER = (ROOT / "bpf_src/block/path/layers.h").read_text()


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give dm-N the number 253:N."""
    monkeypatch.setattr(
        blockdev,
        "extent",
        lambda name: Extent(name, name, kernel_dev(253, int(name.partition("-")[2])), 0, EVERYTHING),
    )


def test_the_source_still_says_what_is_tested_here() -> None:
    assert "at = device_place(dev, LAYERS);" in HEADER
    assert "probe < DEVICE_PROBES" in HEADER
    assert "layers[(at + probe) & (LAYERS - 1)]" in HEADER


def test_every_layer_is_found_where_bpf_looks_for_it(obj: BpfObject) -> None:
    names = [f"dm-{number}" for number in range(100)]
    entries = layers.table(obj, names, names)
    assert [slot_of(entries, kernel_dev(253, number)) for number in range(100)] == list(range(100))
    assert slot_of(entries, kernel_dev(253, 100)) is None


def test_too_many_layers_are_refused(obj: BpfObject) -> None:
    names = [f"dm-{number}" for number in range(257)]
    with pytest.raises(UsageError, match="no room left for dm-"):
        layers.table(obj, names, names)
