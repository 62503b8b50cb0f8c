# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests against the schemas of Kubernetes, and the chart as helm renders it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.packages.installed import ROOT
from tests.packages.kubernetes import manifest
from wptrace import __version__
from wptrace.cli.main import main

CHART = ROOT / "contrib" / "helm" / "wptrace"
RELEASE = {"Namespace": "wptrace"}


def rendered() -> dict[str, Any]:
    """Render the chart as helm does with the default values: the templates only have fields and toJson."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def field(found: re.Match[str]) -> str:
        function, root, name = found.groups()
        value = {"Values": values, "Release": RELEASE}[root][name]
        return json.dumps(value) if function else str(value)

    made = {}
    for template in sorted((CHART / "templates").iterdir()):
        text = re.sub(r"\{\{ (toJson )?\.(Values|Release)\.(\w+) \}\}", field, template.read_text())
        assert "{{" not in text
        one = yaml.safe_load(text)
        made[one["kind"]] = one
    return made


def test_the_schemas_of_kubernetes_have_it() -> None:
    """Strictly, because Kubernetes would silently drop an unknown field."""
    latest = kubernetes_validate.latest_version()
    for one in (*manifest().values(), *rendered().values()):
        kubernetes_validate.validate(one, latest, strict=True)
    wrong = copy.deepcopy(manifest()["DaemonSet"])
    wrong["spec"]["template"]["spec"]["hostPids"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, latest, strict=True)


def test_the_chart_is_the_manifest() -> None:
    every = manifest()
    del every["Namespace"]
    assert rendered() == every


def test_every_value_is_used() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    assert set(re.findall(r"\.Values\.(\w+)", templates)) == set(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_chart_and_image_have_the_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (container,) = manifest()["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert {chart["version"], chart["appVersion"], container["image"].partition(":")[2]} == {__version__}


def test_the_agent_takes_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(manifest()["ConfigMap"]["data"]["agent.toml"])
    assert main(["agent", "--check", "-c", str(file)]) == 0
    assert "is valid and traces io" in capsys.readouterr().out


def test_what_is_mounted_is_read_only_but_for_the_state() -> None:
    pod = manifest()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {one["name"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert set(mounted) == {one["name"] for one in pod["volumes"]}
    assert [name for name, read_only in mounted.items() if not read_only] == ["state"]
