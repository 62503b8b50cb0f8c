# SPDX-License-Identifier: Apache-2.0
"""Names of owners in labels: a systemd unit, or namespace, pod and container."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wptrace.kernel import pods
from wptrace.kernel.pods import Pod, Volume
from wptrace.model.cgroup import Made, made, shortened
from wptrace.model.kind import NOBODY
from wptrace.outputs.metrics import Owners

LABELS: Mapping[str, tuple[str, ...]] = {
    "unit": ("unit",),
    "namespace": ("namespace",),
    "pod": ("namespace", "pod"),
    "container": ("namespace", "pod", "container"),
}
# The least time between two scans for names that were not found.
_READ_S = 5.0
# The size of each cache.
_MOST = 1 << 14
_NONE = Pod("", "")


class OwnerNames:
    """Names of cgroups by path. A removed cgroup keeps its name while it is in the cache."""

    def __init__(self, by: str, log: Path = pods.LOG, lib: Path = pods.LIB) -> None:
        self.labels = LABELS[by]
        self._by, self._log, self._lib = by, log, lib
        self._known: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._provisional: dict[str, tuple[str, ...]] = {}
        """Names to look up again after the next scan."""
        self._pods: dict[str, Pod] = {}
        self._containers: dict[str, tuple[Pod, str]] = {}
        self._volumes: list[Volume] = []
        self._again_s = self._volumes_again_s = 0.0

    def of(self, owner: Any) -> tuple[str, ...]:
        path = str(owner)
        found = self._known.get(path)
        if found is not None:
            self._known.move_to_end(path)
            return found
        found = self._provisional.get(path)
        if found is not None and time.monotonic() < self._again_s:
            return found
        found, lasts = self._find(path)
        if lasts:
            self._provisional.pop(path, None)
            self._known[path] = found
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        elif len(self._provisional) < _MOST:
            self._provisional[path] = found
        return found

    def owners(self, top: int) -> Owners:
        """So many of them, for metrics."""
        return Owners(self.labels, self.of, top, self.volumes)

    def volumes(self) -> list[tuple[str, ...]]:
        """Device and name of each volume, and whose it is: its namespace, or its namespace and pod."""
        if self._by == "unit":
            return []
        now = time.monotonic()
        if now >= self._volumes_again_s:
            self._volumes_again_s, self._volumes = now + _READ_S, pods.volumes()
        if any(one.pod not in self._pods for one in self._volumes):
            self._read()
        return sorted({(one.device, one.name, *self._owner_of(one)) for one in self._volumes})

    def _owner_of(self, volume: Volume) -> tuple[str, ...]:
        return self._pods.get(volume.pod, Pod("", shortened(volume.pod)))[: len(self.labels)]

    def _find(self, path: str) -> tuple[tuple[str, ...], bool]:
        """The name, and whether it is final."""
        one = made(path)
        if self._by == "unit":
            return (NOBODY if path == NOBODY else one.unit or "none",), True
        if one.pod:
            pod, container, lasts = self._of_pod(one)
        else:
            # Containers of docker or podman have no pod.
            named = pods.container_name(one.container, self._lib) if one.container and self._by == "container" else ""
            pod, container, lasts = _NONE, named or one.short_container, True
        return (pod.namespace, pod.name, container)[: len(self.labels)], lasts

    def _of_pod(self, one: Made) -> tuple[Pod, str, bool]:
        pod, (of, container) = self._pods.get(one.pod), self._containers.get(one.container, (_NONE, ""))
        if (pod is None and of is _NONE) or (self._by == "container" and one.container and not container):
            self._read()
            pod, (of, container) = self._pods.get(one.pod), self._containers.get(one.container, (_NONE, ""))
        lasts = (pod is not None or of is not _NONE) and (bool(container) or self._by != "container")
        found = pod or of
        named = found if found is not _NONE else Pod("", shortened(one.pod))
        return named, container or one.short_container, lasts

    def _read(self) -> None:
        now = time.monotonic()
        if now >= self._again_s:
            self._again_s = now + _READ_S
            self._provisional.clear()
            self._pods, self._containers = pods.pods(self._log), pods.containers(self._log)
