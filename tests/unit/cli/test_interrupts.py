# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment ends the command without a traceback."""

from __future__ import annotations

import json
import signal

import pytest

from tests.thorough import cases
from tests.unit.cli.command import WPTRACE, run

# Runs the command in children. Each sends itself the signal at another call or return that Python reports to a
# profiler, from the first one in this package on. It must not import anything that the entry point imports.
MOMENTS = """
import os, runpy, sys
assert not {"signal", "enum"} & sys.modules.keys()
moments, first, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]

def profiler(at, seen, kill=os.kill, pid=os.getpid):
    def look(frame, event, argument):
        if not seen and not frame.f_code.co_filename.endswith("wptrace/__main__.py"):
            return
        seen.append(None)
        if len(seen) == at:
            kill(pid(), 2)
    return look

def child(at, told):
    sys.argv[1:] = words
    seen = []
    sys.setprofile(profiler(at, seen))
    try:
        runpy.run_module("wptrace", run_name="__main__")
    except SystemExit as end:
        sys.setprofile(None)
        if not at:
            os.write(told, str(len(seen)).encode())
        # Two runs need not have as many: this one was over before.
        elif len(seen) < at:
            os._exit(99)
        sys.exit(end.code)

def ended(at):
    reader, told = os.pipe()
    pid = os.fork()
    if not pid:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(told if at else nothing, 2)
        child(at, told)
    os.close(told)
    with open(reader, errors="replace") as file:
        text = file.read()
    return [at, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text]

import json
ended(0) # may compile what it imports
calls = int(ended(0)[2])
found = [ended(at) for at in range(first, calls, max(1, (calls - first) // moments))]
print(json.dumps({"calls": calls, "found": found}))
"""

# Without a `with`, an open file is closed silently, unless warnings are on.
PLAIN = WPTRACE[: WPTRACE.index("-W")]

# The call of the entry point's own code, and those that read and set the handler of Ctrl-C.
_OPENING = 5
_MOMENTS = cases(30, 10)
_OVER = 99


@pytest.mark.parametrize("words", [["--help"], ["io", "--dry-run"]], ids=" ".join)
def test_no_moment_of_the_command_has_a_traceback(words: list[str]) -> None:
    found = run([*PLAIN, "-c", MOMENTS], str(_MOMENTS), str(_OPENING + 1), *words)
    assert found.stderr == ""
    reported = json.loads(found.stdout)
    assert reported["calls"] > 10_000
    assert len(reported["found"]) >= _MOMENTS
    interrupted = [one for one in reported["found"] if one[1] != _OVER]
    assert len(interrupted) >= _MOMENTS // 2
    # Without privileges the command ends with a sentence, after which it can still be interrupted.
    assert not [one for one in interrupted if one[1] not in (130, -signal.SIGINT) or "Traceback" in one[2]]


_LOST = """
import os, signal, sys
class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
def command():
    Callback()
    print("it goes on")
    return 0
import wptrace.__main__, wptrace.cli.main
wptrace.cli.main.main = command
wptrace.cli.main.run()
"""


def test_it_is_not_lost_where_exceptions_lead_nowhere() -> None:
    found = run([*WPTRACE[:-2], "-c", _LOST])
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, "", "")
