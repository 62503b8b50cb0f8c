# SPDX-License-Identifier: Apache-2.0
"""Names of pods and containers, from folders of kubelet, docker and podman."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.kernel.procfs import Procfs
from tests.unit.kernel.sysfs import Sysfs
from tests.unit.model.test_cgroup import ID, UID
from wptrace.kernel import pods as kernel_pods
from wptrace.kernel.pods import Pod, Volume, container_name, containers, pods, volumes


def test_pods_and_containers_by_the_names_of_their_logs(tmp_path: Path) -> None:
    static = "0" * 32
    for name in (f"shop_web-7f9c_{UID}", f"kube-system_etcd-n1_{static}", "lost+found", f"a_b_c_{UID}", "x" * 200):
        (tmp_path / "pods" / name).mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    for name in (f"web-7f9c_shop_nginx-{ID}.log", f"web-7f9c_shop_my-app-{ID[::-1]}.log", f"x-{ID}.log", "y.log"):
        (tmp_path / "containers" / name).symlink_to("/nowhere")
    web = Pod("shop", "web-7f9c")
    assert pods(tmp_path) == {UID: web, static: Pod("kube-system", "etcd-n1")}
    assert containers(tmp_path) == {ID: (web, "nginx"), ID[::-1]: (web, "my-app")}


def test_where_there_are_none(tmp_path: Path) -> None:
    assert pods(tmp_path) == {}
    assert containers(tmp_path) == {}
    (tmp_path / "pods").write_text("x")
    assert pods(tmp_path) == {}
    assert container_name(ID, tmp_path) == container_name("../../etc/passwd", tmp_path) == ""


def test_docker_and_podman_say_it_in_their_state(tmp_path: Path) -> None:
    file = tmp_path / "docker" / "containers" / ID / "config.v2.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"Name": "/db"}))
    assert container_name(ID, tmp_path) == "db"
    state = tmp_path / "containers" / "storage" / "overlay-containers" / "containers.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps([{"id": "x"}, {"id": ID[::-1], "names": ["web"]}]))
    assert container_name(ID[::-1], tmp_path) == "web"
    for content in ("[]", "{", '{"Name": 5}', '{"Name": "a\\nb"}', "\xff" * 9, "[" * 100_000):
        file.write_text(content)
        assert container_name(ID, tmp_path) == ""
    file.unlink()
    file.symlink_to(state)
    assert container_name(ID, tmp_path) == ""
    file.unlink()
    os.mkfifo(file)
    assert container_name(ID, tmp_path) == ""


def machine(folder: Path) -> tuple[Procfs, Sysfs]:
    """Volumes on a disk, on a partition and on a stack of two, and other mounts."""
    proc, sys = Procfs(folder / "proc"), Sysfs(folder / "sys")
    sys.disk("sda", "8:0")
    sys.partition("sda1", "sda", "8:1", 10, 100)
    sys.disk("sdb", "8:16")
    sys.disk("dm-0", "253:0", queue=False, slaves=("sda1", "sdb"))
    below = f"/var/lib/kubelet/pods/{UID}/volumes"
    for number, (dev, point) in enumerate(
        (
            ("8:16", f"{below}/kubernetes.io~csi/pvc-1/mount"),
            ("8:1", f"{below}/kubernetes.io~local-volume/data"),
            ("253:0", f"/k0s/pods/{'0' * 32}/volumes/kubernetes.io~csi/lv/mount"),
            ("0:50", f"{below}/kubernetes.io~nfs/share"),
            ("8:16", f"{below}/kubernetes.io~csi/pvc-1/mount/sub"),
            ("8:16", f"{below}/kubernetes.io~csi/Pvc_1/mount"),
            ("8:16", "/mnt/pods/x/volumes/kubernetes.io~csi/pvc-2/mount"),
            ("8:99", f"{below}/kubernetes.io~csi/gone/mount"),
        )
    ):
        proc.mount(number, dev, point, "ext4", "/dev/x", "rw")
    return proc, sys


def test_volumes_by_where_they_are_mounted(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path)
    static = "0" * 32
    expected = [
        Volume("dm-0", "lv", static),
        Volume("sda", "data", UID),
        Volume("sda", "lv", static),
        Volume("sda1", "data", UID),
        Volume("sdb", "lv", static),
        Volume("sdb", "pvc-1", UID),
    ]
    assert volumes(proc.root, sys.root) == expected
    # The host's mounts, if they can be seen.
    (proc.root / "1").mkdir()
    (proc.root / "1" / "mountinfo").write_text("1 1 8:16 / / rw - ext4 /dev/sdb rw\n")
    assert volumes(proc.root, sys.root) == []


def test_there_is_an_end_to_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc, sys = machine(tmp_path)
    monkeypatch.setattr(kernel_pods, "_MOST_VOLUMES", 1)
    assert volumes(proc.root, sys.root) == [Volume("sdb", "pvc-1", UID)]
