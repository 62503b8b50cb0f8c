# SPDX-License-Identifier: Apache-2.0
"""System calls by number: those that come to files, on each machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

# The numbers on x86_64 (arch/x86/entry/syscalls/syscall_64.tbl) and on aarch64 (include/uapi/asm-generic/unistd.h), or
# none there.
_MACHINES = ("x86_64", "aarch64")
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
    "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "fsync": (74, 82), "fdatasync": (75, 83), "sync_file_range": (277, 84), "msync": (26, 227), "sync": (162, 81),
    "syncfs": (306, 267), "io_uring_enter": (426, 426), "io_submit": (209, 2), "io_getevents": (208, 4),
    "io_pgetevents": (333, 292), "sendfile": (40, 71),
    "splice": (275, 76), "vmsplice": (278, 75), "tee": (276, 77), "copy_file_range": (326, 285), "execve": (59, 221),
    "execveat": (322, 281), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "creat": (85, None), "close": (3, 57),
    "close_range": (436, 436), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
    "symlinkat": (266, 36), "readlink": (89, None), "readlinkat": (267, 78), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "getdents": (78, None),
    "getdents64": (217, 61), "chdir": (80, 49), "mknod": (133, None), "mknodat": (259, 33), "utimensat": (280, 88),
    "getxattr": (191, 8), "setxattr": (188, 5), "lgetxattr": (192, 9), "fgetxattr": (193, 10),
    "listxattr": (194, 11), "removexattr": (197, 14), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "ioctl": (16, 29), "fcntl": (72, 25), "lseek": (8, 62), "readahead": (187, 213), "fadvise64": (221, 223),
    "mount": (165, 40), "umount2": (166, 39), "fsopen": (430, 430), "fsmount": (432, 432), "fsconfig": (431, 431),
    "move_mount": (429, 429), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "swapon": (167, 224), "swapoff": (168, 225), "exit": (60, 93), "exit_group": (231, 94),
    "finit_module": (313, 273), "init_module": (175, 105), "statfs": (137, 43), "mlock": (149, 228),
    "mlock2": (325, 284), "mlockall": (151, 230),
}  # fmt: skip


@cache
def numbers(machine: str = "") -> Mapping[str, int]:
    """Return the numbers by the kernel's names; empty for an unknown machine."""
    machine = machine or os.uname().machine
    if machine not in _MACHINES:
        return {}
    at = _MACHINES.index(machine)
    return {name: number for name, every in _NUMBERS.items() if (number := every[at]) is not None}


@cache
def names(machine: str = "") -> Mapping[int, str]:
    return {number: name for name, number in numbers(machine).items()}
