# SPDX-License-Identifier: Apache-2.0
"""Selection of a part of a capture, by labels of rows and fields of events. What has neither is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Callable, NamedTuple

from wptrace.model import kind as model
from wptrace.model.kind import ALL, Comm, Group, Kind, Task
from wptrace.model.report import Event


class Question(NamedTuple):
    """A field of rows or events that an option compares."""

    name: str
    words: str
    """The text for --help."""
    metavar: str
    labels: tuple[str, ...]
    """Types of labels that answer it."""
    fields: tuple[str, ...]
    """Fields of events, the first that is there."""
    holds: Callable[[Any, str], bool]
    repeatable: bool = False
    number: bool = False


def _same(found: Any, wanted: str) -> bool:
    return str(found) == wanted


def _of_task(name: str) -> Callable[[Any, str], bool]:
    def holds(found: Any, wanted: str) -> bool:
        if isinstance(found, (Task, Comm)):
            found = getattr(found, name, None)
        return _same(found, wanted)

    return holds


def _below(found: Any, wanted: str) -> bool:
    """The folder itself, or what lies below it."""
    folder = wanted.rstrip("/")
    return isinstance(found, str) and (found == folder or found.startswith(f"{folder}/"))


_has_comm = _of_task("comm")


@lru_cache(16)
def _kept(name: str) -> str:
    """The name of a thread as the kernel keeps it: its first 15 bytes. It is asked for at each event."""
    return os.fsdecode(os.fsencode(name)[:15])


def _of_name(found: Any, wanted: str) -> bool:
    return _has_comm(found, _kept(wanted))


def _in_cgroup(found: Any, wanted: str) -> bool:
    """Whether it is the cgroup or one below it, also without the slash at the begin of its path."""
    return _below(found, wanted) or _below(found, f"/{wanted}")


QUESTIONS = (
    Question(
        "dev", "only events of this device, by its name in the capture; repeatable", "DEVICE", (model.DEVICE,), (),
        lambda found, wanted: _same(found, wanted.removeprefix("/dev/")), repeatable=True,
    ),
    Question(
        "op", "only this operation: read, write, sync and so on; repeatable", "OP", (model.OPERATION,), (), _same,
        repeatable=True,
    ),
    Question("pid", "only events of this process", "PID", (model.TASK,), ("pid",), _of_task("pid"), number=True),
    Question("tid", "only events of this thread", "TID", (model.TASK,), ("tid",), _of_task("tid"), number=True),
    Question(
        "comm", "only events of threads with this name, its first 15 bytes", "NAME", (model.TASK, model.COMM),
        ("comm",), _of_name,
    ),
    Question(
        "cgroup", "only events of this cgroup and those below it", "PATH", (model.CGROUP,), ("cgroup",), _in_cgroup,
    ),
    Question("file", "only events on this file, by its path in the capture", "PATH", (), ("path",), _same),
    Question("dir", "only events on files below this directory", "PATH", (), ("path",), _below),
    Question("cpu", "only events of this CPU", "CPU", (model.CPU,), ("cpu",), _same, number=True),
)  # fmt: skip


class Selection:
    def __init__(self, wanted: Mapping[str, tuple[str, ...]], by: object = None) -> None:
        """Select by these values of questions, of which one has to match for each question.

        The capture has rows `by` such owners.
        """
        self._of_processes = by == "process"
        self._asked = [(one, wanted[one.name]) for one in QUESTIONS if one.name in wanted]

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def described(self) -> dict[str, Any]:
        """Return the selection as the first line of a trace has its filters."""
        found: dict[str, Any] = {}
        for one, values in self._asked:
            plain = [int(value) for value in values] if one.number else list(values)
            if one.name == "op":
                # A single operation is a word, as in the filters of a trace.
                found.update({"ops": plain} if len(plain) > 1 else {"op": plain[0]})
            else:
                found[one.name] = plain if one.repeatable else plain[0]
        return found

    def is_on(self, dev: str) -> bool:
        """Whether something of this device may be wanted."""
        return all(any(one.holds(dev, value) for value in values) for one, values in self._asked if one.name == "dev")

    def unanswered(self, kind: Kind) -> list[str]:
        """The questions that labels of a kind do not answer."""
        types = {label.type for label in kind.labels}
        return [one.name for one, _ in self._asked if not types & set(one.labels) or self._is_blind(one, types)]

    def _is_blind(self, one: Question, types: set[str]) -> bool:
        """Names alone do not distinguish processes, nor processes their threads."""
        if one.name == "tid" and self._of_processes:
            return True
        return one.name in ("pid", "tid") and model.TASK not in types

    def keeps(self, group: Group) -> bool:
        """A row whose labels answer all."""
        return not self.unanswered(group.kind) and all(
            any(one.holds(found, value) for found in _labels(one, group) for value in values)
            for one, values in self._asked
        )

    def has(self, event: Event) -> bool:
        """A LookupError where neither its labels nor its fields know."""
        for one, values in self._asked:
            found, holds = _found(one, event), one.holds
            for value in values:
                if holds(found, value):
                    break
            else:
                return False
        return True


def _labels(one: Question, group: Group) -> list[Any]:
    pairs = zip(group.kind.labels, group.values)
    return [value for label, value in pairs if label.type in one.labels and value is not ALL]


def _found(one: Question, event: Event) -> Any:
    for name in one.fields:
        if name in event.fields:
            return event.fields[name]
    found = _labels(one, event.group)
    if found:
        return found[0]
    # A request that nobody knows a file of is of none.
    if one.name in ("file", "dir") and "cpus" in event.fields:
        return None
    raise LookupError(one.name)
