# SPDX-License-Identifier: Apache-2.0
"""Messages reach a collector that works; one that does not costs bounded memory and never delays the tracing."""

from __future__ import annotations

import gc
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.collector import PATIENCE, Answer, collecting, nobody, silent
from wptrace.agent import sender
from wptrace.agent.collector import Target, endpoint
from wptrace.agent.sender import Sender
from wptrace.outputs.otlp import Message

# wrap_socket() of Python 3.11 leaves its socket open if the other side resets the connection meanwhile: it is collected
# within the test, as others do not ignore that.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

ROOM = 1 << 20


class Journal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def has(self, words: str) -> bool:
        return any(words in line for line in self.lines)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses short, so that a test sees many."""
    monkeypatch.setattr(sender, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(sender, "_LONGEST_PAUSE_S", 0.05)


def target(url: str, timeout_s: float = 30.0, compressed: bool = True, **headers: str) -> Target:
    return Target(endpoint(url).below("v1/metrics"), tuple(headers.items()), timeout_s, compressed)


def rejected(signal: str, answer: bytes) -> tuple[int, str]:
    """Parse `N why`; anything else is no such answer."""
    if not answer:
        return 0, ""
    number, _, why = answer.decode("latin-1").partition(" ")
    return int(number), why


@contextmanager
def sending(journal: Journal, to: Target, room: int = ROOM, signal: str = "metrics") -> Iterator[Sender]:
    made = Sender(signal, rejected, journal)
    made.send_to(to, room)
    try:
        yield made
    finally:
        made.close()


def wait_until(happened: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def lost(made: Sender) -> dict[str, int]:
    return {cause: count for cause, count in made.delivery.lost.items() if count}


def noise(size: int) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(size).randbytes(size)  # noqa: S311


def test_messages_come_in_order_with_their_headers(journal: Journal) -> None:
    with collecting() as collector, sending(journal, target(collector.url, key="a b")) as made:
        for number in range(5):
            made.push(Message(b"message %d" % number, 10))
        found = collector.wait_for(5)
        wait_until(lambda: made.delivery.sent == 50, "all are counted")
        assert [one.message for one in found] == [b"message %d" % number for number in range(5)]
        assert {one.path for one in found} == {"/v1/metrics"}
        assert found[0].headers["Content-Type"] == "application/x-protobuf"
        assert found[0].headers["Content-Encoding"] == "gzip"
        assert found[0].headers["key"] == "a b"
        assert found[0].headers["User-Agent"].startswith("wptrace/")
        assert (made.delivery.queue_bytes, lost(made), journal.lines) == (0, {}, [])


def test_without_compression_bytes_are_as_they_are(journal: Journal) -> None:
    with collecting() as collector, sending(journal, target(collector.url, compressed=False)) as made:
        made.push(Message(b"as it is", 1))
        (one,) = collector.wait_for(1)
        assert (one.body, one.headers.get("Content-Encoding")) == (b"as it is", None)


@pytest.mark.parametrize(
    "answers",
    [
        [Answer(503)] * 3,
        [Answer(502), Answer(504)],
        [Answer(429, headers={"Retry-After": "0"})],
        [Answer(429, headers={"Retry-After": "soon"})],
        [Answer(raw=b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00d")],
        [Answer(raw=b"")],
        [Answer(raw=b"HTTP/1.1 " + b"9" * 100_000)],
        [Answer(raw=b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n")],
        [Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")],
        [Answer(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")],
    ],
    ids=["503", "502", "429", "soon", "grpc", "closed", "line", "headers", "short", "chunks"],
)
def test_what_may_be_taken_later_is_sent_again_until_it_is(journal: Journal, answers: list[Answer]) -> None:
    with collecting(*answers) as collector, sending(journal, target(collector.url)) as made:
        made.push(Message(b"one", 7))
        made.push(Message(b"two", 1))
        found = collector.wait_for(len(answers) + 2)
        wait_until(lambda: made.delivery.sent == 8, "all are counted")
        assert [one.message for one in found] == [b"one"] * (len(answers) + 1) + [b"two"]
        assert lost(made) == {}
        assert journal.has("does not accept metrics: ")
        # Reported once, however often it happens.
        wait_until(lambda: journal.has("accepts metrics again"), "the end of the trouble")
        assert len(journal.lines) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(400), "refuses metrics: it answers 400 (7 data points)"),
        (Answer(404, b"x" * 1_000_000), "it answers 404"),
        (Answer(500), "it answers 500"),
        (Answer(302, headers={"Location": "http://127.0.0.1:1/"}), "302, and redirects are not followed"),
        (Answer(200, b"<html>"), "it answers 200, but not by OTLP"),
        (Answer(200, b"0 " * 50_000), "its answer has more than 65,536 bytes"),
    ],
    ids=["400", "404", "500", "302", "html", "long"],
)
def test_what_is_refused_is_lost_and_the_next_one_is_sent(journal: Journal, answer: Answer, said: str) -> None:
    with collecting(answer) as collector, sending(journal, target(collector.url)) as made:
        made.push(Message(b"one", 7))
        made.push(Message(b"two", 1))
        assert [one.message for one in collector.wait_for(2)] == [b"one", b"two"]
        wait_until(lambda: made.delivery.sent == 1, "the second one is counted")
        assert lost(made) == {"refused": 7}
        assert journal.has(said)
        assert len(collector.requests) == 2


def test_what_is_rejected_in_part_is_counted_and_said(journal: Journal) -> None:
    answers = Answer(200, b"3 too \x1b old"), Answer(200, b"99 all")
    with collecting(*answers) as collector, sending(journal, target(collector.url)) as made:
        made.push(Message(b"one", 7))
        made.push(Message(b"two", 2))
        wait_until(lambda: sum(made.delivery.lost.values()) == 5, "both are counted")
        # At most as many as there were.
        assert (made.delivery.sent, lost(made)) == (4, {"rejected": 5})
        assert journal.lines == [f"{collector.url}/v1/metrics rejects some metrics: too \x1b old (3 data points)"]


def test_a_collector_that_never_answers_is_left(journal: Journal) -> None:
    with silent() as (url, _), sending(journal, target(url, timeout_s=0.2)) as made:
        made.push(Message(b"one", 1))
        wait_until(lambda: journal.has("no answer within 0.2 s; they are queued"), "the timeout")
        assert made.delivery.queue_bytes > 0


def test_a_collector_that_sends_a_byte_now_and_then_is_left(journal: Journal) -> None:
    """Each byte comes in time, but the answer never ends."""
    with collecting(Answer(drips=True)) as collector, sending(journal, target(collector.url, timeout_s=0.5)) as made:
        made.push(Message(b"one", 1))
        collector.wait_for(2)
        wait_until(lambda: made.delivery.sent == 1, "the second try")
        assert journal.has("no answer within 0.5 s")
        wait_until(lambda: bool(collector.gone), "the client has gone")


def test_what_connects_too_late_is_not_sent(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a look-up of the name, or of an address that does not answer, counts as well."""
    look_up, times = socket.getaddrinfo, iter([2.0])

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(next(times, 0.0))
        return look_up(*arguments, **more)

    with collecting(Answer(drips=True)) as collector, sending(journal, target(collector.url, timeout_s=1.5)) as made:
        monkeypatch.setattr(socket, "getaddrinfo", slowly)
        made.push(Message(b"one", 1))
        wait_until(lambda: journal.has("no answer within 1.5 s"), "the first try")
        # Only the second try has reached it.
        collector.wait_for(2)
        wait_until(lambda: made.delivery.sent == 1, "the third try")
        assert len(collector.requests) == 2


def test_a_dead_collector_costs_so_many_bytes_and_the_oldest_messages(journal: Journal) -> None:
    with sending(journal, target(nobody()), room=10_000) as made:
        bodies = [noise(1000 + number) for number in range(100)]
        for body in bodies:
            made.push(Message(body, 1))
            assert made.delivery.queue_bytes <= 10_000
        wait_until(lambda: journal.has("connection refused; they are queued"), "the first try")
        kept = 100 - lost(made)["queue_full"]
        assert 7 <= kept <= 9
        # Each message arrives once, or is counted.
        with collecting() as collector:
            made.send_to(target(collector.url), 10_000)
            found = [one.message for one in collector.wait_for(kept)]
            # The message that is being sent stays when others make room.
            assert found[1:] == bodies[1 - kept :]
            assert found[0] in bodies[: 1 - kept]
            wait_until(lambda: made.delivery.sent == kept, "all are counted")
    assert (made.delivery.sent, lost(made)) == (kept, {"queue_full": 100 - kept})


def test_what_does_not_fit_at_all_is_lost(journal: Journal) -> None:
    with collecting() as collector, sending(journal, target(collector.url), room=100) as made:
        made.push(Message(noise(1000), 5))
        made.push(Message(b"small", 1))
        assert [one.message for one in collector.wait_for(1)] == [b"small"]
        assert lost(made) == {"queue_full": 5}


def test_less_room_drops_the_oldest_at_once(journal: Journal) -> None:
    to = target(nobody())
    with sending(journal, to) as made:
        for _ in range(10):
            made.push(Message(noise(1000), 1))
        made.send_to(to, 3000)
        assert made.delivery.queue_bytes <= 3000


def test_another_target_is_tried_at_once_and_gets_what_waits(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_FIRST_PAUSE_S", 3600.0)
    with collecting() as collector, sending(journal, target(nobody())) as made:
        made.push(Message(b"one", 1))
        wait_until(lambda: journal.has("they are queued"), "the first try")
        made.push(Message(b"two", 1))
        made.send_to(target(collector.url), ROOM)
        assert [one.message for one in collector.wait_for(2)] == [b"one", b"two"]


def test_without_a_target_nothing_is_kept_or_sent(journal: Journal) -> None:
    with sending(journal, target(nobody())) as made:
        made.push(Message(b"one", 3))
        made.send_to(None, ROOM)
        made.push(Message(b"two", 1))
        assert (made.delivery.queue_bytes, lost(made)) == (0, {"ended": 3})
        with collecting() as collector:
            made.send_to(target(collector.url), ROOM)
            made.push(Message(b"three", 1))
            assert [one.message for one in collector.wait_for(1)] == [b"three"]


def test_the_end_waits_for_what_is_left_and_says_what_was_not_sent(journal: Journal) -> None:
    with collecting(Answer(503)) as collector:
        made = Sender("metrics", rejected, journal)
        made.send_to(target(collector.url), ROOM)
        made.push(Message(b"one", 1))
        wait_until(lambda: made.delivery.sent == 1, "a second try")
        for number in range(20):
            made.push(Message(b"%d" % number, 1))
        made.finish(time.monotonic() + PATIENCE)
        made.close()
        assert made.delivery.sent == 21
    with silent() as (url, _):
        made = Sender("traces", rejected, journal)
        made.send_to(target(url), ROOM)
        made.push(Message(b"x", 4))
        made.finish(time.monotonic() + 0.2)
        made.close()
        assert lost(made) == {"ended": 4}
        assert journal.lines[-1] == "4 spans were not sent before the end"


def test_tracing_never_waits(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracing thread calls nothing that touches a socket."""
    touched: list[str] = []
    real = socket.create_connection

    def connect(*of: Any, **more: Any) -> socket.socket:
        touched.append(threading.current_thread().name)
        return real(*of, **more)

    monkeypatch.setattr(socket, "create_connection", connect)
    with silent() as (url, _), sending(journal, target(url, timeout_s=0.2)) as made:
        for _ in range(50):
            made.push(Message(noise(100), 1))
            assert made.delivery.signal == "metrics"
        wait_until(lambda: len(touched) >= 2, "two tries")
        made.send_to(None, 0)
    assert set(touched) == {"otlp metrics"}


def test_the_journal_hears_of_the_same_trouble_once_a_minute(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(*[Answer(400)] * 30) as collector, sending(journal, target(collector.url)) as made:
        for _ in range(29):
            made.push(Message(b"x", 2))
        wait_until(lambda: lost(made).get("refused") == 58, "all are refused")
        assert len(journal.lines) == 1
        monkeypatch.setattr(sender, "_SAID_S", 0.0)
        made.push(Message(b"x", 2))
        wait_until(lambda: len(journal.lines) == 2, "the next line")
        # Including those that came meanwhile.
        assert journal.lines[1].endswith("refuses metrics: it answers 400 (58 data points)")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7", 7.0),
        ("0", 1.0),
        ("99999", 300.0),
        ("999999999999", None),
        ("-5", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 300.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 1.0),
        ("Thu, 01 Jan 1970 00:00:00", 1.0),
        ("", None),
        ("\x00", None),
        ("Fri, 99 Dec 2026 99:99:99 GMT", None),
    ],
)
def test_when_to_come_again_is_bounded(text: str, wanted: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_FIRST_PAUSE_S", 1.0)
    assert sender._seconds(text) == wanted


def test_a_pause_that_is_asked_for_is_kept(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Sender, "_rest", lambda made, to, seconds: pauses.append(seconds))
    answers = [Answer(503, headers={"Retry-After": "120"}), Answer(503), Answer(503), Answer(503)]
    with collecting(*answers) as collector, sending(journal, target(collector.url)) as made:
        made.push(Message(b"one", 1))
        collector.wait_for(5)
    assert pauses[0] == 120
    # Each pause is twice as long as the one before, with some random variation.
    for pause, least in zip(pauses[1:], (0.02, 0.04, 0.05)):
        assert least * 0.5 <= pause <= least * 1.5


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *name]
    subprocess.run([*words, "-keyout", file, "-out", file.with_name("cert.pem")], check=True, capture_output=True)
    with file.open("a") as both:
        both.write(file.with_name("cert.pem").read_text())
    return file


def test_by_https_the_collector_is_verified(
    journal: Journal, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(certificate=certificate) as collector, sending(journal, target(collector.url)) as made:
        made.push(Message(b"one", 1))
        wait_until(lambda: journal.has("certificate verify failed"), "the first try")
        assert collector.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert [one.message for one in collector.wait_for(1)] == [b"one"]
    gc.collect()


def test_a_handshake_that_does_not_end_is_left(journal: Journal) -> None:
    with silent() as (url, _), sending(journal, target(url.replace("http", "https"), timeout_s=0.2)) as made:
        made.push(Message(b"one", 1))
        wait_until(lambda: journal.has("no answer within 0.2 s"), "the timeout")
    gc.collect()
