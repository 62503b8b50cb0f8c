# SPDX-License-Identifier: Apache-2.0
"""`wptrace net`: a short name of definitions that come along."""

from __future__ import annotations

import argparse

from wptrace.cli import flow

SUMMARY = "follow packets that are received and sent"

_NAMES = ("netrx", "nettx", "tcp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flow.add_tracing(parser, _NAMES)


def run(options: argparse.Namespace) -> int:
    return flow.run_short(options, _NAMES)
