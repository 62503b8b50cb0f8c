# SPDX-License-Identifier: Apache-2.0
"""Optional libraries that some formats need."""

from __future__ import annotations

import importlib
from typing import Any

from wptrace.errors import WptraceError


def load(module: str, extra: str, needs: str = "", package: str = "") -> Any:
    """The module; that it is missing, or too old for another one, is one sentence. `needs` says what needs it."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        needs, package = needs or f"{extra} files need", package or module.partition(".")[0]
        why = "is not installed" if isinstance(error, ImportError) else f"cannot be loaded ({error})"
        raise WptraceError(
            f"{needs} the Python package {package}, which {why}", f"pip install 'wptrace[{extra}]'"
        ) from None
