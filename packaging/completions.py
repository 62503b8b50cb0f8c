#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what completes the words of `wptrace` in bash, zsh and fish, from its own parsers: for the first two by shtab.

packaging/completions.py PREFIX     a file below for each shell, where it looks
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layout

sys.path.insert(0, str(layout.ROOT))

from wptrace.cli.main import command_names, parser
from wptrace.engine.definition import shipped, unit
from wptrace.flows import discover
from wptrace.model.kind import TOTAL, names

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
_wptrace_definition() {
  compgen -W "$1" -- "$2"
  compgen -f -X '!*.toml' -- "$2"
  compgen -d -S / -- "$2"
}
_wptrace_flow() { _wptrace_definition "@FLOWS@" "$1"; }
_wptrace_unit() { _wptrace_definition "@UNITS@" "$1"; }
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
_wptrace_definition() {
  compadd "$@"
  _files -g '*.toml'
}
_wptrace_flow() { _wptrace_definition @FLOWS@ }
_wptrace_unit() { _wptrace_definition @UNITS@ }
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
function _wptrace_flow
  string split ' ' '@FLOWS@'
  __fish_complete_suffix .toml
end
function _wptrace_unit
  string split ' ' '@UNITS@'
  __fish_complete_suffix .toml
end
""",
}


def preamble() -> Any:
    """Each shell's functions, with the names of the definitions that come with wptrace."""
    known = {"@FLOWS@": " ".join(shipped.names()), "@UNITS@": " ".join(unit.names())}
    found = dict(_PREAMBLE)
    for stand_in, words in known.items():
        found = {shell: text.replace(stand_in, words) for shell, text in found.items()}
    return found


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
    if action.metavar == "NAME|FILE.toml":
        return _function("_wptrace_flow" if command == "flow" else "_wptrace_unit")
    if "--dir" in action.option_strings:
        return shtab.DIRECTORY
    return shtab.FILE if action.metavar in ("FILE", "PATH", "FILE.toml") else None


def fish(made: argparse.ArgumentParser, shtab: Any) -> str:
    """Only the newest releases of shtab know fish, whose completions are a line for each option."""
    (commands,) = (action for action in made._actions if isinstance(action, argparse._SubParsersAction))
    words = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    lines = [preamble()["fish"], "complete -c wptrace -f", *_fish_options("__fish_use_subcommand", made, shtab)]
    for name, command in commands.choices.items():
        lines.append(f"complete -c wptrace -n __fish_use_subcommand -a {name} -d {_quoted(words[name])}")
        lines += _fish_options(f"'__fish_seen_subcommand_from {name}'", command, shtab)
    return "\n".join((*lines, ""))


def _fish_options(when: str, command: argparse.ArgumentParser, shtab: Any) -> Iterator[str]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        completes = getattr(action, "complete", {})
        is_file = completes == shtab.FILE
        wanted = " ".join(map(str, action.choices or ())) or completes.get("fish", "")
        names = "".join(f" -{'l' if one.startswith('--') else 's'} {one.strip('-')}" for one in action.option_strings)
        takes = "" if action.nargs == 0 else " -r" if names else ""
        if is_file:
            takes += " -F"
        elif wanted:
            takes += f" -f -a {_quoted(wanted)}"
        if names or wanted or takes:
            text = f" -d {_quoted((action.help or '').replace('%%', '%'))}" if names else ""
            yield f"complete -c wptrace -n {when}{names}{takes}{text}"


def _quoted(text: str) -> str:
    """Quote a word for fish, where only a backslash and an apostrophe are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def write(prefix: Path) -> bool:
    """Whether there is what makes them."""
    try:
        import shtab
    except ImportError:
        return False
    prefix.mkdir(parents=True, exist_ok=True)
    made = completed(shtab)
    texts = {shell: shtab.complete(made, shell=shell, preamble=preamble()) for shell in ("bash", "zsh")}
    texts["bash"] = texts["bash"].replace("-F _shtab_wptrace wptrace", "-F _wptrace wptrace")
    texts["fish"] = fish(made, shtab)
    for shell, place in layout.COMPLETIONS.items():
        (prefix / place).parent.mkdir(parents=True, exist_ok=True)
        (prefix / place).write_text(texts[shell])
    # For make, which asks a shtab that is installed later.
    (prefix / "made").touch()
    return True


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: packaging/completions.py PREFIX")
    if not write(Path(sys.argv[1])):
        lacking = ", ".join(layout.COMPLETIONS)
        print(f"there are no completions for {lacking}: for {sys.executable} there is no shtab", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
