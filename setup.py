# SPDX-License-Identifier: Apache-2.0
"""Make BPF objects, the binding to libbpf and completions before they are packed: pyproject.toml cannot say that.

Where they cannot be made nothing is built: a wheel without them would install, and fail at its first command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithObjects(build_py):
    def run(self) -> None:
        # An editable installation uses the tree as it is, where make is run by hand.
        if not self.editable_mode:
            make()
            # Where pip puts it below its prefix, the manual and the shells find it.
            self.distribution.data_files = [("share/man/man1", sorted(map(str, Path("docs/man").glob("*.1"))))]
            made = Path("build/completions")
            for path in sorted(made.glob("share/**/*")):
                if path.is_file():
                    self.distribution.data_files.append((str(path.parent.relative_to(made)), [str(path)]))
        super().run()


def make() -> None:
    # Both machines, since the wheel is for any. MAKE=true is for who has made them already.
    command = [os.environ.get("MAKE", "make"), "all", "ARCHES=x86_64 arm64", f"PYTHON={sys.executable}"]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    except OSError as error:
        sys.exit(
            f"wptrace cannot be built: {command[0]}: {error.strerror}:"
            " install make, clang and libbpf-dev, or install a wheel, which has everything built"
        )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("make")]
        sys.exit(f"wptrace cannot be built: {said[-1] if said else f'make ended with {done.returncode}'}")


setup(cmdclass={"build_py": BuildWithObjects})
