# SPDX-License-Identifier: Apache-2.0
"""Tests that need no root and no BPF."""

from __future__ import annotations

from hypothesis import settings

# A machine that does other work as well must not fail a test: examples have no deadline.
settings.register_profile("wptrace", deadline=None)
settings.load_profile("wptrace")
