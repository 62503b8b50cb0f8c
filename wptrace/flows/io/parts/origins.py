# SPDX-License-Identifier: Apache-2.0
"""Whose the statements of rows are: query ids, databases, users and applications (`struct statement_origin`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union

from wptrace.analysis import statements
from wptrace.kernel.servers import names_in

# Of each row, and of all; and how many names of catalogues are remembered.
_MOST, _MOST_ROWS, _MOST_NAMES = 8, 1 << 14, 1 << 14
_ALL_BITS = 1 << 64


class _Number(NamedTuple):
    """Something in the catalogues of a server, whose name may become known later."""

    postmaster: int
    kind: str
    number: int


_Name = Union[str, _Number]
DATABASE, USER = "databases", "users"
_FIELDS = ("query_ids", DATABASE, USER, "applications")


class Origins:
    def __init__(self) -> None:
        self._rows: OrderedDict[Any, dict[str, dict[_Name, None]]] = OrderedDict()
        """By label, and by field, in the order in which they came."""
        self._names: OrderedDict[_Number, str] = OrderedDict()
        self.unknown = 0
        """How often something had no name."""

    @property
    def labels(self) -> Iterable[Any]:
        return self._rows

    def learn(self, postmaster: int, database: int, user: int, database_name: str, user_name: str) -> None:
        for kind, number, name in ((DATABASE, database, database_name), (USER, user, user_name)):
            if number:
                self._names[_Number(postmaster, kind, number)] = name
        while len(self._names) > _MOST_NAMES:
            self._names.popitem(last=False)

    def add(self, label: Any, origin: Any) -> None:
        """`label` is that of a row, or None for a process without a statement, of which only names are learnt."""
        postmaster = origin.postmaster
        names = names_in(_text(origin.title))
        if names is not None:
            self.learn(postmaster, origin.database, origin.user, *names)
        if label is None:
            return
        found = self._rows.setdefault(label, {name: {} for name in _FIELDS})
        self._rows.move_to_end(label)
        if len(self._rows) > _MOST_ROWS:
            self._rows.popitem(last=False)
        if origin.query_id:
            # As a server shows it.
            number = origin.query_id
            _put(found["query_ids"], str(number - _ALL_BITS if number >> 63 else number))
        for place, (kind, number) in enumerate(((DATABASE, origin.database), (USER, origin.user))):
            if number:
                key = _Number(postmaster, kind, number)
                self.unknown += key not in self._names and key not in found[kind]
                _put(found[kind], key)
            elif names is not None:
                _put(found[kind], names[place])
        application = _text(origin.application)
        if application:
            _put(found["applications"], application)

    def of(self, labels: Iterable[Any], names: bool) -> list[dict[str, Any]]:
        """Return what is known of these rows; without `names` only ids, which are no data of others."""
        found = []
        for label in labels:
            if label in self._rows:
                fields = {
                    field: self._shown(values) if names or field == "query_ids" else []
                    for field, values in self._rows[label].items()
                }
                if any(fields.values()):
                    found.append({"owner": label, **fields})
        return found

    def _shown(self, values: Mapping[_Name, None]) -> list[str]:
        named = (self._names.get(one) if isinstance(one, _Number) else one for one in values)
        return list(dict.fromkeys(name for name in named if name))


def _put(values: dict[_Name, None], value: _Name) -> None:
    if len(values) < _MOST:
        values[value] = None


def _text(raw: bytes) -> str:
    return statements.decoded(raw.split(b"\0", 1)[0], cut=False)
