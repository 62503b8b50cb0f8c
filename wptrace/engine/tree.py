# SPDX-License-Identifier: Apache-2.0
"""From records to trees: operation -> bios -> requests, through splits, merges, requeues and clones.

A record says about one thing as much as its hook knew: that it began, that it ended, what it came from,
points that it passed, or all at once. A split is several records that name one parent. A merge is one thing
with several parents. A clone, or a remap to another device, is a bio whose parent is a bio. A requeue is a
point passed again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

from wptrace.engine.accounting import UNMATCHED_START, Accounting, Cause
from wptrace.engine.node import CROWDED_OUT, UNSEEN, Key, Mark, Node

Record = tuple[int, Key, int, int, tuple[Key, ...], tuple[Mark, ...], object]
"""time_ns, key, start_ns or 0, end_ns or 0, keys of the parents, marks, detail or None.

`time_ns` is when the record was made: at the end for one that tells all at once.
"""

LATE = Cause("late", "a record came later than the reordering window allows and may be joined wrongly")

_ORDER = itemgetter(0, 1, 2, 3, 4, 5)
_WHEN = itemgetter(1, 0)


class TreeBuilder:
    """Joins records into trees; keeps no clock, time is that of the records.

    Records may arrive out of order by up to `window_ns`. What gets no end within `max_age_ns`, or is among
    the oldest when more than `max_nodes` are held, is given up, and its tree comes out incomplete. Every node
    is counted in `accounting`, as finished or under the cause for which it lacks a start or an end.
    """

    def __init__(self, window_ns: int, max_age_ns: int, max_nodes: int) -> None:
        self.accounting = Accounting()
        self._window_ns = window_ns
        self._max_age_ns = max_age_ns
        self._max_nodes = max_nodes
        self._pending: list[Record] = []
        self._nodes: dict[Key, Node] = {}
        self._ripe: list[Node] = []
        self._horizon_ns = 0
        self._next_sweep_ns = 0

    def feed(self, records: Iterable[Record], now_ns: int = 0) -> list[Node]:
        """Take records in any order, give the roots of the trees that are now whole.

        Pass the time of the records' clock as `now_ns` where no record may come to move time on.
        """
        pending = self._pending
        pending.extend(records)
        try:
            pending.sort()
        except TypeError:
            # Two records differ only in details that have no order. Leaving those out always would take the
            # sort four times as long.
            pending.sort(key=_ORDER)
        if pending:
            now_ns = max(now_ns, pending[-1][0])
        return self._advance(now_ns - self._window_ns)

    def drain(self) -> list[Node]:
        """Give what is whole, without waiting for records that may still come; the rest stays in flight."""
        return self._advance(self._pending[-1][0] if self._pending else 0)

    def unfinished(self) -> list[Node]:
        """The roots of what is in flight, oldest first."""
        roots: dict[int, Node] = {}
        waiting = list(self._nodes.values())
        seen = set(map(id, waiting))
        while waiting:
            node = waiting.pop()
            if not node.parents:
                roots[id(node)] = node
            for parent in node.parents:
                if id(parent) not in seen:
                    seen.add(id(parent))
                    waiting.append(parent)
        return sorted(roots.values(), key=lambda node: (node.seen_ns, node.key))

    def _advance(self, horizon_ns: int) -> list[Node]:
        pending = self._pending
        passed_ns = self._horizon_ns
        if horizon_ns > passed_ns:
            self._horizon_ns = horizon_ns
        # A tuple of one sorts before every longer one that begins with the same time.
        cut = bisect_left(pending, (self._horizon_ns + 1,))
        due = pending[:cut]
        del pending[:cut]
        late = bisect_left(due, (passed_ns + 1,))
        if late:
            self.accounting.note(LATE, late)
        roots: list[Node] = []
        self._join(due, roots)
        self._give_up_aged()
        self._release(roots)
        # Giving up the older half is enough unless something young keeps the old ones' trees open.
        share = 2
        while self.accounting.in_flight > self._max_nodes:
            for node in list(self._nodes.values())[: len(self._nodes) // share]:
                if not node.closed:
                    self._give_up(node, CROWDED_OUT)
            self._release(roots)
            share = 1
        return roots

    def _join(self, records: list[Record], roots: list[Node]) -> None:
        nodes = self._nodes
        find = nodes.get
        ripe = self._ripe
        fresh = 0
        before_ns = 0
        for time_ns, key, start_ns, end_ns, parents, marks, detail in records:
            # A tree leaves when time moves on, not at the end of a batch: what becomes of a record that comes
            # after it must not depend on how records were cut into batches.
            if ripe and time_ns != before_ns:
                self._release(roots)
            before_ns = time_ns
            node = find(key)
            if node is None or (start_ns and self._is_next_life(node, start_ns)):
                earlier, node = node, Node(key, time_ns)
                if earlier is not None:
                    if not earlier.closed and earlier.children:
                        self._hand_over(earlier, node, start_ns)
                    self._displace(earlier)
                nodes[key] = node
                fresh += 1
            if not node.start_ns:
                node.start_ns = start_ns
            if marks:
                node.marks += marks
            if detail is not None:
                node.details += (detail,)
            for parent_key in parents:
                parent = find(parent_key)
                if parent is None or 0 < parent.end_ns < (start_ns or time_ns):
                    if parent is not None:
                        self._displace(parent)
                    parent = nodes[parent_key] = Node(parent_key, time_ns)
                    fresh += 1
                self._link(parent, node)
            if end_ns:
                if end_ns > node.end_ns:
                    node.end_ns = end_ns
                if not node.closed:
                    node.closed = True
                    if not node.open:
                        self._complete(node)
        self.accounting.start(fresh)

    @staticmethod
    def _is_next_life(node: Node, start_ns: int) -> bool:
        """Whether something that began at `start_ns` is not this node but a later one with the same key."""
        if node.start_ns:
            return start_ns > node.start_ns and (not node.end_ns or start_ns >= node.end_ns)
        return start_ns > (node.end_ns or node.seen_ns)

    def _displace(self, node: Node) -> None:
        # Removed first, so that the next life takes a new place: the order of the nodes is that of their age.
        del self._nodes[node.key]
        if not node.closed:
            self._give_up(node, UNMATCHED_START if node.start_ns else UNSEEN)

    def _hand_over(self, earlier: Node, node: Node, start_ns: int) -> None:
        """Children that began in the next life were taken for those of a life whose own record is lost."""
        for child in [child for child in earlier.children if child.start_ns >= start_ns]:
            earlier.children.remove(child)
            child.parents = tuple(parent for parent in child.parents if parent is not earlier)
            if not child.complete:
                earlier.open -= 1
            self._link(node, child)

    def _link(self, parent: Node, child: Node) -> None:
        if parent in child.parents or parent is child:
            return
        if parent.parents and child.children and _is_below(parent, child):
            return
        child.parents += (parent,)
        parent.children.append(child)
        if not child.complete:
            parent.open += 1
            if parent.complete:
                self._reopen(parent)

    def _complete(self, node: Node) -> None:
        node.complete = True
        if not node.parents:
            self._ripe.append(node)
        for parent in node.parents:
            parent.open -= 1
            if parent.closed and not parent.open:
                self._complete(parent)

    def _reopen(self, node: Node) -> None:
        node.complete = False
        for parent in node.parents:
            parent.open += 1
            if parent.complete:
                self._reopen(parent)

    def _give_up(self, node: Node, cause: Cause) -> None:
        node.given_up = cause
        node.closed = True
        if not node.open:
            self._complete(node)

    def _give_up_aged(self) -> None:
        # Looking at every node costs, so it is done only a few times in the span of the age.
        if self._horizon_ns < self._next_sweep_ns:
            return
        self._next_sweep_ns = self._horizon_ns + self._max_age_ns // 8
        oldest_ns = self._horizon_ns - self._max_age_ns
        for node in list(self._nodes.values()):
            if not node.closed and node.seen_ns < oldest_ns:
                self._give_up(node, UNMATCHED_START if node.start_ns else UNSEEN)

    def _release(self, roots: list[Node]) -> None:
        nodes = self._nodes
        finished = 0
        for root in self._ripe:
            if root.left or root.parents or not root.complete:
                continue
            roots.append(root)
            waiting = [root]
            while waiting:
                node = waiting.pop()
                if node.left:
                    continue
                node.left = True
                if nodes.get(node.key) is node:
                    del nodes[node.key]
                if node.start_ns and node.end_ns:
                    finished += 1
                elif node.missing:
                    self.accounting.lose(node.missing)
                if len(node.marks) > 1:
                    node.marks = tuple(sorted(node.marks, key=_WHEN))
                children = node.children
                if children:
                    waiting += children
                    if len(children) > 1:
                        children.sort(key=_by_time)
                parents = node.parents
                if parents:
                    node.origins = (parents[0].key,) if len(parents) == 1 else _keys(parents)
                    # The links up would keep the tree alive until the next cyclic garbage collection.
                    node.parents = ()
        self._ripe.clear()
        self.accounting.finish(finished)


def _by_time(node: Node) -> tuple[int, int, Key]:
    return node.start_ns, node.end_ns, node.key


def _keys(nodes: Iterable[Node]) -> tuple[Key, ...]:
    return tuple(sorted(node.key for node in nodes))


def _is_below(node: Node, other: Node) -> bool:
    return any(parent is other or _is_below(parent, other) for parent in node.parents)
