# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.objects.building import built


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The objects of the project, by `arch/name.bpf.o`."""
    return built(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="session")
def types_objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The object of types.bpf.c."""
    return built(tmp_path_factory.mktemp("types"), "BPF_SRC=tests/objects")
