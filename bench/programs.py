# SPDX-License-Identifier: Apache-2.0
"""Counts, in a guest, the instructions that points in programs add to a call of an empty function."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_CALLS = 20_000
_SOURCE = """
#include <stdio.h>
#include <time.h>
__attribute__((noinline)) void work(const char *name) { __asm__ volatile("" : : "r"(name) : "memory"); }
int main(void)
{
	char name[64] = "some name of a command";
	struct timespec begin, end;
	long count;

	while (scanf("%ld", &count) == 1) {
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (long number = 0; number < count; number++)
			work(name);
		clock_gettime(CLOCK_MONOTONIC, &end);
		printf("%ld\\n", (end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec);
		fflush(stdout);
	}
	return 0;
}
"""
_BOTH = """
name = "calls"
key = "task"
[[point]]
name = "called"
at = "ufn:{program}:work"
{more}
[[point]]
name = "returned"
at = "uret:{program}:work"
"""
# The end is never reached.
_ENTRY = """
name = "calls"
key = "task"
[[point]]
name = "called"
at = "ufn:{program}:work"
repeat = "first"
{more}
[[point]]
name = "never"
at = "uret:{program}:main"
"""
_FLOWS = {
    "a function that its filter leaves out": (_ENTRY, 'filter = "task.pid == 1"'),
    "a function that is passed again": (_ENTRY, ""),
    "a function and its return": (_BOTH, ""),
    "the same by a text": (_BOTH, 'labels = [{ name = "name", value = "arg0:str" }]'),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        source = program.with_suffix(".c")
        source.write_text(_SOURCE)
        subprocess.run(["clang", "-O2", "-o", program, source], check=True)
        with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as traced:
            each(traced)
            before = each(traced)
            for name, (text, more) in _FLOWS.items():
                file = program.with_suffix(".toml")
                file.write_text(text.format(program=program, more=more))
                command = [sys.executable, "-m", "wptrace", "flow", str(file), "--json"]
                with subprocess.Popen(command, stdout=subprocess.PIPE) as tracer:
                    assert tracer.stdout is not None
                    tracer.stdout.readline()
                    each(traced)  # once, for what the first use creates
                    found = each(traced)
                    tracer.send_signal(signal.SIGINT)
                    summary = json.loads(tracer.stdout.read().splitlines()[-1])
                print(f"{name}: {found - before:+,.0f} instructions (Linux {os.uname().release})")
                if text == _BOTH:
                    assert summary["requests"]["finished"] == 2 * _CALLS, summary["requests"]
            traced.kill()


def each(program: subprocess.Popen[str]) -> float:
    assert program.stdin is not None
    assert program.stdout is not None
    print(_CALLS, file=program.stdin)
    return int(program.stdout.readline()) / _CALLS


if __name__ == "__main__":
    main()
