# SPDX-License-Identifier: Apache-2.0
"""Commands that a trigger loads for a while.

Each runs in a process of its own: loading takes seconds, in which nobody would read the flows that are always traced.
The process writes its text to a pipe. Once the agent is gone, even by SIGKILL, the pipe hangs up and the command ends.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

from wptrace.agent.disk import Get
from wptrace.agent.trigger import Actions
from wptrace.engine.children import complaint_of, complaints_file, itself, own_environment
from wptrace.engine.dumps import created
from wptrace.engine.session import QuietConsumer
from wptrace.errors import WptraceError
from wptrace.kernel import cpus
from wptrace.model.units import duration
from wptrace.outputs.metrics import Loaded

_LOOKED_S = 0.25
_LOADING_S, _ENDING_S, _AT_CLOSE_S, _KILLED_S = 300.0, 60.0, 5.0, 1.0
_PIECE, _LONGEST_LINE = 1 << 16, 4096
_VERDICT = b"verdict: "
WITH_BUDGET = ("io", "flow")
"""Commands that can do less to keep a budget."""
RUNNING, DAILY, BUDGET, FAILED = "running", "daily", "budget", "failed"


class OnTrigger(NamedTuple):
    """A table of the configuration."""

    command: str
    settings: Mapping[str, Any]
    arguments: Sequence[str]
    """The settings as words of a command line."""
    for_s: float
    triggers: Sequence[str]
    """Triggers that load it; empty for all of them."""

    def is_loaded_by(self, trigger: str) -> bool:
        return not self.triggers or trigger in self.triggers


def _reading() -> tuple[int, int]:
    return cpus.busy_ns(), time.monotonic_ns()


class Ledger:
    """The CPU time of past runs that the budget does not cover yet."""

    def __init__(self, limit: float, reading: Callable[[], tuple[int, int]] = _reading) -> None:
        self.limit, self._reading = limit, reading
        self._owed_ns = 0.0
        self._last = reading()

    def add(self, seconds: float) -> None:
        self._owed_ns = self.owed_s() * 1e9 + seconds * 1e9

    def owed_s(self) -> float:
        """Subtract what the budget has allowed since the last call; as in model/budget.py, at least of one CPU."""
        before, self._last = self._last, self._reading()
        passed = max(now - then for now, then in zip(self._last, before))
        self._owed_ns = max(self._owed_ns - self.limit * passed, 0.0)
        return self._owed_ns / 1e9


class _Run:
    """A command that is being loaded, traces, or is to end."""

    def __init__(self, table: OnTrigger, trigger: str, path: Path, share: float, now: float) -> None:
        """Raise OSError if it cannot be run."""
        self.table, self.trigger, self.path = table, trigger, path
        self.until = now + _LOADING_S
        self.has_begun = self.is_ending = False
        self.size = 0
        self.why = ""
        """The reason for an early end."""
        self.verdict = ""
        self._line = b""
        self._complaints = complaints_file()
        words = [table.command, *table.arguments, f"--capture={path}"]
        if table.command in WITH_BUDGET:
            words.append(f"--budget={share * 100:.4g}%")
        self._text, written = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._text, False)
        try:
            self.process = subprocess.Popen(
                itself(*words),
                env=own_environment(),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=self._complaints,
                # A signal of the terminal is for the agent.
                start_new_session=True,
            )
        except OSError:
            os.close(self._text)
            self._complaints.close()
            raise
        finally:
            os.close(written)

    @property
    def what(self) -> str:
        return f"[on_trigger.{self.table.command}]"

    def read(self) -> bool:
        """Read its text, of which the verdict is kept; true if it has just begun to trace."""
        had_begun = self.has_begun
        with suppress(BlockingIOError):
            while piece := os.read(self._text, _PIECE):
                # The first words come once everything is attached.
                self.has_begun = True
                *lines, rest = (self._line + piece).split(b"\n")
                for line in lines:
                    if line.startswith(_VERDICT):
                        self.verdict = line[:_LONGEST_LINE].decode(errors="replace")
                self._line = rest[:_LONGEST_LINE]
        return self.has_begun and not had_begun

    def end(self, now: float, why: str = "") -> None:
        """Let it write what it has."""
        self.is_ending, self.why, self.until = True, why, now + _ENDING_S
        self.process.send_signal(signal.SIGTERM)

    def has_grown(self, get: Get[int]) -> None:
        """The size of its file is known."""
        with suppress(WptraceError):
            self.size = get()

    def kill(self) -> None:
        """Kill it. It is not waited for: while a disk does not answer, a process that writes to it does not end."""
        self.is_ending, self.until = True, math.inf
        self.process.kill()

    def close(self) -> str:
        """After its end: its complaint."""
        os.close(self._text)
        return complaint_of(self._complaints)


class _Slot:
    """The state of a table, which survives changes of its settings."""

    def __init__(self, table: OnTrigger) -> None:
        self.table: OnTrigger | None = table
        """None if it was removed while it runs."""
        self.run: _Run | None = None
        self.is_wanted = False
        """It is loaded as soon as its file is there."""
        self.runs = 0
        self.cpu_s = 0.0
        self.left_out: Counter[str] = Counter(dict.fromkeys((RUNNING, DAILY, BUDGET, FAILED), 0))


class Runs(QuietConsumer):
    """A consumer that loads commands and ends them."""

    def __init__(
        self,
        tables: Sequence[OnTrigger],
        actions: Actions,
        ledger: Ledger,
        changed: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """`changed` is called after a command was loaded or has ended."""
        self._actions, self._ledger, self._changed, self._say = actions, ledger, changed, say
        self._slots: dict[str, _Slot] = {}
        self._is_over = False
        self.share = 0.0
        """The budget of each command."""
        self.arm(tables)

    def arm(self, tables: Sequence[OnTrigger]) -> None:
        """Replace the tables. A command that runs goes on as it began."""
        wanted = {one.command: one for one in tables}
        for command, slot in list(self._slots.items()):
            slot.table = wanted.pop(command, None)
            self._forget(command)
        self._slots |= {command: _Slot(one) for command, one in wanted.items()}

    def _forget(self, command: str) -> None:
        slot = self._slots[command]
        if slot.table is None and slot.run is None and not slot.is_wanted:
            del self._slots[command]

    def keep_within(self, limit: float, share: float) -> None:
        """Change the budget: of everything, and of each command that is loaded from now on."""
        self._ledger.limit, self.share = limit, share

    @property
    def running(self) -> list[str]:
        return [
            f"{slot.run.table.command} by trigger {slot.run.trigger}"
            for slot in self._slots.values()
            if slot.run is not None
        ]

    @property
    def loaded(self) -> list[Loaded]:
        return [
            Loaded(command, slot.run is not None, slot.runs, slot.cpu_s, slot.left_out)
            for command, slot in self._slots.items()
        ]

    def fire(self, trigger: str, now: float) -> None:
        """Load what this trigger loads."""
        for slot in self._slots.values():
            if slot.table is not None and slot.table.is_loaded_by(trigger):
                self._load(slot, slot.table, trigger, now)

    def _load(self, slot: _Slot, table: OnTrigger, trigger: str, now: float) -> None:
        cause, why = self._hindrance(slot, now)
        if cause:
            self._leave_out(slot, table, trigger, cause, why)
            return
        slot.is_wanted = True
        folder = self._actions.room.folder
        self._actions.disk.do(lambda: created(folder), lambda get: self._begin(slot, table, trigger, get))

    def _leave_out(self, slot: _Slot, table: OnTrigger, trigger: str, cause: str, why: str) -> None:
        slot.left_out[cause] += 1
        self._say(f"trigger {trigger} does not load [on_trigger.{table.command}]: {why}")

    def _begin(self, slot: _Slot, table: OnTrigger, trigger: str, get: Get[Path]) -> None:
        """Its file is there."""
        slot.is_wanted = False
        try:
            path = get()
        except (WptraceError, OSError) as error:
            self._leave_out(slot, table, trigger, FAILED, str(error))
            return
        if slot.table is None or self._is_over:
            self._remove(path)
            self._forget(table.command)
            return
        now = time.monotonic()
        try:
            slot.run = _Run(table, trigger, path, self.share, now)
        except OSError as error:
            self._remove(path)
            self._leave_out(slot, table, trigger, FAILED, str(error))
            return
        slot.runs += 1
        self._actions.writing.add(path)
        self.due = now + _LOOKED_S
        self._changed()

    def _remove(self, path: Path) -> None:
        def unlink() -> None:
            with suppress(OSError):
                path.unlink()

        self._actions.disk.do(unlink, lambda get: None)

    def _hindrance(self, slot: _Slot, now: float) -> tuple[str, str]:
        """The cause, and in words; empty if there is none."""
        if slot.run is not None or slot.is_wanted:
            return RUNNING, "it is loaded already"
        if not self._actions.most(now):
            return DAILY, "the limit of dumps for 24 hours is reached (daily)"
        if owed := self._ledger.owed_s():
            return BUDGET, f"earlier runs took {duration(owed * 1e9)} of CPU that the budget does not cover yet"
        return "", ""

    def turn(self, now: float) -> None:
        for slot in list(self._slots.values()):
            if slot.run is not None:
                self._look(slot, slot.run, now)
        self.due = now + _LOOKED_S if self.running else math.inf

    def _look(self, slot: _Slot, run: _Run, now: float) -> None:
        if run.read() and not run.is_ending:
            run.until = now + run.table.for_s
            self._say(f"trigger {run.trigger} has loaded {run.what} for {duration(run.table.for_s * 1e9)}")
        if self._reaped(slot, run):
            self._ended(slot, run, now)
        elif now >= run.until and (run.is_ending or not run.has_begun):
            run.why = (run.why or "it did not end in time") if run.has_begun else "it was not loaded in time"
            run.kill()
        elif now >= run.until:
            run.end(now)
        elif not run.is_ending and run.size >= self._actions.most(now):
            run.end(now, "its file has reached the limit of the folder (keep, daily)")
        elif not self._actions.disk.is_busy:
            self._actions.disk.do(lambda: _size(run.path), run.has_grown)

    def _reaped(self, slot: _Slot, run: _Run) -> bool:
        before = _children_s()
        if run.process.poll() is None:
            return False
        seconds = _children_s() - before
        slot.cpu_s += seconds
        self._ledger.add(seconds)
        return True

    def _ended(self, slot: _Slot, run: _Run, now: float, page: bool = True) -> None:
        run.read()
        slot.run = None
        complaint, code = run.close(), run.process.returncode
        self._actions.writing.discard(run.path)
        if code:
            slot.left_out[FAILED] += 1
            # A command that was killed has given no reason, but it may have written notes.
            killed = f"it was killed ({_name(-code)})" if code < 0 else ""
            complaint = killed or complaint or f"it ended with {code}"
        if code and not run.has_begun:
            self._remove(run.path)
            self._say(f"{run.what} of trigger {run.trigger} failed: {run.why or complaint}")
        else:
            why = run.why or (complaint if code else "")
            more = [f"it ended early: {why}"] if why else []
            more += [run.verdict] if run.verdict else []
            self._say("; ".join([f"{run.what} of trigger {run.trigger} is in {run.path}", *more]))
            self._actions.keep(run.path, now, page)
        if slot.table is None:
            self._forget(run.table.command)
        self._changed()

    def end(self) -> None:
        """Let all of them end."""
        self._is_over = True
        now = time.monotonic()
        for slot in self._slots.values():
            if slot.run is not None and not slot.run.is_ending:
                slot.run.end(now, "the agent ended")

    def close(self) -> None:
        """Wait for them a moment; there are no pages any more."""
        self.end()
        until = time.monotonic() + _AT_CLOSE_S
        for slot in list(self._slots.values()):
            run = slot.run
            if run is None:
                continue
            while not self._reaped(slot, run):
                now = time.monotonic()
                if now >= until + _KILLED_S:
                    self._say(f"{run.what} of trigger {run.trigger} does not end")
                    run.close()
                    break
                if now >= until and run.until < math.inf:
                    run.kill()
                # The command ends only after its text was read.
                run.read()
                time.sleep(0.01)
            else:
                self._ended(slot, run, time.monotonic(), page=False)


def _name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
