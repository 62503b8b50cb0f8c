# SPDX-License-Identifier: Apache-2.0
"""Requests to a running agent: which processes may make them, and whose answer counts."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from wptrace.agent import control
from wptrace.agent.control import Control
from wptrace.errors import UsageError, WptraceError


@contextmanager
def served(answer: control.Answer) -> Iterator[Control]:
    made, over = Control(answer), threading.Event()

    def serve() -> None:
        while not over.wait(0.01):
            made.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
        made.close()


def refuse(name: str) -> str:
    raise UsageError(f"there is no trigger {name}")


def test_it_answers_root_and_its_own_user() -> None:
    with served(lambda name: f"trigger {name} has fired"):
        assert control.ask(os.getpid(), "slow") == "trigger slow has fired"
        assert len(control.ask(os.getpid(), "x" * 10_000)) == 511
    with served(refuse), pytest.raises(WptraceError, match="there is no trigger slow"):
        control.ask(os.getpid(), "slow")


def test_another_user_is_refused() -> None:
    if os.geteuid():
        pytest.skip("to be somebody else takes root")
    asked: list[str] = []
    agent, (out, into) = os.getpid(), os.pipe()

    def answer(name: str) -> str:
        asked.append(name)
        return "yes"

    made = Control(answer)
    child = os.fork()
    if not child:
        os.setuid(65534)
        try:
            said = control.ask(agent, "slow")
        except WptraceError as error:
            said = error.message
        os.write(into, said.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as reply:
        while not select.select([reply], [], [], 0.01)[0]:
            made.serve()
        assert reply.read() == "only root and the user of the agent may send it requests"
    os.waitpid(child, 0)
    made.close()
    assert asked == []


def test_an_answer_of_another_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_PATIENCE_S", 0.2)
    with served(lambda name: "yes"):
        monkeypatch.setattr(control, "_name", lambda pid: f"\0wptrace-agent/{os.getpid()}")
        with pytest.raises(WptraceError, match="the agent with pid 1 does not answer"):
            control.ask(1, "slow")


def test_nobody_there_is_one_sentence() -> None:
    with pytest.raises(WptraceError, match="cannot be reached: Connection refused"):
        control.ask(os.getpid(), "slow")


def test_a_name_that_is_taken_is_an_error_and_no_name_is_left() -> None:
    first = Control(str)
    with pytest.raises(OSError, match="in use"):
        Control(str)
    first.close()
    Control(str).close()


def test_who_never_reads_an_answer_is_not_waited_for() -> None:
    made = Control(str)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind("")
        peer.setblocking(False)
        for _ in range(200):
            with suppress(BlockingIOError):
                peer.sendto(b"x", f"\0wptrace-agent/{os.getpid()}")
            made.serve()
    made.close()


def test_a_client_without_a_name_gets_no_answer_and_does_no_harm() -> None:
    made = Control(str)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.sendto(b"slow", f"\0wptrace-agent/{os.getpid()}")
        made.serve()
    made.close()


def test_a_flood_is_served_in_few_turns() -> None:
    """Whoever may not ask anything could otherwise keep the agent busy."""
    asked: list[str] = []

    def answer(name: str) -> str:
        asked.append(name)
        return "yes"

    made = Control(answer)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.setblocking(False)

        def send() -> None:
            with suppress(BlockingIOError):
                while True:
                    peer.sendto(b"slow", f"\0wptrace-agent/{os.getpid()}")

        def woken() -> bool:
            return bool(select.select([made.fd], [], [], 0)[0])

        for _ in range(3):
            send()
            assert woken()
            made.serve()
            before = len(asked)
            send()
            assert not woken()
            assert len(asked) == before
            made.turn(made.due)
            assert made.due == float("inf")
        assert woken()
    made.close()
