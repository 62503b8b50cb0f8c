# SPDX-License-Identifier: Apache-2.0
"""Operations of guests and requests of their host, joined."""
