"""Nouns as JSON: what the commands print with ``--json``.

A noun is its own record: an object with its attributes in their order. Where the document has other members, the noun
lists them in ``RECORD``, words with a space between:

- ``reason``: the attribute, or property, of that name
- ``bytes=size``: a member that is named otherwise than its attribute
- ``*step``: the members of the noun in that attribute; ``*header?``, where it is not None, after all others
- ``part?=kind``, ``borrowed?``: a member that is left out where it is None, False or empty
- ``documents?of_iteration``: a member that is there where another attribute is true

A `BigCount` that most readers of JSON would round is written as text.

``docs/schemas`` is made of the same lists and of the types of the attributes; see ``scripts/schemas.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

_LARGEST = (1 << 63) - 1
_PLAIN = frozenset({str, bool, int, float, type(None), dict})


class Member(NamedTuple):
    """A member of a record; an optional one is there where the attribute `condition` is true, or it is not empty.

    One whose name begins with ``*`` stands for the members of the noun in its attribute, where it is not None.
    """

    name: str
    attribute: str
    optional: bool
    condition: str


@cache
def members_of(noun: type) -> tuple[Member, ...]:
    """Return the members of the records of a type of nouns."""
    fields: dict[str, Any] = noun.__dataclass_fields__  # type: ignore[attr-defined]
    return tuple(_members(noun, getattr(noun, "RECORD", "").split() or list(fields)))


def _members(noun: type, words: list[str]) -> Iterator[Member]:
    for word in words:
        name, _, attribute = word.partition("=")
        name, optional, condition = name.partition("?")
        if name.startswith("*") and not optional:
            inner = noun.__dataclass_fields__[name[1:]].type.partition("[")[0]  # type: ignore[attr-defined]
            for one in members_of(vars(sys.modules[noun.__module__])[inner]):
                yield one._replace(attribute=f"{name[1:]}.{one.attribute}")
        else:
            yield Member(name, attribute or name.lstrip("*"), bool(optional), condition)


class _Reader:
    """Reads the members of the records of a type of nouns."""

    def __init__(self, noun: type) -> None:
        members = members_of(noun)
        self.names = [one.name for one in members]
        self._get = attrgetter(*(one.attribute for one in members))
        self.values = self._get if len(members) > 1 else self._only
        self.parts = [one.name for one in members if one.name.startswith("*")]
        self.optional = [(one.name, one.condition) for one in members if one.optional and one.name not in self.parts]
        types = {name: field.type for name, field in noun.__dataclass_fields__.items()}  # type: ignore[attr-defined]
        self.large = [one.name for one in members if "BigCount" in types.get(one.attribute, "")]

    def _only(self, noun: Any) -> tuple[Any, ...]:
        return (self._get(noun),)


_reader_of = cache(_Reader)


def record(noun: Any) -> dict[str, Any]:
    """Return a noun as plain JSON values, members in their order, arrays as tuples."""
    reader = _reader_of(noun.__class__)
    values = reader.values(noun)
    found = dict(zip(reader.names, values, strict=True))
    parts = [found.pop(name) for name in reader.parts]
    for name, condition in reader.optional:
        if not (getattr(noun, condition) if condition else _is_there(found[name])):
            del found[name]
    if not _PLAIN.issuperset(map(type, values)):  # mostly they are: a tree has thousands of slices
        for name, value in found.items():
            if value.__class__ not in _PLAIN:
                found[name] = _plain(value)
    for name in reader.large:
        if found[name] is not None and found[name] > _LARGEST:
            found[name] = str(found[name])
    for part in parts:
        found.update(record(part) if part is not None else ())
    return found


def _is_there(value: Any) -> bool:
    return value is not None and value is not False and value != ()


def _plain(value: Any) -> Any:
    """Return the JSON of a noun, of a fraction, or of a tuple whose items are all of one kind."""
    if isinstance(value, tuple):
        return value if not value or value[0].__class__ in _PLAIN else tuple([_plain(item) for item in value])
    return float(value) if isinstance(value, Fraction) else record(value)
