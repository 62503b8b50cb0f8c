# SPDX-License-Identifier: Apache-2.0
"""`packaging/Containerfile`, whose lines run in clean roots instead of images."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.disks import loop_device
from tests.packages.installed import ROOT
from tests.packages.roots import Root, root, traces
from wptrace import __version__

FILE = ROOT / "packaging" / "Containerfile"


def lines() -> list[tuple[str, str]]:
    every = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in every)]


def test_nothing_of_it_takes_a_shell() -> None:
    for word, rest in lines():
        if word in ("RUN", "ENTRYPOINT", "CMD"):
            assert json.loads(rest), rest
    assert [rest for word, rest in lines() if word == "ENTRYPOINT"] == ['["wptrace"]']


def test_it_is_of_this_version() -> None:
    named = set(re.findall(r"wptrace[-:](\d+\.\d+\.\d+)", FILE.read_text()))
    assert named == {__version__}


@pytest.mark.clean_root
def test_its_last_stage_traces(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    subprocess.run([sys.executable, "packaging/dist.py", "--kind", "wheel", "--out", str(dist)], cwd=ROOT, check=True)
    places: dict[str, Root] = {}
    with ExitStack() as stack:
        for word, rest in lines():
            if word == "FROM":
                image, _, name = rest.partition(" AS ")
                (suite,) = re.findall(r"^docker\.io/library/debian:(\w+)-slim$", image)
                folder = tmp_path / (name or "last")
                folder.mkdir()
                here = places[folder.name] = stack.enter_context(root(suite, folder))
                here.configure_pip()
            elif word == "RUN":
                here.succeeds(*json.loads(rest), timeout=900)
            elif word == "COPY":
                *source, what, where = rest.split()
                if source:
                    (stage,) = source
                    shutil.copytree(
                        places[stage.removeprefix("--from=")].path / what[1:], here.path / where[1:], symlinks=True
                    )
                else:
                    shutil.copy(dist.parent / what, here.path / where[1:])
        (path,) = (rest.partition("=")[2] for word, rest in lines() if word == "ENV")
        command = f"{path.partition(':')[0]}/wptrace"
        assert here.succeeds(command, "--version") == f"wptrace {__version__}\n"
        here.succeeds("/opt/wptrace/bin/python3", "-c", "import opentelemetry.proto")
        with loop_device(tmp_path / "disk.img") as made:
            traces(here, command, made.path)
