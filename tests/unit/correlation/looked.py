# SPDX-License-Identifier: Apache-2.0
"""Lists of a module that count how many of their elements are looked at: a clock would say what else went on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import pytest

_T = TypeVar("_T")


class Looked:
    def __init__(self, patch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Count for the lists that `module` makes by `list` and `sorted`."""
        self.count = 0
        looked = self

        class Counted(list[_T]):
            def __getitem__(self, at: Any) -> Any:
                found = super().__getitem__(at)
                looked.count += len(found) if isinstance(at, slice) else 1
                return found

            def __iter__(self) -> Iterator[_T]:
                looked.count += len(self)
                return super().__iter__()

        def arranged(given: Iterable[_T], **options: Any) -> list[_T]:
            return Counted(sorted(given, **options))

        patch.setattr(module, "list", Counted, raising=False)
        patch.setattr(module, "sorted", arranged, raising=False)
