# SPDX-License-Identifier: Apache-2.0
"""Resolves a definition on a kernel: what is attached and read for each point, best first, or why it cannot be."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from wptrace.bpf.btf import Enum, Int, Ptr, Type
from wptrace.engine.definition import consistency, syntax
from wptrace.engine.definition import definition as d
from wptrace.engine.definition import recipe as r
from wptrace.engine.definition.definition import Definition, LabelSpec, PointSpec
from wptrace.engine.definition.expression import Comparison, Expression, Name
from wptrace.engine.definition.faults import DefinitionError, Fault, Place, did_you_mean
from wptrace.engine.definition.hook import Hook, Missing, find, renamed
from wptrace.engine.definition.kernel import Kernel
from wptrace.engine.definition.recipe import Attachment, Recipe, Test
from wptrace.engine.definition.resolved import Label, Point, Resolution
from wptrace.engine.definition.walk import TEXT_SIZE, Found, Walker, WalkError, fault
from wptrace.errors import WptraceError
from wptrace.kernel import system_calls

_WIDEST = 64
"""So many bits are also those of a value of which nothing is known."""
_DIRECT = (r.TP_BTF, r.FENTRY, r.FEXIT)


class Attempt(NamedTuple):
    """A resolved definition; without faults it can be traced."""

    resolution: Resolution
    faults: tuple[Fault, ...]


def resolve(definition: Definition, kernel: Kernel, without: Collection[str] = ()) -> Resolution:
    """Resolve a definition, or raise DefinitionError. `without` holds ways that this kernel is known to refuse."""
    found = attempt(definition, kernel, without)
    if found.faults:
        raise DefinitionError(definition.file, found.faults)
    return found.resolution


def attempt(definition: Definition, kernel: Kernel, without: Collection[str] = (), thorough: bool = False) -> Attempt:
    """With `thorough`, functions are also searched for among the symbols, which takes a while."""
    tries = max((len(point.keys) for point in definition.points), default=1)
    best: Attempt | None = None
    for which in range(tries):
        found = _Resolver(definition, kernel, which, frozenset(without), thorough).attempt()
        if not found.faults:
            return found
        best = best or found
    if best is None:
        raise WptraceError("the definition has no points")
    return best


class _Resolver:
    def __init__(
        self, definition: Definition, kernel: Kernel, which: int, without: frozenset[str], thorough: bool
    ) -> None:
        self._definition = definition
        self._kernel = kernel
        self._which = which
        self._without = without
        self._thorough = thorough
        self._labels: dict[str, tuple[LabelSpec, Label]] = {}
        self._absent: dict[str, LabelSpec] = {}
        """Labels that some point lacks here, whose type is that of other points."""
        self._faults: list[Fault] = []

    def attempt(self) -> Attempt:
        points = self._all_points()
        if any(self._is_text(name) for name in self._absent):
            # Programs read both words of a text, wherever it is absent.
            self._faults.clear()
            points = self._all_points()
        for name, spec in self._absent.items():
            self._labels.setdefault(name, (spec, Label(name, d.NUMBER, 1)))
        labels = self._all_labels()
        self._require_due(points)
        self._require_an_end(points)
        found = Resolution(self._definition, self._kernel.name, points, labels)
        return Attempt(found, tuple(sorted(self._faults, key=lambda one: one.place)))

    def _all_points(self) -> tuple[Point, ...]:
        return tuple(self._point(spec) for whole in self._definition.points for spec in self._sites(whole))

    def _key(self, spec: PointSpec) -> tuple[Expression, ...]:
        return spec.keys[min(self._which, len(spec.keys) - 1)]

    def _require_due(self, points: tuple[Point, ...]) -> None:
        """Record a fault if no point begins, none ends, or one comes after none: optional points may be missing."""
        if self._faults:
            return
        there = [point.spec for point in points if point.attachments]
        passed = consistency.passed(there)
        alive = [spec for spec in there if not spec.after or spec.begins or spec.after in passed]
        for spec in there:
            if spec not in alive and not spec.optional:
                self._faults.append(Fault(f"{spec.name} comes after {spec.after}, which this kernel lacks", spec.at))
        if self._faults:
            return
        first = self._definition.points[0].at
        if not any(spec.role == d.BEGIN or spec.begins for spec in alive):
            self._faults.append(Fault("this kernel has none of the points that begin", first))
        if not any(spec.role in (d.END, d.DROP) for spec in alive):
            self._faults.append(Fault("this kernel has none of the points that end", first))

    def _require_an_end(self, points: tuple[Point, ...]) -> None:
        """Record a fault if an object begins by an address, and all end by numbers that are none, or the reverse."""
        if self._faults or any(point.spec.becomes is not None for point in points):
            return
        there = [point for point in points if point.attachments]
        ends = {_is_address(point) for point in there if point.spec.role in (d.END, d.DROP)}
        for point in there:
            begins = point.spec.role == d.BEGIN or point.spec.begins
            found = _is_address(point)
            if begins and found is not None and ends == {not found}:
                key, others = ("an address", "numbers") if found else ("a number", "addresses")
                message = (
                    f"what begins at {point.spec.name} never ends: its key is {key}, those of all ends are {others}"
                )
                self._faults.append(Fault(message, point.spec.at))

    # Points

    def _sites(self, spec: PointSpec) -> list[PointSpec]:
        """A static probe that is at several places is as many branches."""
        if not any(target.kind == d.STATIC_PROBE for target in spec.targets):
            return [spec]
        found = (find(target, self._kernel, self._definition.modules) for target in spec.targets)
        hook = next((one for one in found if isinstance(one, Hook)), None)
        if hook is None or hook.sites == 1:
            return [spec]
        return [spec._replace(targets=(hook.target._replace(site=number),)) for number in range(hook.sites)]

    def _point(self, spec: PointSpec) -> Point:
        """The targets of a point that can be read, best first."""
        attachments: list[Attachment] = []
        notes: list[str] = []
        rest: list[str] = []
        faults: list[Fault] = []
        for one in spec.filters:
            if any(isinstance(literal, str) and set("*?[") & set(literal) for literal in one.right):
                notes.append(f"{one.text} compares to the letter: there are no wildcards")
        for target in spec.targets:
            hook = find(target, self._kernel, self._definition.modules)
            if isinstance(hook, Hook) and self._gone(hook):
                gone = renamed(target.name, self._kernel) or ": it is inlined"
                hook = Missing(f"{target.name} is not a function", gone)
            if isinstance(hook, Missing):
                (rest if attachments else notes).append(f"{hook.why}{hook.hint}")
                where = "" if target.kind in d.IN_PROGRAMS else f" on {self._kernel.name}"
                faults.append(Fault(f"{hook.why}{where}{hook.hint}", target.at))
                continue
            found, why = self._of_hook(hook, spec)
            (rest if attachments or found else notes).extend(one.message for one in why)
            attachments += found
            if not found:
                faults += why
        if not attachments and not spec.optional:
            self._faults += faults[:3]
        return Point(spec, tuple(attachments), tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(rest)))

    def _gone(self, hook: Hook) -> bool:
        """The compiler inlined it everywhere, or renamed it."""
        if not self._thorough or hook.target.kind not in (d.FUNCTION, d.RETURN):
            return False
        return bool(self._kernel.symbols) and hook.target.name not in self._kernel.symbols

    def _of_hook(self, hook: Hook, spec: PointSpec) -> tuple[list[Attachment], list[Fault]]:
        found: list[Attachment] = []
        faults: dict[str, Fault] = {}
        for way in hook.ways:
            if way in self._without:
                continue
            for direct in (True, False) if way in _DIRECT else (False,):
                try:
                    made = self._attachment(hook, spec, way, direct)
                except _PointError as error:
                    faults[error.fault.message] = error.fault
                    break
                if made not in found:
                    found.append(made)
        if hook.by_value:
            message = f"{hook.target.name} is called with structs or without end: a kprobe it is"
            faults.setdefault(message, Fault(message, hook.target.at))
        if not found and not faults:
            message = f"{hook.target} can be observed by no way that this kernel allows"
            faults[message] = Fault(message, hook.target.at)
        return found, list(faults.values())

    def _attachment(self, hook: Hook, spec: PointSpec, way: str, direct: bool) -> Attachment:
        walker = Walker(hook, self._kernel, way, direct)

        def number(expression: Expression | None) -> Recipe | None:
            return None if expression is None else _value(walker, expression).recipe

        key = tuple(_value(walker, part).recipe for part in self._key(spec))
        return Attachment(
            way,
            hook.name,
            hook.btf_id if way in _DIRECT else 0,
            hook.module,
            key,
            number(spec.becomes),
            number(spec.value),
            tuple(self._label(walker, hook, label) for label in spec.labels),
            tuple(test for one in spec.filters for test in self._tests(walker, hook, one)),
            number(spec.mark),
            number(spec.reached),
            None if spec.failed is None else self._one_test(walker, hook, spec.failed),
            hook.spot,
        )

    # Labels

    def _label(self, walker: Walker, hook: Hook, spec: LabelSpec) -> Recipe:
        wants_text = spec.type in (d.AUTO, d.TEXT)
        try:
            found = _value(walker, spec.value, wants_text)
        except _PointError:
            if not spec.optional:
                raise
            if spec.type == d.AUTO:
                self._absent[spec.name] = spec
                return Recipe(r.CONSTANT, text=self._is_text(spec.name))
            found = Found(Recipe(r.CONSTANT, text=spec.type == d.TEXT), None)
        kind = self._label_type(spec, found)
        if kind == d.TEXT and not found.recipe.text:
            raise _PointError(Fault(f"the label {spec.name} is not a text", spec.at))
        names = _names(spec, found, hook, kind)
        label = Label(spec.name, kind, d.TEXT_WORDS if found.recipe.text else 1, names)
        _, known = self._labels.setdefault(spec.name, (spec, label))
        if (known.type, known.words) != (kind, label.words):
            message = f"the label {spec.name} is {kind} here and {known.type} at another point"
            raise _PointError(Fault(message, spec.at))
        if names and known.names and names != known.names:
            message = f"the label {spec.name} has names of another enum at another point: give one another name"
            raise _PointError(Fault(message, spec.at))
        return found.recipe

    def _is_text(self, name: str) -> bool:
        return name in self._labels and self._labels[name][1].type == d.TEXT

    @staticmethod
    def _label_type(spec: LabelSpec, found: Found) -> str:
        if spec.type != d.AUTO:
            return spec.type
        if found.recipe.text:
            return d.TEXT
        if found.cgroup:
            return d.CGROUP
        if found.recipe.source == r.CPU:
            return d.CPU
        if isinstance(found.type, Enum):
            return d.ENUM if found.type.values else d.NUMBER
        if found.recipe.pointer:
            return d.SYMBOL if spec.value.text.endswith(("location", "func", "function", "fn")) else d.HEX
        return d.NUMBER

    def _all_labels(self) -> tuple[Label, ...]:
        labels: list[Label] = []
        words = 0
        for spec, label in (self._labels[name] for name in self._definition.labels if name in self._labels):
            labels.append(label)
            words += label.words
            if words > d.MAX_LABEL_WORDS:
                room = f"there is room for {d.MAX_LABEL_WORDS}, and a text takes {d.TEXT_WORDS}"
                self._faults.append(Fault(f"the labels take {words} words; {room}", spec.at))
                break
        return tuple(labels)

    # Filters

    def _tests(self, walker: Walker, hook: Hook, comparison: Comparison) -> Iterator[Test]:
        literal = comparison.right[0]
        if _is_cgroup(comparison) and isinstance(literal, str):
            yield from self._cgroup(walker, comparison, literal)
        else:
            yield self._one_test(walker, hook, comparison)

    def _one_test(self, walker: Walker, hook: Hook, comparison: Comparison) -> Test:
        texts = isinstance(comparison.right[0], str)
        if _is_cgroup(comparison) and texts:
            raise _PointError(Fault("a cgroup can only be a filter", comparison.place))
        found = _value(walker, comparison.left, texts)
        right: list[int | bytes] = []
        for literal in comparison.right:
            if isinstance(literal, str):
                right.append(self._text(literal, found, comparison))
            elif isinstance(literal, Name):
                right.append(_enumerator(literal, found, comparison))
            else:
                right.append(_fitting(literal, found, comparison))
        return Test(found.recipe, comparison.operator, tuple(right))

    @staticmethod
    def _text(literal: str, found: Found, comparison: Comparison) -> bytes:
        if not found.recipe.text:
            raise _PointError(Fault(f"{comparison.left} is not a text", comparison.place))
        data = literal.encode("utf-8", "surrogateescape")
        if len(data) >= min(found.recipe.size, TEXT_SIZE):
            room = min(found.recipe.size, TEXT_SIZE) - 1
            raise _PointError(Fault(f"{comparison.left} has at most {room} bytes to compare", comparison.place))
        if comparison.operator == "in" and len(comparison.right) == 1 and "[" not in comparison.text:
            raise _PointError(Fault("in needs a list in brackets, or a cgroup", comparison.place))
        return data

    def _cgroup(self, walker: Walker, comparison: Comparison, path: str) -> Iterator[Test]:
        """A cgroup alone, or with all below it, whose ancestor it is at its level."""
        if len(comparison.right) > 1 or comparison.operator not in ("==", "!=", "in"):
            raise _PointError(Fault("a cgroup is compared with == or !=, or is in another one", comparison.place))
        try:
            number, level = self._kernel.cgroup(path)
        except WptraceError as error:
            raise _PointError(Fault(error.message, comparison.place)) from None
        if comparison.operator != "in":
            yield Test(_value(walker, comparison.left).recipe, comparison.operator, (number,))
            return
        place = comparison.place
        yield Test(_value(walker, _written("task.cgroup.level", place)).recipe, ">=", (level,))
        # Numbers until 7f203bc89eb6 ("cgroup: Replace cgroup->ancestor_ids[] with ->ancestors[]", 6.1).
        ancestor = f"task.cgroup.ancestors[{level}]->kn->id | task.cgroup.ancestor_ids[{level}]"
        yield Test(_value(walker, _written(ancestor, place)).recipe, "==", (number,))


class _PointError(Exception):
    def __init__(self, what: Fault) -> None:
        super().__init__(what.message)
        self.fault = what


def _is_address(point: Point) -> bool | None:
    """Whether the key of a point is an address; None if it may be either."""
    key, *more = point.attachments[0].keys
    if more or key.otherwise is not None:
        return None
    return True if key.pointer else False if (key.bits or 8 * key.size) < _WIDEST else None


def _written(text: str, place: Place) -> Expression:
    return syntax.expression(text, place)


def _value(walker: Walker, expression: Expression, text: bool = False) -> Found:
    try:
        return walker.value(expression, text)
    except WalkError as error:
        raise _PointError(fault(error, expression)) from None


def _is_cgroup(comparison: Comparison) -> bool:
    return comparison.left.text.replace(" ", "") == "task.cgroup"


def _names(spec: LabelSpec, found: Found, hook: Hook, kind: str) -> dict[int, str]:
    if kind == d.SYSCALL:
        return dict(system_calls.names())
    if kind != d.ENUM:
        return {}
    named = (hook.types.find(name, Enum) or hook.types.enum_with(name) for name in spec.enums)
    enum: Type | None = next(filter(None, named), None) if spec.enums else found.type
    if not isinstance(enum, Enum) or not enum.values:
        if spec.optional:
            return {}
        wanted = " or ".join(spec.enums)
        what = f"this kernel has no enum {wanted}" if wanted else f"the type of {spec.value} is not an enum: name one"
        raise _PointError(Fault(what, spec.at))
    mask = (1 << 64) - 1
    names = {value.value & mask: value.name for value in enum.values}
    last = next(reversed(names))
    if len(names) > 2 and names[last].startswith("NR_") and not enum.values[0].name.startswith("NR_"):
        # The last name stands for the number of values.
        del names[last]
    return {value: name.lower() for value, name in zip(names, _apart(list(names.values())))}


def _apart(names: list[str]) -> list[str]:
    """Strip the words that all of them begin or end with."""
    words = [name.split("_") for name in names]
    for end in (0, -1):
        while len(names) > 1 and all(len(one) > 1 and one[end] == words[0][end] for one in words):
            words = [one[1:] if end == 0 else one[:-1] for one in words]
    return ["_".join(one) for one in words]


def _enumerator(literal: Name, found: Found, comparison: Comparison) -> int:
    place = comparison.place._replace(column=comparison.place.column + literal.at)
    values = {value.name: value.value for value in found.type.values} if isinstance(found.type, Enum) else {}
    if literal.name in values:
        return values[literal.name]
    if not values:
        raise _PointError(Fault(f"{comparison.left} is not an enum, so {literal.name} has no meaning here", place))
    hint = did_you_mean(literal.name, values)
    raise _PointError(Fault(f"the enum of {comparison.left} has no {literal.name}{hint}", place))


def _fitting(literal: int, found: Found, comparison: Comparison) -> int:
    """The literal in the type of the value; a literal that can never match is an error."""
    if found.recipe.text:
        raise _PointError(Fault(f"{comparison.left} is a text", comparison.place))
    bits = found.recipe.bits or 8 * found.recipe.size
    if not (isinstance(found.type, (Int, Enum, Ptr)) or bits < _WIDEST) or found.recipe.otherwise:
        return literal
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if found.recipe.signed else (0, (1 << bits) - 1)
    if comparison.operator in ("==", "!=", "in", "&") and high < literal < 1 << bits:
        # As in C: an `int` that is 0xffffffff is -1.
        literal -= 1 << bits
    below = "below " if comparison.operator == "<" and literal == low else ""
    if below or not low <= literal <= high:
        kind = f"{bits} bits" if found.recipe.signed or literal > 0 else f"{bits} bits without a sign"
        raise _PointError(Fault(f"{comparison.left} has {kind} and is never {below}{literal}", comparison.place))
    return literal
