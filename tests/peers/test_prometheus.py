# SPDX-License-Identifier: Apache-2.0
"""The rules of `contrib/`, evaluated by promtool: they fire where they should, and only there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab import peers
from tests.unit.docs.pages import blocks, section, tables

CONTRIB = Path(__file__).parents[2] / "contrib" / "prometheus"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CONTRIB, tmp_path / "prometheus"))


@pytest.mark.parametrize(
    "words",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules-test.yml")],
)
def test_promtool_takes_them(words: tuple[str, ...], folder: Path) -> None:
    *command, file = words
    done = subprocess.run(
        peers.command("promtool", *command, str(folder / file), recipe=peers.PROMETHEUS), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_of_the_page_are_right(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(blocks(section("agent.md", "## OTLP"), "yaml")[0])
    subprocess.run(peers.command("promtool", "check", "rules", str(rules), recipe=peers.PROMETHEUS), check=True)


def test_prometheus_finds_the_pods_of_the_page(tmp_path: Path) -> None:
    """Check it as far as promtool can without a cluster."""
    file = tmp_path / "prometheus.yml"
    (config,) = blocks(section("agent.md", "## Kubernetes"), "yaml")
    file.write_text(config)
    subprocess.run(peers.command("promtool", "check", "config", str(file), recipe=peers.PROMETHEUS), check=True)


def test_rules_ask_for_metrics_that_there_are() -> None:
    known = {
        name.replace("FLOW", "io")
        for row in tables(section("agent.md", "## Prometheus"))[0]
        for name in re.findall(r"wptrace_\w+", row[0])
    }
    asked = set(re.findall(r"(?<![:\w])wptrace_\w+", (CONTRIB / "rules.yml").read_text()))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= known
