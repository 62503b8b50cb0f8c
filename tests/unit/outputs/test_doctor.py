# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from tests.unit.outputs.samples import HOSTILE
from wptrace import __version__
from wptrace.model.diagnosis import (
    DEGRADED,
    MISSING,
    OK,
    Attempt,
    Check,
    Diagnosis,
    FlowFinding,
    HookFinding,
    Seen,
    StageFinding,
)
from wptrace.outputs import doctor as diagnosis
from wptrace.outputs.text import words as text


def found(permitted: bool = True, works: bool = True, name: str = "sda") -> Diagnosis:
    state = OK if works else MISSING
    flow = FlowFinding(
        "io",
        "block",
        works,
        "" if works else "no way to see a completion",
        [
            StageFinding(
                "queue", DEGRADED if works else MISSING, "raw_tp/x" if works else "", ["exact times"] if works else []
            )
        ],
        [
            HookFinding(
                "completion",
                OK,
                ("request *", "int"),
                [Attempt("complete", "tp_btf/c", True, ""), Attempt("other", "raw_tp/c", None, "")],
            ),
            HookFinding("issue", state, None, [Attempt("issue", "tp_btf/i", works, "" if works else name)]),
        ],
        [Check("request.rq_disk", OK, "request.rq_disk"), Check("bio.bi_bdev", state, name)],
        [Check(name, DEGRADED, "no stamps", f"echo 1 > {name}")],
    )
    definitions = [
        Check("irq", OK, "handlers"),
        Check("timer", OK, "timers"),
        Check("netrx", DEGRADED, "without ip"),
        Check("rpc", MISSING, f"there is no tracepoint {name}"),
    ]
    return Diagnosis(
        "6.12.9",
        "x86_64",
        permitted,
        [Check("BTF", OK, "there"), Check("libbpf", OK, "1.5")],
        [Check("tp_btf", OK, "tp_btf/x")] if permitted else [],
        [flow] if permitted else [],
        definitions if permitted else [],
    )


def test_a_machine_on_which_all_works() -> None:
    assert list(diagnosis.lines(found(), verbose=False)) == [
        f"wptrace {__version__} on Linux 6.12.9 (x86_64)",
        "",
        "  part  wptrace io --level block",
        "          lacks: exact times",
        "          sda: no stamps",
        "            -> echo 1 > sda",
        "",
        "wptrace flow",
        "  ok    irq, timer",
        "  part  netrx          without ip",
        "  NO    rpc            there is no tracepoint sda",
        "",
        "system",
        "  ok    BTF            there",
        "  ok    libbpf         1.5",
    ]


def test_what_was_seen_of_definitions() -> None:
    seen = [
        Seen("netrx", "receive", "tp_btf/netif_receive_skb", 1204),
        Seen("netrx", "l4", "fentry/tcp_v4_rcv", 1000),
        Seen("netrx", "l4", "fentry/udp_rcv", 4),
        Seen("netrx", "socket", "fn:x", None),
    ]
    watched = found()._replace(seen=seen, watched_s=1.5)
    lines = list(diagnosis.lines(watched, verbose=False))
    at = lines.index("seen in 1.50 s")
    assert lines[at + 1] == "        netrx          receive 1,204, l4 1,004, socket -"
    lines = list(diagnosis.lines(watched, verbose=True))
    assert "        l4                    4  fentry/udp_rcv" in lines
    assert "        socket                -  fn:x" in lines
    assert diagnosis.as_json(watched, "io")["seen"][3] == {
        "flow": "netrx",
        "point": "socket",
        "section": "fn:x",
        "times": None,
    }


def test_what_is_missing_is_reported_without_verbose() -> None:
    lines = list(diagnosis.lines(found(works=False), verbose=False))
    assert "  NO    wptrace io --level block: no way to see a completion" in lines
    lines = list(diagnosis.lines(found(works=False), verbose=True))
    assert "  NO    queue          nothing to observe it with" in lines
    assert "        tp_btf/i: sda" in lines


def test_without_privileges_nothing_is_claimed() -> None:
    lines = list(diagnosis.lines(found(permitted=False), verbose=True))
    assert lines[2] == "nothing can be tried without privileges: run it as root"
    assert not any("ways to observe" in line or "wptrace io" in line for line in lines)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    lines = list(diagnosis.lines(found(works=False, name=name), verbose=True))
    assert all(line.isprintable() for line in lines)
    assert "\n".join(lines).count(text.printable(name)) == 5


@pytest.mark.parametrize("name", ["sda", *HOSTILE])
def test_json_has_everything_as_plain_data(name: str) -> None:
    line = json.dumps(diagnosis.as_json(found(name=name), "io"))
    assert line.isascii()
    parsed = json.loads(line)
    assert (parsed["kind"], parsed["version"], parsed["io_works"]) == ("doctor", __version__, True)
    assert (parsed["kernel"], parsed["machine"], parsed["permitted"]) == ("6.12.9", "x86_64", True)
    assert parsed["system"][0] == {"name": "BTF", "state": "ok", "detail": "there", "advice": ""}
    assert parsed["flows"][0]["hooks"][0]["arguments"] == ["request *", "int"]
    assert parsed["flows"][0]["hooks"][0]["ways"] == [
        {"program": "complete", "section": "tp_btf/c", "works": True, "reason": ""},
        {"program": "other", "section": "raw_tp/c", "works": None, "reason": ""},
    ]
    assert parsed["flows"][0]["checks"][0]["name"] == name


def test_json_of_a_machine_without_privileges() -> None:
    parsed = diagnosis.as_json(found(permitted=False), "io")
    assert parsed["io_works"] is False
    assert parsed["flows"] == parsed["features"] == []
