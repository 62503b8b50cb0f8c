# SPDX-License-Identifier: Apache-2.0
"""Durations, sizes and rates as people write and read them."""

from __future__ import annotations

import re

from wptrace.errors import UsageError

NS_PER = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SPELLINGS = {"µs": "us", "μs": "us", "min": "m"}
_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})\s*([^\s0-9.]*)")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,18})?)%?")
# The kernel side holds nanoseconds in 64 bits and takes differences of them.
_LONGEST_NS = (1 << 63) - 1

# Up to which value each unit is used: what would round to a thousand, or to sixty, belongs to the next.
_STEPS = (
    (999.5 * NS_PER["us"], NS_PER["us"], "us"),
    (999.5 * NS_PER["ms"], NS_PER["ms"], "ms"),
    (59.95 * NS_PER["s"], NS_PER["s"], "s"),
    (59.95 * NS_PER["m"], NS_PER["m"], "min"),
)


def duration(ns: float) -> str:
    """Three significant digits and a unit: 850 ns, 1.23 ms, 12.3 s, 2.50 min."""
    if ns < 999.5:
        return f"{round(ns)} ns"
    for limit, scale, unit in _STEPS:
        if ns < limit:
            return f"{_three_digits(ns / scale)} {unit}"
    return f"{_three_digits(ns / NS_PER['h'])} h"


def size(count: float) -> str:
    """Bytes in powers of 1024, without idle zeros: 512 B, 4 KiB, 1.5 MiB."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rate(per_second: float) -> str:
    """Events a second in powers of 1000: 850 /s, 12.3 k/s, 1.23 M/s."""
    return _scaled(per_second, 1000, ("/s", "k/s", "M/s", "G/s"))


def parse_bytes(text: str) -> int | None:
    """Bytes from 64K, 1M or a plain number. More digits are a mistake, and int() refuses thousands of them."""
    number, unit = (text[:-1], _SIZES[text[-1:].upper()]) if text[-1:].upper() in _SIZES else (text, 1)
    return int(number) * unit if re.fullmatch(r"[0-9]{1,18}", number) else None


def parse_share(text: str) -> float | None:
    """The share of 5%, 5 or 0.5%."""
    match = _PERCENT.fullmatch(text)
    found = float(match.group(1)) / 100 if match is not None else 0.0
    return found if 0 < found <= 1 else None


def parse_duration(text: str, default_unit: str | None = None) -> int:
    """Nanoseconds from 5ms, 1.5s, 200us or 2m; a bare number only where there is a default unit, or where it is 0."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration such as 5ms or 1.5s")
    number, unit = match.groups()
    if not unit and not float(number):
        return 0
    unit = _SPELLINGS.get(unit, unit) or default_unit or ""
    if unit not in NS_PER:
        wrong = "has an unknown unit" if unit else "has no unit"
        raise UsageError(f"the duration {text!r} {wrong}: the units are {', '.join(NS_PER)}")
    whole, _, part = number.partition(".")
    scale: int = 10 ** len(part)
    ns, rest = divmod(int(whole + part) * NS_PER[unit], scale)
    if rest:
        raise UsageError(f"the duration {text!r} is not a whole number of nanoseconds")
    if ns > _LONGEST_NS:
        raise UsageError(f"the duration {text!r} is longer than 292 years")
    return ns


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    step = 0
    while value >= base - 0.5 and step < len(units) - 1:
        value /= base
        step += 1
    digits = _three_digits(value)
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{digits} {units[step]}"
