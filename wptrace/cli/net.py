# SPDX-License-Identifier: Apache-2.0
"""`wptrace net`: a short name of definitions that come along."""

from __future__ import annotations

from wptrace.cli import flow

SUMMARY = "follow packets that are received and sent"

add_arguments, run = flow.short("netrx", "nettx", "tcp")
