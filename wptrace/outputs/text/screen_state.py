# SPDX-License-Identifier: Apache-2.0
"""Settings of a live screen that the user changes by keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Callable

from wptrace.analysis import neighbours
from wptrace.analysis.load import LOAD
from wptrace.analysis.waits import ASLEEP, OWNED_WAIT, PARTS_OF_STAGES, WAITS
from wptrace.model.kind import ALL, DEVICE, OTHERS, OWNER, TOTAL, Group, Kind
from wptrace.model.report import BYTES, Report, Row
from wptrace.outputs.text import owners, words

TABLES, ROWS, ROW, STORIES = "tables", "rows", "row", "stories"

Order = Callable[[Report, Group, Row], float]
# The values by which rows are sorted; without a name, the order stays as it is.
ORDERS: dict[str, Order | None] = {
    "": None,
    "time": lambda report, group, row: row.distribution.sum,
    "count": lambda report, group, row: row.distribution.count,
    "bytes": lambda report, group, row: report.counter(group, BYTES),
    "mean": lambda report, group, row: row.distribution.mean,
    "p99": lambda report, group, row: row.distribution.percentile(99),
    "max": lambda report, group, row: row.distribution.max,
}
_REARRANGING = ("b", "d", "s", "/", "<", ">")
_STEPS = {"up": -1, "down": 1, "pgup": -10, "pgdn": 10, "home": -1 << 30, "end": 1 << 30}
# The longest filter.
_LONGEST_NEEDLE = 64


class ScreenState:
    """`press` takes keys, `arranged` makes of a report the one to be drawn."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        per_device: bool,
        groups: bool = True,
        owners: Sequence[str] = (),
        recorder: bool = False,
    ) -> None:
        """Where the tables cannot be grouped anew (`groups`), only the list of rows follows the keys."""
        self._owners, self._recorder = owners, recorder
        self.dump_asked = False
        """The user wants what the flight recorder has."""
        self.next_owner = ""
        """The kind of owners that the user wants next, which ends this trace."""
        self.page = TABLES
        self.helping = False
        self.help_scroll = 0
        self.paused = False
        self.typing = False
        self.needle = ""
        self.message = ""
        """Why the last key did nothing."""
        self.order = ""
        self.per_device = per_device
        self.stage = ""
        """The stage whose histogram is drawn for one row; empty: the total's."""
        self.chosen: Group | None = None
        self.scroll = 0
        """By how many lines a page is scrolled that is higher than the screen."""
        self.rows: list[Group] = []
        """The groups with rows, in their last order."""
        self.stale = True
        """They are other ones since, and have to be arranged before one is chosen."""
        self.back = 0
        """How many intervals before the last one are shown."""
        self.past = 0
        """How many intervals there are."""
        self.hidden = 0
        """How many rows the filter leaves out."""
        self._metrics: dict[Group, list[str]] = {}
        # Waits and what is known of them stay together.
        self._kinds = frozenset((*kinds, WAITS, ASLEEP))
        self._place = kinds[0].labels[0].name if kinds and _is_place(kinds) else ""
        self._groupings = _groupings(kinds, self._place) if groups else [((), frozenset[str]())]
        self._grouping = 0

    @property
    def grouping(self) -> str:
        """The labels by which the user groups rows."""
        return " and ".join(self._groupings[self._grouping][0]) or "nothing" if self._grouping else ""

    def add_interval(self, count: int) -> None:
        """Count one more of `count` kept intervals. A user who went back keeps seeing the same one."""
        self.past = count
        if self.back:
            self.back = min(self.back + 1, count - 1)

    # --- Keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        """False: the user wants to end."""
        self.message = ""
        self.stale |= self.typing or key in _REARRANGING
        if self.typing:
            self._type(key)
        elif self.helping and key in _STEPS:
            self.help_scroll = max(self.help_scroll + _STEPS[key], 0)
        elif self.helping:
            self.helping = False
        elif key == "q":
            return False
        elif key == "o" and len(self._owners) > 1:
            self.next_owner = self._owners[1]
            return False
        else:
            self._press(key)
        return True

    def moves(self, key: str) -> bool:
        """Whether a key may select a row, or act on it."""
        return not self.typing and (key in _STEPS or key in ("enter", "left", "right"))

    def _press(self, key: str) -> None:
        if key == "o":
            self.message = "owners are chosen at the start here: --by"
        elif key in ("?", "h"):
            self.helping, self.help_scroll = True, 0
        elif key in ("p", " "):
            self.paused = not self.paused
        elif key == "b":
            self._grouping = (self._grouping + 1) % len(self._groupings)
            self.message = "" if len(self._groupings) > 1 else "there is nothing else to group by"
        elif key == "D":
            self.dump_asked = self._recorder
            self.message = "" if self._recorder else "there is no flight recorder: --recorder 30s"
        elif key == "d":
            self.per_device = self.per_device != bool(self._place)
            self.message = "" if self._place else "its rows have no devices"
        elif key == "s":
            orders = list(ORDERS)
            self.order = orders[(orders.index(self.order) + 1) % len(orders)]
            kinds = Counter(group.kind for group in self.rows)
            if self.order and max(kinds.values(), default=0) < 2:
                self.message = "there are no two rows of a kind to be sorted"
        elif key in ("<", ">"):
            back = self.back + (1 if key == "<" else -1)
            self.back = min(max(back, 0), max(self.past - 1, 0))
            if self.back != back:
                self.message = "this is the last interval" if key == ">" else "there is no earlier interval"
        elif key == "/":
            self.typing, self.needle = True, ""
        elif key == "tab":
            self._turn(TABLES if self.page == STORIES else STORIES)
        else:
            self._move(key)

    def _turn(self, page: str) -> None:
        self.page, self.scroll = page, 0

    def _type(self, key: str) -> None:
        if key in ("enter", "esc"):
            self.typing = False
            self.needle = self.needle if key == "enter" else ""
        elif key == "backspace":
            self.needle = self.needle[:-1]
        elif key == "clear":
            self.needle = ""
        elif len(key) == 1 and len(self.needle) < _LONGEST_NEEDLE:
            self.needle += key

    def _move(self, key: str) -> None:
        if key == "esc":
            self.back = 0 if self.page == TABLES else self.back
            self._turn(ROWS if self.page == ROW else TABLES)
        elif self.page == TABLES:
            if key in _STEPS or key == "enter":
                self._turn(ROWS)
                self.chosen = self.rows[0] if self.rows and self.chosen not in self.rows else self.chosen
        elif self.page == ROWS:
            if key == "enter" and self.chosen is not None:
                self._turn(ROW)
            elif key in _STEPS and self.rows:
                at = self.rows.index(self.chosen) + _STEPS[key] if self.chosen in self.rows else 0
                self.chosen = self.rows[min(max(at, 0), len(self.rows) - 1)]
        elif self.page == ROW and key in ("left", "right") and self.chosen is not None:
            names = self._metrics.get(self.chosen, [TOTAL])
            at = names.index(self.stage) if self.stage in names else len(names) - 1
            self.stage = names[(at + (1 if key == "right" else -1)) % len(names)]
        elif self.page == ROW and key == "enter":
            self._turn(ROWS)
        elif key in _STEPS:
            # Stories begin at the end, where the newest is.
            step = -_STEPS[key] if self.page == STORIES else _STEPS[key]
            self.scroll = max(self.scroll + step, 0)

    # --- What there is to see -----------------------------------------------------------------------------------------

    def arranged(self, report: Report) -> Report:
        """Return the report by the chosen labels, filtered and sorted."""
        names = self._groupings[self._grouping][1]
        found = report.without({self._place}) if self._place and not self.per_device else report
        # Groups that have counters alone have other labels than these.
        found = found.without(names, self._kinds) if names else found
        tables: dict[Group, list[Row]] = {}
        for row in found.rows:
            # Added up over all owners they would say once more what the other tables say.
            if not any(label.alias == OWNER and row.group.label(label.name) is ALL for label in row.group.kind.labels):
                tables.setdefault(row.group, []).append(row)
        every = len(tables)
        tables = {group: rows for group, rows in tables.items() if self._matches(group)}
        self.hidden = every - len(tables)
        self.rows, self.stale = self._sorted(found, tables), False
        self._metrics = {group: [row.metric for row in rows] for group, rows in tables.items()}
        counters = found.counters
        if self.needle:
            counters = neighbours.only(counters, self._named)
            # A device that is not there at all has no line; what is merged or transferred belongs to a row.
            counters = {one: counts for one, counts in counters.items() if one.kind is not LOAD or self._matches(one)}
        return found.only(self.rows)._replace(counters=counters)

    def _matches(self, group: Group) -> bool:
        return self._named(f"{words.group(group)} {group.kind.noun.plural}")

    def _named(self, text: str) -> bool:
        return self.needle.casefold() in text.casefold()

    def _sorted(self, report: Report, tables: dict[Group, list[Row]]) -> list[Group]:
        order = ORDERS[self.order]
        kinds = {kind: at for at, kind in enumerate(dict.fromkeys(group.kind for group in tables))}
        if order is None:
            return sorted(tables, key=lambda group: (kinds[group.kind], *owners.place_of(group, report.cells[group])))

        def place(group: Group) -> tuple[int, bool, float]:
            total = next((row for row in tables[group] if row.metric == TOTAL), tables[group][-1])
            return kinds[group.kind], OTHERS in group.values, -order(report, group, total)

        return sorted(tables, key=place)


def _is_place(kinds: Sequence[Kind]) -> bool:
    """All of them begin with the same device."""
    return all(kind.labels and kind.labels[0] == kinds[0].labels[0] for kind in kinds) and (
        kinds[0].labels[0].type == DEVICE
    )


def _groupings(kinds: Sequence[Kind], place: str) -> list[tuple[tuple[str, ...], frozenset[str]]]:
    """Labels to keep apart by, and those that are added up: all of them, each alone, none."""
    aside = {*(kind.name for kind in PARTS_OF_STAGES), OWNED_WAIT}
    labels = [label.name for kind in kinds if kind.name not in aside for label in kind.labels]
    names = [name for name in dict.fromkeys(labels) if name != place]
    shown = [tuple(names), *((name,) for name in names if len(names) > 1), *([()] if names else [])]
    return [(kept, frozenset(names) - frozenset(kept)) for kept in shown]
