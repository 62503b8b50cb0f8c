# SPDX-License-Identifier: Apache-2.0
"""`python3 -m tests.lab`: kernels to test on, and guests that run them."""

from __future__ import annotations

import sys

from tests.lab.command import main

if __name__ == "__main__":
    sys.exit(main())
