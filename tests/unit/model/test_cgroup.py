# SPDX-License-Identifier: Apache-2.0
"""Short names of cgroups, from paths of systemd, docker, podman, containerd and CRI-O."""

from __future__ import annotations

import pytest

from wptrace.model.cgroup import Made, made, short

ID = "4fa1b2c3d4e5f60718293a4b5c6d7e8f4fa1b2c3d4e5f60718293a4b5c6d7e8f"
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "/"),
        ("/app", "app"),
        ("cgroup 77", "cgroup 77"),
        ("/system.slice/postgresql@16.service", "postgresql@16"),
        ("/system.slice/system-getty.slice", "system-getty.slice"),
        ("/system.slice/a\\x2db.service", "a-b"),
        ("/user.slice/user-1000.slice/session-2.scope", "session-2.scope"),
        (f"/system.slice/docker-{ID}.scope", "docker 4fa1b2c3d4e5"),
        (f"/docker/{ID}", "docker 4fa1b2c3d4e5"),
        (f"/machine.slice/libpod-{ID}.scope", "podman 4fa1b2c3d4e5"),
        (f"{SLICE}/cri-containerd-{ID}.scope", "pod 0f1e2d3c-4b5a containerd 4fa1b2c3d4e5"),
        (f"{SLICE}/crio-{ID}.scope", "pod 0f1e2d3c-4b5a cri-o 4fa1b2c3d4e5"),
        (SLICE, "pod 0f1e2d3c-4b5a"),
        (f"/kubepods/besteffort/pod{UID}/{ID}", "pod 0f1e2d3c-4b5a container 4fa1b2c3d4e5"),
        (
            f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
            "pod 0f1e2d3c-4b5a cri-o 4fa1b2c3d4e5",
        ),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman 4fa1b2c3d4e5 container"),
        (f"{SLICE}/cri-containerd-{ID}.scope/init", "pod 0f1e2d3c-4b5a containerd 4fa1b2c3d4e5 init"),
        (f"/docker/{ID}/system.slice/nginx.service", "docker 4fa1b2c3d4e5 nginx"),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb\x2dfront.scope", "qemu web-front"),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/emulator", "qemu web emulator"),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/vcpu0", "qemu web vcpu0"),
        (f"/system.slice/docker-{ID[:-1]}.scope", f"docker-{ID[:-1]}.scope"),
    ],
)
def test_short(path: str, name: str) -> None:
    assert short(path) == name


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", Made()),
        ("/system.slice/postgresql-14.service", Made(unit="postgresql-14.service")),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/vim.service", Made(unit="user@1000.service")),
        ("/user.slice/user-1000.slice/session-12.scope", Made(unit="session-*.scope")),
        ("/system.slice/run-u123.service", Made(unit="run-*.service")),
        ("/system.slice/run-p123-i456.scope", Made(unit="run-*.scope")),
        (f"/system.slice/job-{ID}.service", Made(unit="job-*.service")),
        ("/system.slice", Made(unit="system.slice")),
        (f"/system.slice/docker-{ID}.scope", Made("", "docker", ID, "", "docker")),
        (f"/machine.slice/libpod-{ID}.scope/container", Made("", "podman", ID, "", "podman")),
        (f"{SLICE}/cri-containerd-{ID}.scope", Made(UID, "containerd", ID, "", "kubepods")),
        (f"{SLICE}/crio-{ID}.scope/docker-{ID[::-1]}.scope", Made(UID, "cri-o", ID, "", "kubepods")),
        (f"/kubepods/burstable/pod{UID}/{ID}", Made(UID, "container", ID, "", "kubepods")),
        (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope/libvirt/vcpu0", Made("", "", "", "qemu web", "qemu web")),
    ],
)
def test_by_whom_it_was_made(path: str, found: Made) -> None:
    assert made(path) == found
