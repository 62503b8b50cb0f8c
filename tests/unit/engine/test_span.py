# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from wptrace.engine.span import Span


def test_a_span_and_what_is_below() -> None:
    irq = Span("nvme0q1", 25, 27, "hardirq", {"cpu": 1})
    device = Span("nvme0n1", 20, 30, "device", children=[irq])
    queue = Span("none", 10, 15, "queue")
    request = Span("read", 10, 40, children=[queue, device])
    assert [span.name for span in request.walk()] == ["read", "none", "nvme0n1", "nvme0q1"]
    assert request.duration_ns == 30
    assert device.interval == (20, 30)
    assert request.uncovered() == [(15, 20), (30, 40)]
    assert irq.uncovered() == [(25, 27)]
    assert irq.attributes == {"cpu": 1}
    assert queue.attributes == {}
