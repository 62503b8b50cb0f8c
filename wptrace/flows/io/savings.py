# SPDX-License-Identifier: Apache-2.0
"""Savings of `wptrace io` to keep a budget, in this order (docs/budget.md)."""

from __future__ import annotations

from wptrace.model.budget import EACH, Saving, times_of

INTERFERENCE = Saving("interference", "interference")
FS = Saving("fs", "operations and page-cache hits")
SAMPLE = times_of("requests")
SAVINGS = (INTERFERENCE, EACH, FS, SAMPLE)
