# SPDX-License-Identifier: Apache-2.0
"""The parts of `wptrace io`: each is what one option adds, and only those that are asked for are imported."""
