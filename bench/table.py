# SPDX-License-Identifier: Apache-2.0
"""The results as tables, printed and put into docs/overhead.md between its marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from bench import marks
from bench.instructions import disagreements, figures
from bench.tools import KERNEL_STAMPS, OWN_TIMES

DOCS = Path(__file__).resolve().parents[1] / "docs"
DOCUMENT = DOCS / "overhead.md"
MAN = DOCS / "man" / "wptrace-io.1"
_QUOTED = {"io", "io --interference", KERNEL_STAMPS, OWN_TIMES}
# Between these lines of it.
_BEGIN, _END = '.\\" python3 -m bench table --write\n', '.\\" end\n'
LOADS = {"inline": "inline", "late": "20 us", "hit": "page cache", "none": "no I/O"}

RATES = (1_000, 10_000, 100_000, 1_000_000)
INSTRUCTIONS_A_SECOND = 3e9
"""Of a CPU of 3 GHz that does one in each cycle."""
_COSTS = (KERNEL_STAMPS, "io", "io --interference", "io --slow 1s", "io --each --capture", "io --each")

Found = dict[str, Any]

# A program that is verified in less is not shown.
_SHORTEST_MS = 1.0
# Hooks that these loads do not reach.
_NOTHING = 15.0


def blocks(found: Found) -> dict[str, str]:
    """A text for each part that was measured."""
    makers: dict[str, Callable[[Any], str]] = {
        "instructions": _instructions,
        "breakdown": _breakdown,
        "paired": _paired,
        "reader": _reader,
        "start": _start,
        "loss": _loss,
    }
    texts = {}
    for name, make in makers.items():
        if name in found:
            part = found[name]
            texts[name] = f"{make(part['results'])}\n\n{_from(part, guest=name in ('instructions', 'breakdown'))}"
    return texts


def write(found: Found) -> None:
    text = DOCUMENT.read_text()
    for name, block in blocks(found).items():
        text = marks.filled(text, name, block)
    if marks.between(text, "percent"):
        text = marks.filled(text, "percent", percent(text))
    DOCUMENT.write_text(text)
    if "instructions" in found and {tool["name"] for tool in found["instructions"]["results"]["tools"]} >= _QUOTED:
        page = MAN.read_text()
        before, _, rest = page.partition(_BEGIN)
        MAN.write_text(f"{before}{_BEGIN}{_roff(found['instructions']['results'])}{_END}{rest.partition(_END)[2]}")


def percent(page: str) -> str:
    """The share of one CPU at so many requests a second, by the table of instructions that the page has."""
    table = marks.between(page, "instructions")
    rows = {cells[0].strip("`"): cells for cells in map(_cells, table.splitlines()) if len(cells) == len(LOADS) + 4}
    found = []
    for name in _COSTS:
        cells = rows.get(f"wptrace {name}")
        if cells is None:
            continue
        _, _, _, late, _, _, reader, idle = cells
        each = _number(late) + _number(reader.rpartition(" to ")[2])
        shares = [(rate * each + _number(idle) * 1e6) / INSTRUCTIONS_A_SECOND for rate in RATES]
        found.append([f"`wptrace {name}`", f"{each:,.0f}", *(f"{share:.1%}".replace("%", " %") for share in shares)])
    return _rows(["", "instructions a request", *(f"{rate:,} IOPS" for rate in RATES)], found, 1)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _number(cell: str) -> float:
    return float(cell.replace(",", "").replace("+", ""))


def _roff(run: Found) -> str:
    """The main figures, for the man page."""
    added = {tool: one["added"] for (tool, load), one in figures(run).items() if load == "inline"}
    untraced = sum(run["base"]["inline"]["latency"]) / len(run["base"]["inline"]["latency"])
    return (
        f"On Linux {'.'.join(run['kernel'].split('.')[:2])} a read of 4 KiB from a device that is done at once takes"
        f" {untraced:,.0f} instructions.\n"
        f"Tracing adds {added['io']:,.0f} to them, {added['io --interference']:,.0f} with\n.BR \\-\\-interference ,\n"
        f"and with\n.B \\-\\-level block\n{added[KERNEL_STAMPS]:,.0f} with the stamps of the kernel and"
        f" {added[OWN_TIMES]:,.0f} with own times.\n"
    )


def _from(part: Found, guest: bool) -> str:
    """Return the command of a measurement, its date and its machine."""
    here = part["on"]
    versions = [f"wptrace {here['wptrace']} ({here['commit']})", f"fio {here['fio'].removeprefix('fio-')}"]
    if guest:
        versions += [here["qemu"].replace("QEMU emulator version", "QEMU").partition(" (")[0]]
        versions += [f"{name} {version}" for name, version in here["peers"].items()]
        where = f"Linux {part['results']['kernel']}"
    else:
        versions += [f"Python {here['python']}", f"libbpf {here['libbpf']}"]
        where = f"Linux {here['kernel']}, {here['cpus']} CPUs of {here['processor'] or here['machine']}"
    return f"`{part['command']}`, {part['at'][:10]}: {where}; {', '.join(versions)}."


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], right: int) -> str:
    """Columns from `right` on hold numbers."""
    rows = [list(header), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "| "
        + " | ".join(cell.rjust(size) if place >= right else cell.ljust(size) for place, (cell, size) in cells)
        + " |"
        for cells in ([*enumerate(zip(row, widths))] for row in rows)
    ]
    dashes = ["-" * (size + 1) + (":" if place >= right else "-") for place, size in enumerate(widths)]
    return "\n".join([lines[0], "|" + "|".join(dashes) + "|", *lines[1:]])


def _instructions(run: Found) -> str:
    added = figures(run)
    rows = []
    for tool in run["tools"]:
        name = f"`wptrace {tool['name']}`" if not tool.get("peer") else tool["name"]
        if "failed" in tool:
            rows.append([name, "did not run", *["" for _ in LOADS], "", ""])
            continue
        cells = [_added(added.get((tool["name"], load))) for load in LOADS]
        events = [load for load in LOADS if load != "none"]
        readers = [one["reader"] for load in events if (one := added.get((tool["name"], load))) and one["reader"]]
        reader = f"{min(readers):,.0f} to {max(readers):,.0f}" if readers else "0"
        rows.append([name, tool["tells"] + _missing(tool), *cells, reader, f"{tool['idle_per_s'] / 1e6:.1f}"])
    untraced = [
        f"{sum(one['latency']) / len(one['latency']):,.0f}" for one in (run["base"][load] for load in run["base"])
    ]
    untraced += [""] * (len(LOADS) - len(untraced))
    head = ["", "tells", *LOADS.values(), "reader", "idle, millions/s"]
    text = _rows(head, [["untraced (the whole request)", "", *untraced, "", ""], *rows], 2)
    notes = disagreements(run)
    if run.get("boots", 1) > 1:
        differing = run["differences"]
        text += f"\n\n{run['boots']} boots gave the same figures to 50 instructions"
        text += "." if not differing else f", but for {'; '.join(differing)}."
    else:
        text += "\n"
    text += "\nRepeats in the boot agree to 50 instructions, readers to 5 %"
    text += f", but for {'; '.join(notes)}." if notes else "."
    return text


def _added(one: Found | None) -> str:
    return "-" if one is None else f"{one['added']:+,.0f}"


def _missing(tool: Found) -> str:
    """The events that a tool that reports each one did not report."""
    share = tool.get("untold", 0.0)
    return f"; {share:.0%} were lost" if share > 0.005 else ""


def _breakdown(run: Found) -> str:
    parts = []
    for mode in run["modes"]:
        loads = list(mode["whole"])
        rows = [["all hooks", "", *(f"{mode['whole'][load]:+,.0f}" for load in loads), *("" for _ in loads)]]
        if "off" in mode:
            rows.append(["all hooks, nothing is traced", "", *(f"{mode['off'][load]:+,.0f}" for load in loads)])
            rows[-1] += ["" for _ in loads]
        idle = list(mode.get("unreached", []))
        for one in mode["hooks"]:
            if max(abs(value) for key in ("alone", "without") for value in one[key].values()) < _NOTHING:
                idle.append(one["hook"])
                continue
            alone, without = ([f"{one[key][load]:+,.0f}" for load in loads] for key in ("alone", "without"))
            rows.append([one["hook"], _kinds(one["programs"]), *alone, *without])
        head = [
            "hook",
            "programs",
            *(f"alone, {LOADS[load]}" for load in loads),
            *(f"its part, {LOADS[load]}" for load in loads),
        ]
        text = f"`wptrace {mode['name']}`:\n\n{_rows(head, rows, 2)}"
        parts.append(text + (f"\n\nNothing to be seen here of: {'; '.join(idle)}." if idle else ""))
    return "\n\n".join(parts)


def _kinds(programs: Sequence[str]) -> str:
    if len(programs) == 1:
        return f"`{programs[0]}`"
    return f"{len(programs)}, from `{programs[0]}`"


def _paired(results: Sequence[Found]) -> str:
    """A row for each load, a column for each mode."""
    modes = list(dict.fromkeys(one["mode"] for one in results))
    rows = []
    for work in dict.fromkeys(one["work"] for one in results):
        found = {one["mode"]: one for one in results if one["work"] == work}
        without = min(one["without_ns"] for one in found.values())
        row = [work, f"{without:,.0f} ns" if without < 1e5 else f"{without / 1e6:,.2f} ms"]
        for mode in modes:
            values = [found[mode]["ratio"], *found[mode]["interval"]] if mode in found else []
            row.append("{} ({} to {})".format(*(f"{(value - 1) * 100:+.1f}" for value in values)) if values else "")
        rows.append(row)
    return _rows(["load", "without", *(f"`{mode}`" for mode in modes)], rows, 1)


def _reader(results: Sequence[Found]) -> str:
    rows = [
        [f"`{one['name']}`", f"{one['record_bytes']}"]
        + [f"{rate:,.0f}" for rate in (one["decode_per_s"], one["joined_per_s"], *one["lines_per_s"].values())]
        for one in results
    ]
    forms = [f"`{form}`{how}" for form in ("-j", "--line", "--csv") for how in ("", " by events")]
    return _rows(["records of", "bytes", "decoded a second", "decoded and joined a second", *forms], rows, 1)


def _start(results: Found) -> str:
    starts = [
        [
            f"`wptrace {one['mode']}`",
            f"{one['median_s']:.3f} s",
            f"{one['worst_s']:.3f} s",
            f"{one['cpu_s']:.3f} s",
            f"{one['peak_mib']:.1f} MiB",
        ]
        for one in results["starts"]
    ]
    programs = [
        [f"`{one['program']}`", f"{one['verified']:,}", f"{one['cpu_ms']:.1f} ms"]
        for one in results["programs"]
        if one["cpu_ms"] >= _SHORTEST_MS
    ]
    return "\n\n".join(
        [
            _rows(["", "median", "worst", "CPU", "memory"], starts, 1),
            _rows(["verifying, for `wptrace io`", "instructions", "CPU"], programs, 1),
        ]
    )


def _loss(results: Sequence[Found]) -> str:
    rows = [
        [
            one["how"],
            f"{one['wanted_per_s']:,}",
            f"{one['offered_per_s']:,.0f}",
            f"{one['offered']:,}",
            f"{one['lost']:,}",
            f"{one['reader_cpu_s']:.2f} s",
        ]
        for one in results
    ]
    return _rows(["reader", "wanted a second", "offered a second", "offered", "lost", "reader's CPU"], rows, 1)
