# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --by statement`: what a server says itself that its statements read, and servers that say anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, loop_device
from tests.kernel.loads import mounted
from tests.kernel.patience import said
from tests.kernel.postgres import Postgres, server
from tests.kernel.test_capture import replayed
from tests.kernel.test_owners import OWNED, counts, exact, totals
from tests.kernel.test_recorder import Recording, dumps, of
from tests.kernel.trace import PATIENCE, Line, Trace, findings
from tests.thorough import only_all
from wptrace.kernel import elf, servers

pytestmark = pytest.mark.one_kernel

BLOCK = 8192
# What is read to parse and plan a statement its own figures do not have, and with so few buffers more than once.
CATALOGUE = 64 * BLOCK
READ = "select query, (shared_blks_read + temp_blks_read) * 8192, calls, queryid from pg_stat_statements"
ROWS, WIDTH = 16_000, 900
TABLE = "create table big as select i as id, repeat('x', 900) as v from generate_series(1, 16000) i"
SCAN, INDEX = "select count(*) from big where v <> ?", "create index on big(id)"
LOOKUP = "select length(v) from big where id = ?"
VARIANTS = 300


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with loop_device(tmp_path_factory.mktemp("disk") / "disk.img", "384M") as made:
        yield made


class OfServer(Recording):
    """Of many processes at once: kernels from 7.0 on skip a program where one preempts another in it."""

    adds_skipped = int(os.uname().release.split(".")[0]) >= 7

    def skipped_bytes(self, version: int) -> int:
        """Return what the operations may have read that were lost with a skipped run: io_combine_limit for each."""
        return int(self.summary["loss"].get("recursion", 0)) * BLOCK * (16 if version >= 17 else 1)


@pytest.fixture
def postgres(disk: Disk, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    version, settings = request.param
    with mounted(disk, "ext4", tmp_path / "files") as folder, server(folder / "postgres", version, **settings) as found:
        yield found


def read_bytes(summary: Line) -> dict[str, int]:
    """Return the bytes that were read by owner, including page-cache hits."""
    found: dict[str, int] = {}
    for kind in ("owned_operation", "owned_hit"):
        for row in totals(summary, kind):
            if row["op"] == "read":
                found[row["owner"]] = found.get(row["owner"], 0) + row["bytes"]
    return found


def has_rows_of_records(lines: list[Line], text: str = "statement") -> None:
    """Operations, page-cache hits and requests one by one have the owners of the rows."""
    found: dict[str, Counter[tuple[str, str, str | None]]] = {kind: Counter() for kind in OWNED.values()}
    for one in lines:
        if one["kind"] in OWNED:
            found[OWNED[one["kind"]]][one["op"], one["owner"], one[text]] += 1
    rows: dict[str, Counter[tuple[str, str, str | None]]] = {kind: Counter() for kind in OWNED.values()}
    for kind, counted in rows.items():
        for row in totals(lines[-1], kind):
            counted[row["op"], row["owner"], row[text]] += row["count"]
    assert found["owned_operation"] == rows["owned_operation"]
    assert found["owned_hit"] == rows["owned_hit"]
    # Those of operations are in their records.
    assert found["owned_request"] <= rows["owned_request"]


def by_statement(lines: list[Line]) -> Counter[tuple[str, str, str | None]]:
    return Counter((one["op"], one["owner"], one["statement"]) for one in of(lines, "operation"))


def names_the_one_with_the_most_time(summary: Line, text: str = "statement") -> None:
    times: Counter[str | None] = Counter()
    for row in totals(summary, "owned_operation"):
        times[row[text]] += row["sum_ns"]
    whole = times.total()
    del times[None]
    ((who, most),) = times.most_common(1)
    found = findings(summary).get(text)
    assert (found is not None) == (most >= 0.1 * whole)
    assert found is None or (found["who"], found["sum_ns"]) == (who, most)


@pytest.mark.parametrize(
    "postgres",
    [
        pytest.param((15, {}), id="15"),
        *(pytest.param((version, {}), id=str(version), marks=only_all) for version in (13, 17, 18)),
        # Operations of io_uring are seen where functions can be traced.
        pytest.param((18, {"io_method": "io_uring"}), id="18-io_uring", marks=(only_all, pytest.mark.guest)),
    ],
    indirect=True,
)
def test_what_statements_read(disk: Disk, postgres: Postgres, tmp_path: Path) -> None:
    """Bytes by statement equal those of pg_stat_statements, which counts blocks that were asked for.

    Parallel workers and I/O workers work for their statement, and io_uring for whoever submits. Each operation of a
    capture or of a dump has the statement that it has in rows.
    """
    postgres.sql(["create extension pg_stat_statements", TABLE, "checkpoint", "create role app superuser login"])
    file = tmp_path / "trace.wpt"
    options = ["--each", f"--capture={file}", "--recorder=16M", "--recorder-at-end", f"--dump-dir={tmp_path}"]
    with OfServer("--dev", disk.name, "--by=statement", "--top=0", *options) as trace:
        postgres.sql(["select pg_stat_statements_reset()"])
        scans = ["select count(*) from big where v <> 'a'", "select count(*) from big where v <> 'bb'"]
        postgres.sql(["set application_name = 'reports'", *scans], user="app")
        postgres.sql([INDEX])
        postgres.sql([LOOKUP.replace("?", str(50 * number)) for number in range(VARIANTS)])
        postgres.sql(["checkpoint"])
        counted = postgres.sql([READ])
    exact(trace.summary)
    found = read_bytes(trace.summary)
    theirs = {query.replace("$1", "?"): (int(size), int(calls)) for query, size, calls, _ in counted}
    ids = {query.replace("$1", "?"): number for query, _, _, number in counted}
    assert theirs[SCAN][1] == 2
    assert theirs[LOOKUP][1] == VARIANTS
    assert theirs[SCAN][0] > ROWS * WIDTH
    # By I/O workers are only reads of processes that start or parse, and have no statement yet.
    assert sum(size for owner, size in found.items() if "io worker" in owner) <= CATALOGUE
    skipped = trace.skipped_bytes(postgres.version)
    for statement in (SCAN, INDEX):
        size, _ = theirs[statement]
        assert size - skipped <= found[statement] <= size * 1.005 + CATALOGUE, statement
    assert theirs[LOOKUP][0] - skipped <= found[LOOKUP]
    # All of them, and no other one of that kind.
    assert [owner for owner in found if "length" in owner] == [LOOKUP]
    rows = [row for kind in OWNED.values() for row in totals(trace.summary, kind)]
    texts = {row["owner"]: row["statement"] for row in rows}
    assert texts[SCAN] == SCAN
    assert texts["postgres: checkpointer"] is None
    assert "unread" not in texts
    names_the_one_with_the_most_time(trace.summary)
    whose = {one["owner"]: one for one in trace.summary["statements"]}
    for statement, user, application in ((SCAN, "app", "reports"), (INDEX, "postgres", "psql")):
        assert whose[statement] == {
            "owner": statement,
            # Those of 13 are not in its memory.
            "query_ids": [ids[statement]] if postgres.version > 13 else [],
            "databases": ["postgres"],
            "users": [user],
            "applications": [application],
        }
    assert not trace.summary["loss"].get("statement_origin")
    each = replayed(file)
    has_rows_of_records(each)
    assert {one["owner"]: one for one in each[-1]["statements"]} == whose
    (dump,) = dumps(tmp_path)
    latest = replayed(dump)
    has_rows_of_records(latest)
    assert by_statement(latest) == by_statement(each)
    (_, last) = replayed(dump, "--by=statement", "--summary")
    assert {one["owner"]: one for one in last["statements"]}[SCAN] == whose[SCAN]
    _, summary = replayed(file, "--by=statement", "--comm=postgres", "--summary")
    assert counts(summary, "owned_hit")[SCAN] == counts(trace.summary, "owned_hit")[SCAN]
    assert {one["owner"]: one for one in summary["statements"]}[SCAN] == whose[SCAN]


@pytest.mark.parametrize("postgres", [pytest.param((15, {}), id="15")], indirect=True)
def test_statements_that_the_server_does_not_report(disk: Disk, postgres: Postgres) -> None:
    """Their texts are read for each operation. All of one process, which reports others before and afterwards."""
    postgres.sql([TABLE, "checkpoint"])
    scans = [f"select {what}(id) from big" for what in ("count", "min", "max", "sum")]  # noqa: S608 - ours
    with Trace("--dev", disk.name, "--by=statement", "--top=0") as trace, postgres.session() as ask:
        ask("set max_parallel_workers_per_gather = 0")
        ask(scans[0])
        ask("set track_activities = off")
        ask(scans[1])
        ask(scans[2])
        ask("set track_activities = on")
        ask(scans[3])
    exact(trace.summary)
    found = read_bytes(trace.summary)
    for scan in scans:
        assert ROWS * WIDTH < found[scan] < ROWS * WIDTH * 1.2, scan


@pytest.mark.parametrize("postgres", [pytest.param((15, {}), id="15")], indirect=True)
def test_commits_after_statements(disk: Disk, postgres: Postgres) -> None:
    """By the extended protocol, a statement is committed when it has ended."""
    postgres.sql(["create table t (id int)", "checkpoint"])
    inserts = 40
    with Trace("--dev", disk.name, "--by=statement", "--top=0") as trace:
        postgres.execute("insert into t values (1)", "prepared", inserts)
    exact(trace.summary)
    assert counts(trace.summary, "owned_operation", "sync")["insert into t values (?)"] >= inserts


SCANS = "create function scans() returns numeric language plpgsql as $$ begin return (select avg(id) from big); end $$"


@pytest.mark.parametrize(
    "postgres",
    [pytest.param((15, {"compute_query_id": "off", "max_parallel_workers_per_gather": "0"}), id="15")],
    indirect=True,
)
def test_how_a_statement_may_come(disk: Disk, postgres: Postgres) -> None:
    """By each protocol, prepared by a command, in a function or a block; its text needs no query id."""
    postgres.sql([TABLE, SCANS, "checkpoint"])
    with Trace("--dev", disk.name, "--by=statement", "--top=0") as trace:
        postgres.sql(["select count(id) from big"])
        for protocol, what in (("extended", "min"), ("prepared", "max")):
            postgres.execute(f"select {what}(id) from big", protocol)  # noqa: S608 - ours
        postgres.sql(["prepare prepared as select sum(id) from big", "execute prepared"])
        postgres.sql(["select scans()", "do $$ begin perform bit_or(id) from big; end $$"])
    exact(trace.summary)
    found = read_bytes(trace.summary)
    scans = [f"select {what}(id) from big" for what in ("count", "min", "max")]  # noqa: S608 - ours
    for text in (*scans, "execute prepared", "select scans()", "do ?"):
        assert ROWS * WIDTH < found[text] < ROWS * WIDTH * 1.2, text
    assert [one for one in trace.summary["statements"] if one["query_ids"]] == []


@pytest.mark.parametrize("version", [15, pytest.param(18, marks=only_all)])
def test_a_server_that_starts_later(disk: Disk, tmp_path: Path, version: int) -> None:
    """So do its workers: those of parallel commands, of I/O and of autovacuum."""
    settings = {"autovacuum": "on", "autovacuum_naptime": "1s"}
    with (
        mounted(disk, "ext4", tmp_path / "files") as folder,
        OfServer("--dev", disk.name, "--by=statement", "--top=0", "100ms") as trace,
        server(folder / "postgres", version, **settings) as postgres,
    ):
        postgres.sql(["create extension pg_stat_statements", TABLE, "checkpoint"])
        trace.wait_for("autovacuum: VACUUM ANALYZE public.big", "autovacuum")
        postgres.sql(["select pg_stat_statements_reset()", "select count(*) from big where v <> 'a'"])
        postgres.sql([INDEX])
        counted = postgres.sql([READ])
        trace.stop()
    exact(trace.summary)
    found = read_bytes(trace.summary)
    theirs = {query.replace("$1", "?"): int(size) for query, size, *_ in counted}
    skipped = trace.skipped_bytes(version)
    for statement in (SCAN, INDEX):
        size = theirs[statement]
        assert size > ROWS * WIDTH
        assert size - skipped <= found[statement] <= size * 1.005 + CATALOGUE, statement
    whose = {one["owner"]: one["query_ids"] for one in trace.summary["statements"]}
    ids = {query.replace("$1", "?"): number for query, *_, number in counted}
    assert (whose[SCAN], whose[INDEX]) == ([ids[SCAN]], [ids[INDEX]])


@pytest.mark.parametrize("postgres", [pytest.param((18, {"io_workers": "1"}), id="18", marks=only_all)], indirect=True)
def test_whose_statements_an_io_worker_reads_for(disk: Disk, postgres: Postgres) -> None:
    """Processes that are there already or come later, of which nothing is seen but what a worker reads for them."""
    postgres.sql([TABLE, "checkpoint", "create role app superuser login", "create role late superuser login"])
    ((worker,),) = postgres.sql(["select pid from pg_stat_activity where backend_type = 'io worker'"])
    scan, late = "select count(*) from big where v <> '{}'", "select min(id) from big where v <> '{}'"
    with postgres.session("app") as ask:
        ask("set max_parallel_workers_per_gather = 0")
        ask("set application_name = 'reports'")
        with Trace("--dev", disk.name, f"--pid={worker}", "--by=statement", "--top=0", "100ms") as trace:
            ask(scan.format("a"))
            with postgres.session("late") as ask_later:
                ask_later("set max_parallel_workers_per_gather = 0")
                ask_later(late.format("a"))
                trace.wait_for("select min", "the next look")
                seen = trace.written().count('"kind":"interval"')
                trace.wait_for('"kind":"interval"', "another one", often=seen + 2)
    whose = {one["owner"]: one for one in trace.summary["statements"]}
    for statement, user, application in ((SCAN, "app", "reports"), (late.format("?").replace("'", ""), "late", "psql")):
        one = whose[statement]
        assert (one["databases"], one["users"], one["applications"]) == (["postgres"], [user], [application])
        assert len(one["query_ids"]) == 1


# A program that says what it is told to, made of the interpreter: one of its variables gets the name.
VARIABLE = {b"PyExc_ZeroDivisionError": b"debug_query_string"}
LIAR = """
import ctypes, mmap, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 4096)
base = int(open("/proc/self/maps").read().partition("-")[0], 16) if sys.argv[3] == "3" else 0  # ET_DYN
variable = ctypes.c_void_p.from_address(base + int(sys.argv[2]))
pages, others = mmap.mmap(-1, 8192), mmap.mmap(-1, 8192)
start, other = (ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in (pages, others))
for address in (start, other):
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + 4096), 4096, 0)
texts = {
    "honest": ctypes.create_string_buffer(b"select 'honest' from t"),
    "binary": ctypes.create_string_buffer(bytes(range(1, 256)) * 8),
    "long": ctypes.create_string_buffer("call ä({}, 'é')".format(", ".join(["ö"] * 100)).encode()),
    "longest": ctypes.create_string_buffer(b"select " + b"b" * 2000),
    "escapes": ctypes.create_string_buffer(b"select '\\x1b[2J'"),
}
pages[3996:4096] = b"a" * 100
others[3946:4096] = b"select " + b"c" * 142 + b"\\0"
places = {name: ctypes.addressof(text) for name, text in texts.items()}
changing = mmap.mmap(-1, 4096)
changing[:8] = b"vacuum\\0\\0"
places.update({"endless": start + 3996, "last": other + 3946, "unmapped": 8, "kernel": 2**64 - 4096, "none": 0})
places["changing"] = ctypes.addressof(ctypes.c_char.from_buffer(changing))
child = 0
for line in sys.stdin:
    variable.value = places[line.strip()]
    if line.strip() == "changing" and not child:
        child = os.fork()
        if not child:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            while True:
                changing[:8] = b"commit\\0\\0"
                changing[:8] = b"vacuum\\0\\0"
    os.preadv(fd, [buffer], 0)
    print("read", flush=True)
"""
# Of several pieces, with other letters than those of ASCII, cut off, and with nothing in memory behind it.
TEXTS = {
    "long": f"call ä({', '.join(['ö'] * 100)}, ?)",
    "longest": "select " + "b" * 1016,
    "last": "select " + "c" * 142,
}
LIES = ("binary", "escapes", "endless", "unmapped", "kernel")
CHANGES = 50
HONEST = "select ? from t"


def liar(folder: Path, disk: Disk, script: str = LIAR, names: dict[bytes, bytes] = VARIABLE) -> list[str]:
    """It has the name of a server, and these of its symbols, whose values follow the path of the disk."""
    program = folder / "postgres"
    shutil.copy(Path("/usr/bin/python3").resolve(), program)
    data = program.read_bytes()
    values = []
    for own, name in names.items():
        with program.open("rb") as file:
            found = elf.symbols(file.fileno())
        assert found is not None
        values.append(next(one.value for one in found.table if found.names.startswith(own + b"\0", one.name)))
        data = data.replace(b"\0" + own + b"\0", (b"\0" + name).ljust(len(own) + 2, b"\0"), 1)
    program.write_bytes(data)
    program.chmod(0o755)
    return [str(program), "-I", "-S", "-c", script, disk.path, *map(str, values), str(data[16])]


def test_servers_that_come_later_and_say_anything(disk: Disk, tmp_path: Path) -> None:
    words = liar(tmp_path, disk)
    with Trace("--dev", disk.name, "--by=statement", "--top=0", "--each", "100ms") as trace:
        home, pipe = {"PYTHONHOME": "/usr"}, subprocess.PIPE
        with subprocess.Popen(words, text=True, env=home, stdin=pipe, stdout=pipe) as process:
            assert process.stdin is not None

            def read(text: str) -> None:
                assert process.stdin is not None
                process.stdin.write(f"{text}\n")
                process.stdin.flush()
                assert said(process) == "read\n"

            # Until it is found it has the name of its program: when it starts slowly, it is found before it reads.
            honest = 0
            while HONEST not in trace.written():
                assert honest < PATIENCE
                read("honest")
                honest += 1
                seen = trace.written().count('"kind":"interval"')
                trace.wait_for('"kind":"interval"', "the next look", often=seen + 2)
            for text in (*TEXTS, *LIES):
                read(text)
            read("none")
            for _ in range(CHANGES):
                read("changing")
            process.stdin.close()
    exact(trace.summary)
    has_rows_of_records(trace.lines)
    had = {row["owner"]: row["count"] for row in totals(trace.summary, "owned_operation")}
    title = next(owner for owner in had if owner.startswith(str(tmp_path)))
    assert had[HONEST] > 0
    assert had[HONEST] + had.get("postgres", 0) == honest
    assert had[title] == 1
    assert [had.get(text) for text in TEXTS.values()] == [1] * len(TEXTS)
    # A text that is another one when it is copied is none.
    changed = had.get("vacuum", 0) + had.get("commit", 0)
    assert had["unread"] + changed == len(LIES) + CHANGES
    assert had["unread"] >= len(LIES)
    assert "[2J" not in trace.written()


# And rows of pg_stat_activity, with a function that says where the query id is.
OF_ROWS = {
    **VARIABLE,
    b"PyExc_FloatingPointError": b"MyBEEntry",
    b"Py_UnbufferedStdioFlag": b"MyProcPid",
    b"Py_NoUserSiteDirectory": b"MyDatabaseId",
    b"_PyInterpreterState_GetEvalFrameFunc": b"pgstat_get_my_query_id",
}
LIAR_WITH_ROWS = """
import ctypes, mmap, os, sys
disk, *places, _, place, kind = sys.argv[1:]
base = int(open("/proc/self/maps").read().partition("-")[0], 16) if kind == "3" else 0  # ET_DYN
text, entry, pid, database = (base + int(one) for one in places)
pid, database = (ctypes.c_int.from_address(one) for one in (pid, database))
text, entry = (ctypes.c_void_p.from_address(one) for one in (text, entry))
row = ctypes.create_string_buffer(4096)
texts = [ctypes.create_string_buffer(b"select %s from t" % name) for name in (b"a", b"b", b"c", b"d", b"e")]
fd = os.open(disk, os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 4096)

def read(number, query_id, has_pid, has_database, where=ctypes.addressof(row)):
    for place_of, value in ((4, has_pid), (48, has_database)):
        row[place_of : place_of + 4] = value.to_bytes(4, "little")
    row[int(place) : int(place) + 8] = query_id.to_bytes(8, "little")
    text.value, entry.value = ctypes.addressof(texts[number]), where
    os.preadv(fd, [buffer], 0)

print("ready", flush=True)
sys.stdin.readline()
pid.value, database.value = os.getpid(), 16384
read(0, 11, pid.value, 16384)
read(1, 12, pid.value + 1, 16384)
read(2, 13, pid.value, 16385)
read(3, 14, pid.value, 16384, 8)
# It is not analysed, then it is.
read(4, 0, pid.value, 16384)
read(4, 16, pid.value, 16384)
read(4, 17, pid.value, 16384)
"""


def test_rows_of_activity_that_are_not_those_of_the_process(disk: Disk, tmp_path: Path) -> None:
    """They are noticed, and the statement has its text alone."""
    words = liar(tmp_path, disk, LIAR_WITH_ROWS, OF_ROWS)
    with (tmp_path / "postgres").open("rb") as file:
        found = servers._variables(file.fileno())
    # Wherever this interpreter's function reads.
    assert 256 < found["query_id"] < 4096 - 8
    words.insert(-1, str(found["query_id"]))
    pipe = subprocess.PIPE
    with subprocess.Popen(words, text=True, env={"PYTHONHOME": "/usr"}, stdin=pipe, stdout=pipe) as process:
        assert said(process) == "ready\n"
        with Trace("--dev", disk.name, "--by=statement", "--top=0") as trace:
            process.communicate("\n", PATIENCE)
    assert process.returncode == 0
    had = {row["owner"]: row["count"] for row in totals(trace.summary, "owned_operation")}
    assert {owner: count for owner, count in had.items() if owner.startswith("select")} == {
        "select a from t": 1,
        "select b from t": 1,
        "select c from t": 1,
        "select d from t": 1,
        "select e from t": 3,
    }
    assert {one["owner"]: one["query_ids"] for one in trace.summary["statements"]} == {
        "select a from t": ["11"],
        "select e from t": ["16"],
    }
    assert trace.summary["loss"]["statement_origin"] == 3
