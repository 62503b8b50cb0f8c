# SPDX-License-Identifier: Apache-2.0
"""wptrace follows one I/O request through the whole Linux kernel."""

__version__ = "0.2.0"
