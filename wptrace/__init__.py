# SPDX-License-Identifier: Apache-2.0
"""wptrace follows one I/O request through the whole Linux kernel."""

import gc

__version__ = "0.2.0"


def collect_seldom() -> None:
    """Records are many small objects without cycles, so frequent garbage collections are a waste."""
    # Those of some batches of records. An older Python reads this file before it is refused, without `_` in numbers.
    gc.set_threshold(100 * 1000)
