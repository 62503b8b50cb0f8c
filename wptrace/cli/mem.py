# SPDX-License-Identifier: Apache-2.0
"""`wptrace mem`: a short name of definitions that come along."""

from __future__ import annotations

import argparse

from wptrace.cli import flow

SUMMARY = "follow what tasks wait for when memory is short"

_NAMES = ("reclaim", "compaction", "pagelife")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flow.add_tracing(parser, _NAMES)


def run(options: argparse.Namespace) -> int:
    return flow.run_short(options, _NAMES)
