# SPDX-License-Identifier: Apache-2.0
"""The flows: each is a module here, or a package."""

from __future__ import annotations

import importlib
import pkgutil

from wptrace.engine.flow import Flow


def discover() -> list[type[Flow]]:
    """All of them."""
    found = []
    for one in pkgutil.walk_packages(__path__, f"{__name__}."):
        kinds = vars(importlib.import_module(one.name)).values()
        found += [
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Flow) and kind.__module__ == one.name
        ]
    return found
