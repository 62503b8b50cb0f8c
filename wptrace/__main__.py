# SPDX-License-Identifier: Apache-2.0
"""The entry point. Until the command itself is there, Ctrl-C just ends the process, which has nothing to tell yet."""

import signal

# As a job in the background that a shell started, it is ignored, and stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from wptrace.cli.main import run

if __name__ == "__main__":
    run()
