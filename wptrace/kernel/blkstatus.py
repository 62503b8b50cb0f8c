# SPDX-License-Identifier: Apache-2.0
"""The status of a block request as an errno: 5.10 has a negative errno, 6.1 and later a blk_status_t."""

from __future__ import annotations

import errno

# include/linux/blk_types.h and block/blk-core.c (blk_errors); what is not here is an error all the same.
_ERRNO = {
    1: errno.EOPNOTSUPP,
    2: errno.ETIMEDOUT,
    3: errno.ENOSPC,
    4: errno.ENOLINK,
    5: errno.EREMOTEIO,
    6: errno.EBADE,
    7: errno.ENODATA,
    8: errno.EILSEQ,
    9: errno.ENOMEM,
    10: errno.EIO,
    12: errno.EAGAIN,
    13: errno.EBUSY,
}


def to_errno(error: int) -> int:
    """0 for success. An errno comes negative, a status positive, so the sign distinguishes them."""
    return -error if error <= 0 else _ERRNO.get(error, errno.EIO)


def name(number: int) -> str:
    return errno.errorcode.get(number, str(number))
