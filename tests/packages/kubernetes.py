# SPDX-License-Identifier: Apache-2.0
"""The manifests of the daemon set, by kind."""

from __future__ import annotations

from typing import Any

import yaml

from tests.packages.installed import ROOT

MANIFEST = ROOT / "contrib" / "kubernetes" / "daemonset.yaml"


def manifest() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}
