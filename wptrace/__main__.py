# SPDX-License-Identifier: Apache-2.0
"""The entry point. Until the command itself is there, Ctrl-C just ends the process, which has nothing to report yet."""

# Importing `signal` would import more first, and meanwhile Ctrl-C would be an exception; this is the module beneath it.
import _signal  # type: ignore[import-not-found]

# In a background job that a shell started, Ctrl-C is ignored, and stays so.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import sys

# An older Python may be the one that runs `-m wptrace` in a source tree.
if sys.version_info < (3, 9):  # noqa: UP036
    sys.exit("wptrace: it needs Python 3.9 or newer\nhint: python3.9 -m wptrace, or any later one")

from wptrace import collect_seldom

# Before the imports, which make many objects that stay.
collect_seldom()

from wptrace.cli.main import run  # noqa: E402 - see above

if __name__ == "__main__":
    run()
