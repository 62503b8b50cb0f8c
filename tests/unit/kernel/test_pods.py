# SPDX-License-Identifier: Apache-2.0
"""Names of pods and containers, from folders as kubelet, docker and podman have them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.unit.model.test_cgroup import ID, UID
from wptrace.kernel.pods import Pod, container_name, containers, pods


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
