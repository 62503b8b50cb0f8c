# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno

import pytest

from wptrace.kernel import blkstatus


@pytest.mark.parametrize(
    ("reported", "number"),
    [
        (0, 0),
        (-errno.EIO, errno.EIO),
        (-errno.ENOSPC, errno.ENOSPC),
        (1, errno.EOPNOTSUPP),
        (3, errno.ENOSPC),
        (7, errno.ENODATA),
        (10, errno.EIO),
        (250, errno.EIO),
    ],
)
def test_a_status_and_an_errno_are_reported_apart(reported: int, number: int) -> None:
    assert blkstatus.to_errno(reported) == number


def test_errors_have_names() -> None:
    assert blkstatus.name(errno.EIO) == "EIO"
    assert blkstatus.name(99999) == "99999"
