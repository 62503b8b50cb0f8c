# SPDX-License-Identifier: Apache-2.0
"""What tracing costs, measured: `make bench`, `python3 -m bench --help`."""
