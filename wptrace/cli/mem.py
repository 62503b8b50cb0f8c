# SPDX-License-Identifier: Apache-2.0
"""`wptrace mem`: short for several shipped definitions."""

from __future__ import annotations

from wptrace.cli import flow

SUMMARY = "follow what tasks wait for when memory is short"

add_arguments, run = flow.short("reclaim", "compaction", "pagelife")
