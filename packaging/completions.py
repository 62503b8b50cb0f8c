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

# A device may be given as a path too, and a cgroup by its path in sysfs. Unprivileged users name cgroups and files, and
# bash expands what it has inserted at the next TAB: it gets no name with a character that means something to it.
_PREAMBLE: Any = {
    "bash": """\
_wptrace_devices() {
  local found
  case "$2" in
    /*) compgen -f -- "$2" ;;
    *) for found in "$1"/"${2//[^[:alnum:]_.:-]/}"*; do [ -e "$found" ] && echo "${found##*/}"; done ;;
  esac
}
_wptrace_block() { _wptrace_devices /sys/class/block "$1"; }
_wptrace_pci() { _wptrace_devices /sys/bus/pci/devices "$1"; }
# With "dir" in its name shtab would have bash quote and expand what it prints as names of files.
_wptrace_cgroup() {
  local top=/sys/fs/cgroup/ word="${1#/}" found
  case "$1" in /sys*) top=/ ;; esac
  for found in "$top${word//[^[:alnum:]_.:@\\/-]/}"*/; do [ -d "$found" ] && echo "/${found#"$top"}"; done
}
_wptrace() {
  local one found=()
  _shtab_wptrace "$@"
  for one in "${COMPREPLY[@]}"; do
    case "$one" in
      *[^[:alnum:]_.:@%+=,/-]*) ;;
      *) found+=("$one") ;;
    esac
  done
  COMPREPLY=("${found[@]}")
  # The name of a cgroup goes on behind its slash.
  case "${COMPREPLY[0]}" in */) compopt -o nospace 2>/dev/null ;; esac
}
""",
    "zsh": """\
_wptrace_devices() {
  local -a found=($1/*(N:t))
  compadd -a found
  _files
}
_wptrace_block() { _wptrace_devices /sys/class/block }
_wptrace_pci() { _wptrace_devices /sys/bus/pci/devices }
_wptrace_cgroup() {
  [[ $PREFIX == /sys* ]] || compset -P /
  if [[ -n $IPREFIX ]]; then _files -W /sys/fs/cgroup -/; else _files -/; fi
}
""",
    "fish": """\
function _wptrace_block
  ls /sys/class/block 2>/dev/null
  __fish_complete_path (commandline -ct)
end
function _wptrace_pci
  ls /sys/bus/pci/devices 2>/dev/null
end
function _wptrace_cgroup
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
        return _function("_wptrace_cgroup")
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
        text = shtab.complete(made, shell=shell, preamble=_PREAMBLE)
        (folder / shell).write_text(text.replace("-F _shtab_wptrace wptrace", "-F _wptrace wptrace"))
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
