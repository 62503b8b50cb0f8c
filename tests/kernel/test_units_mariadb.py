# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --by unit --unit mariadb`, against what the server counts itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, loop_device
from tests.kernel.loads import mounted
from tests.kernel.mariadb import Client, server
from tests.kernel.test_owners import exact, totals
from tests.kernel.test_statements import read_bytes
from tests.kernel.trace import Trace, wait_until
from tests.thorough import only_all

pytestmark = pytest.mark.one_kernel

TABLE = "create table d.big (id int primary key, v varchar(900)) select seq id, repeat('x', 900) v from d.seq"
SCAN, LOOKUP = "select count(*) from d.big where v <> ?", "select length(v) from d.big where id = ?"
DOUBLE = "insert into d.seq select seq + ? from d.seq"
PREPARED, EXECUTED = "prepares a statement", "select count(*) from d.big where id > ?"
LOOKUPS, EXECUTIONS = 300, 50
ROWS, WIDTH = 1 << 14, 900


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with loop_device(tmp_path_factory.mktemp("disk") / "disk.img", "512M") as made:
        yield made


def fill(client: Client) -> None:
    client.query("create database d")
    client.query("create table d.seq (seq int)")
    client.query("insert into d.seq values (1)")
    for more in range(14):
        client.query(DOUBLE.replace("?", str(1 << more)))
    client.query(TABLE)


@pytest.mark.parametrize("version", ["10.11", *(pytest.param(one, marks=only_all) for one in ("10.5", "11.8"))])
def test_what_statements_read(version: str, disk: Disk, tmp_path: Path) -> None:
    """They equal the server's own counter; it reads for nothing else meanwhile."""
    read: dict[str, int] = {}
    with mounted(disk, "ext4", tmp_path / "files") as folder, server(folder / "mariadb", version) as (path, pid):
        client = Client(path)
        fill(client)
        # Threads that purge what is not needed any more read pages of the table. That of 10.5 keeps some.
        wait_until(lambda: version == "10.5" or client.status("Innodb_history_list_length") == 0, "the end of purging")
        with Trace("--dev", disk.name, "--by=unit", "--unit=mariadb", f"--program=/proc/{pid}/exe", "--top=0") as trace:
            if version == "11.8":
                client.query("insert into d.seq values (0)")
                client.query("set global innodb_max_dirty_pages_pct = 0")
                wait_until(lambda: client.status("Innodb_buffer_pool_pages_dirty") == 0, "writes of pages")
            before = client.status("Innodb_data_read")

            def counted(name: str) -> None:
                """Note what was read since the last call under this name."""
                nonlocal before
                now = client.status("Innodb_data_read")
                read[name], before = now - before, now

            client.query("select count(*) from d.big where v <> 'a'")
            client.query('select count(*) from d.big where v <> "it\\"s"')
            counted(SCAN)
            for number in range(LOOKUPS):
                client.query(LOOKUP.replace("?", str(1 + 53 * number)))
            counted(LOOKUP)
            prepared = client.prepare(EXECUTED)
            counted(PREPARED)
            for _ in range(EXECUTIONS):
                assert client.execute(prepared, 15_000) == 1
            counted(EXECUTED)
            trace.stop()
        client.close()
    exact(trace.summary)
    found = read_bytes(trace.summary)
    assert read[SCAN] > ROWS * WIDTH
    # What 10.5 purges meanwhile may bring all pages.
    assert read[EXECUTED] > 0 or version == "10.5"
    named = {name: found.get(name, 0) for name in read}
    # What 10.5 reads ahead, which its threads do.
    assert sum(named.values()) + found.get("no unit", 0) == sum(read.values())
    # The threads of earlier versions have no names.
    if version == "11.8":
        written = {row["owner"] for row in totals(trace.summary, "owned_operation") if row["op"] == "write"}
        assert "ib_tpool_worker" in written
        assert "no unit" not in written
    assert named == read or (version == "10.5" and all(named[name] <= read[name] for name in read))
    # Both literals are removed, and results in the buffer of a statement are not in its text.
    assert sorted(owner for owner in found if owner.startswith("select")) == sorted(
        (SCAN, LOOKUP, *((EXECUTED,) if EXECUTED in found else ()))
    )
    assert "unread" not in found
