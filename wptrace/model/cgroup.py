# SPDX-License-Identifier: Apache-2.0
"""The kind and the short name of a cgroup, read from its path."""

from __future__ import annotations

import re
from typing import NamedTuple

_ID = 12
"""The number of digits of an id that are shown, as its creator shows it."""
_POD_ID = 13
"""The number of characters of a pod's id, with a dash."""
_HEX = r"[0-9a-f]{64}"
_UUID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}|[0-9a-f]{32}"
_RUNTIMES = {"docker": "docker", "cri-containerd": "containerd", "crio": "cri-o", "libpod": "podman"}

_SCOPE = re.compile(rf"({'|'.join(_RUNTIMES)})-({_HEX})\.scope")
_CONTAINER = re.compile(_HEX)
_POD = re.compile(rf"(?:kubepods-(?:(?:besteffort|burstable)-)?)?pod({_UUID})(?:\.slice)?")
_GUEST = re.compile(r"machine-(qemu|lxc)-[0-9]+-(.+)\.scope")
_UNIT = re.compile(r"(.+)\.(service|scope|slice|socket|mount|swap)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


_UNIT_KINDS = ("service", "scope", "socket", "mount", "swap")
# Units of one process, one login or one command: each would be a name for ever.
_NUMBERED = re.compile(r"((?:run|session)-)[a-z]?[0-9a-f]+(?:-i[0-9]+)?(\.\w+)|(.*?[-_@])[0-9a-f]{12,}(\.\w+)")


class Made(NamedTuple):
    """The creator of a cgroup and its purpose; empty if unknown."""

    pod: str = ""
    """Its uid; of one that the node itself starts (a static pod) the hash of its file."""
    runtime: str = ""
    container: str = ""
    """The whole id."""
    guest: str = ""
    unit: str = ""
    """The outermost unit of systemd; a container or a login is named without numbers."""

    @property
    def short_container(self) -> str:
        return self.container[:_ID]


def shortened(pod: str) -> str:
    """The uid of a pod, as far as people need it."""
    return pod[:_POD_ID]


def made(path: str) -> Made:
    names = [name for name in path.split("/") if name]
    pod = _pod(names)
    # Levels below a container or guest belong to itself.
    found = (_machine(name, names[:at]) for at, name in enumerate(names))
    runtime, container, guest = next(filter(any, found), ("", "", ""))
    return Made(pod, runtime, container, guest, _outermost(names, pod, runtime, guest))


def _outermost(names: list[str], pod: str, runtime: str, guest: str) -> str:
    if pod:
        return "kubepods"
    if guest:
        return guest
    if runtime:
        return runtime
    units = [name for name in names if _UNIT.fullmatch(name)]
    first = next((name for name in units if name.rpartition(".")[2] in _UNIT_KINDS), units[-1] if units else "")
    return _NUMBERED.sub(lambda found: f"{found[1] or found[3]}*{found[2] or found[4]}", _plain(first))


def short(path: str) -> str:
    """A pod, a container, a guest, a unit of systemd; or what the cgroup is called, which is the end of its path."""
    names = [name for name in path.split("/") if name]
    if not names:
        return path
    pod = _pod(names)
    machines = ((at, _machine(names[at], names[:at])) for at in reversed(range(len(names))))
    at, (runtime, container, guest) = next((one for one in machines if any(one[1])), (-1, ("", "", "")))
    inside = f"{runtime} {container[:_ID]}" if container else guest
    if not pod and not inside:
        return _unit(names[-1])
    words = [f"pod {shortened(pod)}"] if pod else []
    words += [inside] if inside else []
    # A container or a guest may have cgroups of its own inside.
    if inside and names[at + 1 :]:
        words.append(_unit(names[-1]))
    return " ".join(words)


def _unit(name: str) -> str:
    unit = _UNIT.fullmatch(name)
    if unit is None:
        return name
    name = _plain(unit.group(1))
    return name if unit.group(2) == "service" else f"{name}.{unit.group(2)}"


def _plain(name: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), name)


def _pod(names: list[str]) -> str:
    pod = next((found.group(1) for name in names if (found := _POD.fullmatch(name))), "")
    # systemd has no dashes in names: each is a level of a slice.
    return pod.replace("_", "-")


def _machine(name: str, above: list[str]) -> tuple[str, str, str]:
    """Runtime and id of a container, and what a guest of libvirt is called; empty where it is none."""
    scope = _SCOPE.fullmatch(name)
    if scope is not None:
        return _RUNTIMES[scope.group(1)], scope.group(2), ""
    if _CONTAINER.fullmatch(name):
        # Without systemd, docker and the runtimes of pods have a folder of their own.
        return "docker" if "docker" in above else "container", name, ""
    guest = _GUEST.fullmatch(_plain(name))
    return "", "", f"{guest.group(1)} {guest.group(2)}" if guest is not None else ""
