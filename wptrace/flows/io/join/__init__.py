# SPDX-License-Identifier: Apache-2.0
"""The operations of a guest, with the requests that its host made for them."""
