# SPDX-License-Identifier: Apache-2.0
"""`python3 -m bench`: what tracing costs. Results go to build/bench.json, the tables of them to docs/overhead.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import instructions, owners, record, table

Found = dict[str, Any]
_REQUESTS = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m bench", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")

    sub = commands.add_parser("all", help="everything, and the tables")
    sub.set_defaults(run=_all)

    sub = commands.add_parser("instructions", help="instructions added to a request, by wptrace and others, in a guest")
    _guest_options(sub)
    sub.add_argument("--boots", type=int, default=1, help="guests, which must agree (default: 1)")
    sub.add_argument("--repeats", type=int, default=2, help="runs of each load in a guest (default: 2)")
    sub.add_argument("--breakdown", action="store_true", help="instead: what each hook of wptrace io costs")
    sub.set_defaults(run=_instructions)

    sub = commands.add_parser("packets", help="instructions added to a received packet, in a guest")
    sub.add_argument("--kernel", default="6.12", help="of the tests' matrix (default: 6.12)")
    sub.add_argument("--only", action="append", default=[], metavar="NAME", help="as `flow netrx`; repeatable")
    sub.set_defaults(run=_packets)

    sub = commands.add_parser("paired", help="loads with and without tracing in turn, on the running kernel")
    sub.add_argument("--pairs", type=int, default=12)
    sub.add_argument("--only", action="append", default=[], metavar="MODE", help="as `io --each`; repeatable")
    sub.add_argument("--load", action="append", default=[], metavar="NAME", help="as `getppid`; repeatable")
    sub.set_defaults(run=_paired)

    sub = commands.add_parser("reader", help="records a second decoded and joined, from recorded rings")
    sub.add_argument("--repeats", type=int, default=9)
    sub.add_argument("--profile", action="store_true", help="also where the time goes")
    sub.set_defaults(run=_reader)

    sub = commands.add_parser("dumps", help="what a dump of a full flight recorder takes, on the running kernel")
    sub.add_argument("--repeats", type=int, default=5)
    sub.add_argument("--records", type=int, default=1 << 20)
    sub.set_defaults(run=_dumps)

    sub = commands.add_parser("start", help="time until all is attached, and memory, on the running kernel")
    sub.add_argument("--runs", type=int, default=10)
    sub.set_defaults(run=_start)

    sub = commands.add_parser(
        "scrape", help="CPU time of metrics of wptrace agent, as text and as OTLP; needs no kernel"
    )
    sub.add_argument("--repeats", type=int, default=20)
    sub.set_defaults(run=_scrape)

    sub = commands.add_parser("owners", help="CPU time of metrics by owner, while owners come and go; needs no kernel")
    sub.add_argument("--owners", type=int, default=owners.OWNERS, help=f"in all (default: {owners.OWNERS})")
    sub.add_argument("--busy", type=float, default=0.0, help="the share of the others that is busy (default: 0)")
    sub.set_defaults(run=_owners)

    sub = commands.add_parser("rows", help="CPU time of wptrace io --by process, few of whose rows change")
    sub.add_argument("--processes", type=int, default=5000)
    sub.add_argument("--busy", type=int, default=50)
    sub.add_argument("--seconds", type=float, default=20.0)
    sub.set_defaults(run=_rows)

    sub = commands.add_parser("fleet", help="a fleet in ClickHouse and DuckDB, by contrib; needs chdb and duckdb")
    sub.add_argument("cells", type=Path, help="of wptrace io --level block --export json=FILE")
    sub.add_argument("--parquet", type=Path, help="of the same with --each --export parquet=FILE")
    sub.add_argument("--hosts", type=int, default=200)
    sub.add_argument("--seconds", type=int, default=3600)
    sub.set_defaults(run=_fleet)

    sub = commands.add_parser("loss", help="what is lost at which rate, on the running kernel")
    sub.add_argument("--rate", type=int, action="append", default=[], help="a second; repeatable")
    sub.set_defaults(run=_loss)

    sub = commands.add_parser("table", help="print the tables of the last results")
    sub.add_argument("--write", action="store_true", help="also into docs/overhead.md")
    sub.set_defaults(run=_table)

    options = parser.parse_args(arguments)
    return int(options.run(options))


def _guest_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="of the tests' matrix (default: 6.12)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this tool, else those with it in their name"
    )
    parser.add_argument("--requests", type=int, default=_REQUESTS, help=f"in each run (default: {_REQUESTS})")


def _instructions(options: argparse.Namespace) -> int:
    if options.breakdown:
        words = ["instructions", "--breakdown", *_given(options)]
        record.keep("breakdown", words, instructions.breakdown(options.kernel, options.only, options.requests))
        return 0
    arguments = options.kernel, options.only, options.requests, options.repeats
    # Each guest takes one of this machine's CPUs; the lab starts as many as there is room for.
    with ThreadPoolExecutor(options.boots) as pool:
        boots = list(pool.map(lambda _: instructions.measure(*arguments), range(options.boots)))
    for line in (line for boot in boots for line in instructions.disagreements(boot)):
        print(f"not exact: {line}", flush=True)
    found = dict(boots[0])
    if len(boots) > 1:
        found["boots"] = len(boots)
        found["differences"] = [line for other in boots[1:] for line in instructions.differences(boots[0], other)]
        for line in found["differences"]:
            print(f"boots differ: {line}", flush=True)
    words = ["instructions", *_given(options)] + (["--boots", str(options.boots)] if options.boots > 1 else [])
    record.keep("instructions", words, found)
    failed = [tool["name"] for tool in found["tools"] if "failed" in tool]
    # A peer that loses events does not cost the same twice.
    ours = tuple(f"{tool['name']}, " for tool in found["tools"] if not tool.get("peer"))
    differing = [line for line in found.get("differences", []) if line.startswith(ours)]
    return 1 if failed or differing else 0


def _packets(options: argparse.Namespace) -> int:
    words = ["packets", *_given(options)]
    record.keep("packets", words, instructions.packets(options.kernel, options.only))
    return 0


def _given(options: argparse.Namespace) -> list[str]:
    requests = getattr(options, "requests", _REQUESTS)
    words = [word for name in options.only for word in ("--only", name)] + ["--kernel", options.kernel]
    return words if requests == _REQUESTS else [*words, "--requests", str(requests)]


def _paired(options: argparse.Namespace) -> int:
    from bench import paired

    modes = [mode for mode in paired.MODES if not options.only or " ".join(mode) in options.only]
    last = record.read().get("paired", {"results": []})["results"]
    found = {(one["work"], one["mode"]): one for one in last}
    for one in paired.measure(options.pairs, modes, options.load):
        found[one["work"], one["mode"]] = one
        # The table has all of them, also if it took several runs.
        results = [found[name] for name in paired.names() if name in found]
        record.keep("paired", ["paired", "--pairs", str(min(one["pairs"] for one in results))], results)
    return 0


def _reader(options: argparse.Namespace) -> int:
    from bench import reader

    record.keep("reader", ["reader"], reader.measure(options.repeats, options.profile))
    return 0


def _dumps(options: argparse.Namespace) -> int:
    from bench import dumps

    for line in dumps.words(dumps.measure(options.repeats, options.records)):
        print(line)
    return 0


def _start(options: argparse.Namespace) -> int:
    from bench import start

    record.keep("start", ["start", "--runs", str(options.runs)], start.measure(options.runs))
    return 0


def _scrape(options: argparse.Namespace) -> int:
    from bench import scrape

    print("\n".join(scrape.lines(scrape.run(options.repeats))))
    return 0


def _owners(options: argparse.Namespace) -> int:
    print(owners.line(owners.run(options.owners, options.busy)))
    return 0


def _rows(options: argparse.Namespace) -> int:
    from bench import rows

    print(rows.line(options.processes, options.busy, rows.measure(options.processes, options.busy, options.seconds)))
    return 0


def _fleet(options: argparse.Namespace) -> int:
    from bench import fleet

    fleet.clickhouse(options.cells.resolve(), options.hosts, options.seconds)
    if options.parquet is not None:
        fleet.parquet(options.parquet.resolve(), options.hosts)
    return 0


def _loss(options: argparse.Namespace) -> int:
    from bench import loss

    record.keep("loss", ["loss"], loss.measure(options.rate or loss.RATES))
    return 0


def _table(options: argparse.Namespace) -> int:
    found = record.read()
    if not found:
        print(f"bench: there is no {record.FILE}: measure first", file=sys.stderr)
        return 1
    print("\n\n".join(table.blocks(found).values()))
    if options.write:
        table.write(found)
    return 0


def _all(_options: argparse.Namespace) -> int:
    # The clocks of guests count instructions, so they do not mind what else runs; the others come one by one.
    guests = (["instructions", "--boots", "2"], ["instructions", "--breakdown"], ["packets"])
    with ThreadPoolExecutor(len(guests)) as pool:
        codes = list(pool.map(main, guests))
    codes += [main([word]) for word in ("paired", "reader", "start", "loss", "table")]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
