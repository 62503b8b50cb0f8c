# SPDX-License-Identifier: Apache-2.0
"""`wptrace net`: short for several shipped definitions."""

from __future__ import annotations

from wptrace.cli import flow

SUMMARY = "follow packets that are received and sent"

add_arguments, run = flow.short("netrx", "nettx", "tcp")
