# SPDX-License-Identifier: Apache-2.0
"""Programs of other Debian releases, each in a root of its own as in a container, with one of our folders at /mnt."""

from __future__ import annotations

from pathlib import Path

# In a mount namespace of its own, the folder becomes /mnt of the root. Servers refuse to run as root.
_INSIDE = """
root=$0; folder=$1; shift
mkdir -p "$root/mnt"
mount --bind "$folder" "$root/mnt"
mount --rbind /dev "$root/dev"
exec chroot --userspec=65534:65534 "$root" "$@"
"""
NOBODY = 65534


def words(root: Path, folder: Path, *command: str) -> list[str]:
    """Return the command line. Its process becomes that of the command."""
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _INSIDE]
    return [*inside, str(root), str(folder), *command]
