# SPDX-License-Identifier: Apache-2.0
"""The resource: this machine and this command."""

from __future__ import annotations

import os
import sys

from wptrace import __version__
from wptrace.kernel.clock import boot_id
from wptrace.model.report import Resource


def here() -> Resource:
    name = os.uname()
    return Resource(name.nodename, name.machine, boot_id(), __version__, ("wptrace", *sys.argv[1:]))
