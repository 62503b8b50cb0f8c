# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of tracing: `make bench`, `python3 -m bench --help`."""
