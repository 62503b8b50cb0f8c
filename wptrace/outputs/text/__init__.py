# SPDX-License-Identifier: Apache-2.0
"""Text, by the views that are modules here."""

from __future__ import annotations

import importlib
from typing import TextIO

from wptrace.model.report import Output
from wptrace.outputs.registry import Wanted


def create(stream: TextIO, view: str, wanted: Wanted) -> Output:
    from wptrace.outputs.text.output import TextOutput

    return TextOutput(stream, importlib.import_module(f"wptrace.outputs.text.{view}").VIEW(wanted))
