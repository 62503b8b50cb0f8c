# SPDX-License-Identifier: Apache-2.0
"""Pages of the documents that are run: `make test-all`, and `python3 -m tests.run --all pages`."""
