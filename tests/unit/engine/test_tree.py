# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from wptrace.engine.accounting import UNMATCHED_END, UNMATCHED_START
from wptrace.engine.node import CROWDED_OUT, UNSEEN, Key, Mark, Node
from wptrace.engine.tree import LATE, Record, TreeBuilder

WINDOW = 20
LONG = 10_000
seeds = st.integers(0, 1 << 32)
examples = settings(max_examples=80, deadline=None)


def builder(window: int = 0, age: int = LONG, room: int = LONG) -> TreeBuilder:
    return TreeBuilder(window, age, room)


def began(key: Key, start: int, *parents: Key, marks: tuple[Mark, ...] = (), detail: object = None) -> Record:
    return start, key, start, 0, parents, marks, detail


def ended(key: Key, end: int, *, marks: tuple[Mark, ...] = ()) -> Record:
    return end, key, 0, end, (), marks, None


def whole(key: Key, start: int, end: int, *parents: Key, marks: tuple[Mark, ...] = (), detail: object = None) -> Record:
    return end, key, start, end, parents, marks, detail


def shape(node: Node) -> tuple[object, ...]:
    """Everything a tree says, comparable."""
    below = tuple(shape(child) for child in node.children)
    return node.key, node.start_ns, node.end_ns, node.marks, node.details, node.origins, node.missing, below


def shapes(nodes: Iterable[Node]) -> list[tuple[object, ...]]:
    return sorted(map(shape, nodes), key=repr)


def outline(node: Node) -> str:
    below = " ".join(outline(child) for child in node.children)
    return f"{node.key[0]}{node.key[1]}" + (f"({below})" if below else "")


def outlines(nodes: Iterable[Node]) -> list[str]:
    return sorted(map(outline, nodes))


class World:
    """Operations as they may happen, each with bios, some cloned, and requests; addresses are reused."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a reproducible world, no secret
        self.records: list[Record] = []
        self.lives: dict[Key, list[tuple[int, int]]] = {}
        self.nodes = 0
        self.bios: list[Node] = []
        self.roots = [self._grow("op", 1, 300) for _ in range(self.chance.randint(1, 6))]
        self._merge()

    def _grow(self, kind: str, low: int, high: int, parent: Node | None = None) -> Node:
        start = self.chance.randint(low, high)
        end = self.chance.randint(start, high)
        node = Node(self._address(kind, start, end), 0)
        node.start_ns, node.end_ns = start, end
        node.marks = (("Q", start), ("C", end))
        node.details = (self.nodes,)
        self.nodes += 1
        parents = [parent] if parent else []
        if parent:
            parent.children.append(node)
            if kind == "bio":
                self.bios.append(node)
        self._tell(node, parents)
        for _ in range(self.chance.randint(0, 3) if kind != "request" else 0):
            self._grow(self.chance.choice(["bio", "request"]) if kind == "bio" else "bio", start, end, node)
        return node

    def _address(self, kind: str, start: int, end: int) -> Key:
        number = 0
        while any(low <= end and start <= high for low, high in self.lives.get((kind, number), [])):
            number += 1
        self.lives.setdefault((kind, number), []).append((start, end))
        return kind, number

    def _tell(self, node: Node, parents: list[Node]) -> None:
        node.origins = tuple(sorted(parent.key for parent in parents))
        (detail,) = node.details
        start, end = node.start_ns, node.end_ns
        if start == end or self.chance.random() < 0.5:
            self.records.append(whole(node.key, start, end, *node.origins, marks=node.marks, detail=detail))
        else:
            first, last = node.marks
            self.records += [
                began(node.key, node.start_ns, *node.origins, marks=(first,), detail=detail),
                ended(node.key, node.end_ns, marks=(last,)),
            ]

    def _merge(self) -> None:
        """One request for all bios that are alive at one moment, of whatever operation."""
        for _ in range(2):
            now = self.chance.randint(1, 300)
            alive = [bio for bio in self.bios if bio.start_ns <= now <= bio.end_ns]
            if len(alive) > 1:
                node = Node(self._address("request", now, now), 0)
                node.start_ns = node.end_ns = now
                node.marks = (("G", now), ("D", now))
                node.details = (self.nodes,)
                self.nodes += 1
                for bio in alive:
                    bio.children.append(node)
                self._tell(node, alive)

    def truth(self) -> list[tuple[object, ...]]:
        for root in self.roots:
            for node in root.walk():
                node.children.sort(key=lambda child: (child.start_ns, child.end_ns, child.key))
                node.marks = tuple(sorted(node.marks, key=lambda mark: (mark[1], mark[0])))
        return shapes(self.roots)

    def arrive(self, building: TreeBuilder) -> list[Node]:
        """Feed all records, displaced by less than the window, in batches of any size."""
        arriving = sorted(self.records, key=lambda record: record[0] + self.chance.randrange(WINDOW))
        roots = []
        while arriving:
            size = self.chance.choice([1, 2, 5, 100])
            roots += building.feed(arriving[:size])
            del arriving[:size]
        return roots


@examples
@given(seeds)
def test_trees_are_what_happened_whatever_the_order_of_records(seed: int) -> None:
    world = World(seed)
    building = builder(WINDOW)
    roots = world.arrive(building) + building.drain()
    assert shapes(roots) == world.truth()
    assert building.unfinished() == []
    book = building.accounting
    assert (book.started, book.finished, book.in_flight) == (world.nodes, world.nodes, 0)
    assert not book.lost
    assert not book.noted


@examples
@given(seeds)
def test_with_records_lost_the_order_still_does_not_matter_and_all_is_counted(seed: int) -> None:
    world = World(seed)
    world.records = [record for record in world.records if world.chance.random() < 0.8]
    results = []
    for _ in range(2):
        building = builder(WINDOW)
        roots = world.arrive(building)
        roots += building.drain()
        held = {id(node) for root in building.unfinished() for node in root.walk() if not node.left}
        assert building.accounting.in_flight == len(held)
        roots += building.feed([], now_ns=3 * LONG)
        book = building.accounting
        assert building.unfinished() == []
        assert book.in_flight == 0
        nodes = {id(node): node for root in roots for node in root.walk()}
        assert book.started == len(nodes)
        causes = [node.missing for node in nodes.values() if node.missing]
        assert book.lost == {cause: causes.count(cause) for cause in causes}
        results.append(shapes(roots))
    assert results[0] == results[1]


@examples
@given(seeds)
def test_what_is_held_stays_within_its_room(seed: int) -> None:
    world = World(seed)
    world.records = [record for record in world.records if world.chance.random() < 0.8]
    building = builder(WINDOW, room=5)
    for record in sorted(world.records):
        building.feed([record])
        assert building.accounting.in_flight <= 5
    building.feed([], now_ns=3 * LONG)
    assert building.accounting.in_flight == 0


OP, BIO, REQUEST = ("op", 1), ("bio", 1), ("request", 1)


def test_a_chain_told_from_its_end() -> None:
    building = builder()
    assert building.feed([whole(REQUEST, 20, 80, BIO), whole(BIO, 10, 85, OP)]) == []
    assert [outline(root) for root in building.unfinished()] == ["op1(bio1(request1))"]
    assert building.accounting.in_flight == 3
    (root,) = building.feed([whole(OP, 5, 100, detail="dd")])
    assert outline(root) == "op1(bio1(request1))"
    assert (root.kind, root.details, root.missing) == ("op", ("dd",), None)
    assert [node.origins for node in root.walk()] == [(), (OP,), (BIO,)]


def test_nothing_leaves_before_the_window_has_passed() -> None:
    building = builder(window=50)
    assert building.feed([whole(OP, 5, 100)]) == []
    assert building.feed([], now_ns=149) == []
    assert outlines(building.feed([], now_ns=150)) == ["op1"]


def test_an_operation_waits_for_what_outlives_it() -> None:
    building = builder()
    assert building.feed([began(OP, 1), began(BIO, 2, OP), ended(OP, 3), began(REQUEST, 4, BIO)]) == []
    assert building.feed([ended(REQUEST, 50)]) == []
    assert outlines(building.feed([ended(BIO, 51)])) == ["op1(bio1(request1))"]


def test_one_bio_split_into_requests() -> None:
    others = [whole(("request", number), 10 + number, 30, BIO) for number in (2, 1, 3)]
    roots = builder().feed([*others, whole(BIO, 5, 40, OP), whole(OP, 1, 50)])
    assert outlines(roots) == ["op1(bio1(request1 request2 request3))"]


def test_bios_of_two_operations_merged_into_one_request() -> None:
    building = builder()
    first = building.feed(
        [
            began(OP, 1),
            began(("op", 2), 2),
            began(BIO, 3, OP),
            began(REQUEST, 4, BIO),
            began(("bio", 2), 5, ("op", 2)),
            # The merge: told about the request, with nothing new but where it comes from.
            (6, REQUEST, 0, 0, (("bio", 2),), (("M", 6),), None),
            ended(REQUEST, 20, marks=(("C", 20),)),
            ended(BIO, 21),
            ended(OP, 22),
        ]
    )
    assert outlines(first) == ["op1(bio1(request1))"]
    second = building.feed([ended(("bio", 2), 23), ended(("op", 2), 24)])
    assert outlines(second) == ["op2(bio2(request1))"]
    shared = first[0].children[0].children[0]
    assert second[0].children[0].children[0] is shared
    assert shared.origins == (BIO, ("bio", 2))
    assert (building.accounting.started, building.accounting.finished) == (5, 5)


def test_a_merged_request_is_met_once_on_a_walk() -> None:
    other = ("bio", 2)
    records = [
        whole(REQUEST, 4, 8, BIO, other),
        whole(BIO, 2, 9, OP),
        whole(other, 3, 9, OP),
        whole(OP, 1, 10),
    ]
    (root,) = builder().feed(records)
    assert outline(root) == "op1(bio1(request1) bio2(request1))"
    assert [node.key for node in root.walk()] == [OP, BIO, REQUEST, other]


def test_a_clone_through_two_layers() -> None:
    crypt, linear = ("bio", 2), ("bio", 3)
    roots = builder().feed(
        [
            began(BIO, 1, detail="253:1"),
            began(crypt, 2, BIO, detail="253:0"),
            began(linear, 3, crypt, marks=(("A", 3),), detail="8:0"),
            whole(REQUEST, 4, 10, linear),
            ended(linear, 11),
            ended(crypt, 12),
            ended(BIO, 13),
        ]
    )
    assert outlines(roots) == ["bio1(bio2(bio3(request1)))"]
    assert [node.details for node in roots[0].walk()] == [("253:1",), ("253:0",), ("8:0",), ()]


def test_a_requeued_request_is_issued_again() -> None:
    (root,) = builder().feed(
        [
            began(REQUEST, 1, marks=(("G", 1), ("D", 3))),
            (5, REQUEST, 0, 0, (), (("R", 5),), None),
            (9, REQUEST, 0, 0, (), (("D", 9),), None),
            ended(REQUEST, 20, marks=(("C", 20),)),
        ]
    )
    assert root.times("D") == [3, 9]
    assert root.times("R") == [5]
    assert root.marks == (("G", 1), ("D", 3), ("R", 5), ("D", 9), ("C", 20))


def test_a_request_that_completes_in_parts_ends_with_the_last() -> None:
    building = builder()
    building.feed([began(OP, 1), began(REQUEST, 2, OP), ended(REQUEST, 10), ended(REQUEST, 15)])
    (root,) = building.feed([ended(OP, 20)])
    assert root.children[0].end_ns == 15


def test_two_hooks_that_differ_about_one_life() -> None:
    (root,) = builder().feed([began(OP, 1), whole(REQUEST, 2, 10, OP), whole(REQUEST, 4, 11, OP), ended(OP, 20)])
    assert [(node.start_ns, node.end_ns) for node in root.walk()] == [(1, 20), (2, 11)]


def test_what_comes_after_a_tree_has_left_is_the_same_in_one_batch() -> None:
    cut = builder()
    roots = cut.feed([whole(REQUEST, 1, 5)]) + cut.feed([ended(REQUEST, 9)])
    assert shapes(builder().feed([whole(REQUEST, 1, 5), ended(REQUEST, 9)])) == shapes(roots)
    assert [root.missing for root in roots] == [None, UNMATCHED_END]


def test_a_child_that_begins_as_its_parent_ends() -> None:
    building = builder()
    assert building.feed([began(OP, 1), ended(OP, 5), began(REQUEST, 5, OP)]) == []
    assert outlines(building.feed([ended(REQUEST, 9)])) == ["op1(request1)"]


def test_a_parent_that_becomes_known_at_the_end() -> None:
    building = builder()
    assert building.feed([began(OP, 1), whole(BIO, 2, 5), whole(BIO, 3, 5, OP)]) == []
    assert outlines(building.feed([ended(OP, 9)])) == ["op1(bio1)"]


def test_the_same_said_twice_changes_nothing() -> None:
    records = [began(OP, 1), whole(REQUEST, 2, 5, OP), ended(OP, 9)]
    assert shapes(builder().feed(records * 2)) == shapes(builder().feed(records))


def test_an_address_used_again_below_one_operation() -> None:
    building = builder()
    first = [whole(REQUEST, 3, 8, BIO), whole(BIO, 2, 9, OP)]
    second = [whole(REQUEST, 13, 18, BIO), whole(BIO, 12, 19, OP)]
    (root,) = building.feed([*first, *second, whole(OP, 1, 20)])
    assert outline(root) == "op1(bio1(request1) bio1(request1))"
    assert [child.children[0].start_ns for child in root.children] == [3, 13]
    assert building.accounting.finished == 5


def test_a_lost_record_spoils_only_its_own_tree() -> None:
    building = builder()
    # The first bio's own record is lost; its address is used again.
    lost = [whole(REQUEST, 3, 8, BIO)]
    good = [whole(REQUEST, 13, 18, BIO), whole(BIO, 12, 19, OP), whole(OP, 11, 20)]
    roots = building.feed(lost + good)
    assert outlines(roots) == ["bio1(request1)", "op1(bio1(request1))"]
    assert building.accounting.lost == {UNSEEN: 1}
    assert [node.start_ns for node in roots[1].walk()] == [11, 12, 13]


def test_children_that_are_still_open_move_to_the_next_life_too() -> None:
    building = builder()
    records = [whole(REQUEST, 3, 8, BIO), began(("request", 2), 13, BIO), whole(BIO, 12, 19, OP)]
    assert outlines(building.feed(records)) == ["bio1(request1)"]
    assert outlines(building.feed([ended(("request", 2), 20), whole(OP, 11, 21)])) == ["op1(bio1(request2))"]


def test_a_start_without_an_end_gives_way_to_the_next() -> None:
    building = builder()
    roots = building.feed([began(REQUEST, 1), began(REQUEST, 10), ended(REQUEST, 15)])
    assert [(root.start_ns, root.end_ns, root.missing) for root in roots] == [
        (1, 0, UNMATCHED_START),
        (10, 15, None),
    ]
    assert building.accounting.as_dict()["lost_by_cause"] == {"unmatched_start": 1}


def test_an_end_without_a_start() -> None:
    building = builder()
    (root,) = building.feed([ended(REQUEST, 10)])
    assert root.missing is UNMATCHED_END
    assert (root.start_ns, root.end_ns) == (0, 10)
    assert building.accounting.lost == {UNMATCHED_END: 1}


def test_what_gets_too_old_is_given_up_and_the_rest_of_its_tree_with_it() -> None:
    building = builder(age=100)
    building.feed([began(OP, 1), whole(REQUEST, 2, 5, OP), whole(("request", 2), 3, 6, BIO)])
    assert building.feed([], now_ns=90) == []
    (unseen, old) = sorted(building.feed([], now_ns=120), key=outline)
    assert (outline(unseen), unseen.missing) == ("bio1(request2)", UNSEEN)
    assert (outline(old), old.missing, old.children[0].missing) == ("op1(request1)", UNMATCHED_START, None)
    assert building.accounting.lost == {UNSEEN: 1, UNMATCHED_START: 1}
    assert (building.accounting.finished, building.accounting.in_flight) == (2, 0)


def test_an_end_after_giving_up_still_counts_while_the_tree_is_held() -> None:
    building = builder(age=100)
    building.feed([began(OP, 1), began(REQUEST, 95, OP)])
    assert building.feed([], now_ns=110) == []
    (root,) = building.feed([ended(OP, 111), ended(REQUEST, 112)])
    assert (root.end_ns, root.missing) == (111, None)


def test_the_oldest_make_room() -> None:
    building = builder(room=4)
    building.feed([began(("op", number), number) for number in range(1, 5)])
    assert building.accounting.in_flight == 4
    roots = building.feed([began(("op", 5), 5)])
    assert outlines(roots) == ["op1", "op2"]
    assert [root.missing for root in roots] == [CROWDED_OUT, CROWDED_OUT]
    assert building.accounting.lost == {CROWDED_OUT: 2}
    assert outlines(building.unfinished()) == ["op3", "op4", "op5"]


def test_an_address_used_again_is_not_old() -> None:
    building = builder(room=4)
    building.feed([began(("op", number), now) for now, number in enumerate((1, 2, 3, 1, 4), start=1)])
    assert outlines(building.feed([began(("op", 5), 6)])) == ["op2", "op3"]


def test_records_too_late_are_counted() -> None:
    building = builder(window=10)
    building.feed([began(OP, 100)])
    building.feed([began(BIO, 90), began(REQUEST, 91)])
    assert building.accounting.noted == {LATE: 1}
    for _ in range(2):
        building.drain()
    building.feed([began(("op", 2), 99)])
    assert building.accounting.noted == {LATE: 2}


def test_details_without_an_order_do_not_matter() -> None:
    records = [whole(OP, 1, 5, detail={"who": who}) for who in ("a", "b")]
    (root,) = builder().feed(records)
    assert root.details == ({"who": "a"}, {"who": "b"})


def test_loops_are_not_followed() -> None:
    building = builder()
    roots = building.feed([whole(OP, 1, 9, BIO), whole(BIO, 1, 9, OP), whole(REQUEST, 1, 9, REQUEST)])
    assert outlines(roots) == ["op1(bio1)", "request1"]
    assert building.accounting.in_flight == 0
