#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what completes the words of `wptrace` in bash, zsh and fish, from its own parsers, by shtab.

packaging/completions.py FOLDER     a file there for each shell that this shtab knows
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import layout

sys.path.insert(0, str(layout.ROOT))

from wptrace.cli.main import command_names, parser
from wptrace.flows import discover
from wptrace.model.kind import TOTAL, names

SHELLS = ("bash", "zsh", "fish")

# A device may be given as a path too, and a cgroup by its path in sysfs.
_PREAMBLE: Any = {
    "bash": """\
_wptrace_devices() {
  case "$2" in
    /*) compgen -f -- "$2" ;;
    *) compgen -W "$(ls "$1" 2>/dev/null)" -- "$2" ;;
  esac
}
_wptrace_block() { _wptrace_devices /sys/class/block "$1"; }
_wptrace_pci() { _wptrace_devices /sys/bus/pci/devices "$1"; }
_wptrace_cgroup_dir() {
  case "$1" in
    /sys*) compgen -d -- "$1" ;;
    *) (cd /sys/fs/cgroup 2>/dev/null && compgen -d -- "${1#/}" | sed 's|^|/|') ;;
  esac
}
""",
    "zsh": """\
_wptrace_devices() {
  local -a found=($1/*(N:t))
  _alternative "devices:device:(${(j: :)${(@q)found}})" "files:file:_files"
}
_wptrace_block() { _wptrace_devices /sys/class/block }
_wptrace_pci() { _wptrace_devices /sys/bus/pci/devices }
_wptrace_cgroup_dir() { _files -W /sys/fs/cgroup -/ }
""",
    "fish": """\
function _wptrace_block
  ls /sys/class/block 2>/dev/null
  __fish_complete_path (commandline -ct)
end
function _wptrace_pci
  ls /sys/bus/pci/devices 2>/dev/null
end
function _wptrace_cgroup_dir
  set -l top /sys/fs/cgroup
  for found in $top/(string replace -r '^/(sys/fs/cgroup/?)?' '' -- (commandline -ct))*/
    string replace $top '' -- $found
  end
end
""",
}


def _function(name: str) -> dict[str, str]:
    return {"bash": name, "zsh": name, "fish": f"({name})"}


def completed(shtab: Any) -> argparse.ArgumentParser:
    """The whole command line, each argument with what completes it; only where it does not say it by its choices."""
    made = parser(command_names(), command_names())
    (commands,) = (action for action in made._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        stages = {stage: None for flow in discover() if flow.name == name for stage in (*names(flow.kinds), TOTAL)}
        for action in command._actions:
            if action.metavar == "STAGE":
                action.choices = list(stages)
                continue
            completes = _completes(name, action, shtab)
            if completes is not None:
                vars(action)["complete"] = completes
    return made


def _completes(command: str, action: argparse.Action, shtab: Any) -> Any:
    if action.metavar == "DEVICE":
        return _function("_wptrace_pci" if command == "iopf" else "_wptrace_block")
    if "--cgroup" in action.option_strings:
        return _function("_wptrace_cgroup_dir")
    if "--dir" in action.option_strings:
        return shtab.DIRECTORY
    return shtab.FILE if action.metavar in ("FILE", "PATH") else None


def write(folder: Path) -> list[str]:
    """The shells that this shtab knows."""
    try:
        import shtab
    except ImportError:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    made = completed(shtab)
    known = [shell for shell in SHELLS if shell in shtab.SUPPORTED_SHELLS]
    for shell in known:
        (folder / shell).write_text(shtab.complete(made, shell=shell, preamble=_PREAMBLE))
    # For make, which asks a shtab that is installed later.
    (folder / "made").touch()
    return known


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: packaging/completions.py FOLDER")
    made = write(Path(sys.argv[1]))
    lacking = [shell for shell in SHELLS if shell not in made]
    if lacking:
        which = "is no shtab" if not made else "is an old shtab"
        print(f"there are no completions for {', '.join(lacking)}: for {sys.executable} there {which}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
