# SPDX-License-Identifier: Apache-2.0
"""Short names of cgroups: what made a cgroup has written into its path what it is of."""

from __future__ import annotations

import re

_ID = 12
"""So many digits of an id are shown, as those who made it show it."""
_HEX = r"[0-9a-f]{64}"
_UUID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}|[0-9a-f]{32}"
_RUNTIMES = {"docker": "docker", "cri-containerd": "containerd", "crio": "cri-o", "libpod": "podman"}

_SCOPE = re.compile(rf"({'|'.join(_RUNTIMES)})-({_HEX})\.scope")
_CONTAINER = re.compile(_HEX)
_POD = re.compile(rf"(?:kubepods-(?:(?:besteffort|burstable)-)?)?pod({_UUID})(?:\.slice)?")
_UNIT = re.compile(r"(.+)\.(service|scope|slice|socket|mount|swap)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def short(path: str) -> str:
    """A pod, a container, a unit of systemd; or what the cgroup is called, which is the end of its path."""
    names = [name for name in path.split("/") if name]
    if not names:
        return path
    pod = next((found.group(1) for name in names if (found := _POD.fullmatch(name))), "")
    last = names[-1]
    said = _container(last, names[:-1])
    if pod:
        # systemd has no dashes in names: each is a level of a slice.
        pod = f"pod {pod.replace('_', '-')[:8]}"
        return f"{pod} {said}" if said else pod
    if said:
        return said
    unit = _UNIT.fullmatch(last)
    if unit is None:
        return last
    name = _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), unit.group(1))
    return name if unit.group(2) == "service" else f"{name}.{unit.group(2)}"


def _container(name: str, above: list[str]) -> str:
    scope = _SCOPE.fullmatch(name)
    if scope is not None:
        return f"{_RUNTIMES[scope.group(1)]} {scope.group(2)[:_ID]}"
    if _CONTAINER.fullmatch(name):
        # Where no systemd makes them, docker and the runtimes of pods have a folder of their own.
        runtime = "docker" if "docker" in above else "container"
        return f"{runtime} {name[:_ID]}"
    return ""
