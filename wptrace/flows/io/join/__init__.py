# SPDX-License-Identifier: Apache-2.0
"""What a guest asked for, with what its host did for it."""
