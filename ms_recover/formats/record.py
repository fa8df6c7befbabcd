"""Nouns as JSON: what the commands print with ``--json``.

A noun is its own record: an object with its attributes in their order. Where the document has other members, the noun
lists them in ``RECORD``, words with a space between:

- ``reason``: the attribute, or property, of that name
- ``bytes=size``: a member that is named otherwise than its attribute
- ``part?=kind``, ``borrowed?``: a member that is left out where it is None, False or empty
- ``*step``: the members of another noun at this place; none where that is None

A number that most readers of JSON would round is written as text.

``docs/schemas`` is made of the same lists and of the types of the attributes; see ``scripts/schemas.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

_LARGEST = (1 << 63) - 1
_PLAIN = (str, bool, float, type(None), dict)


class Member(NamedTuple):
    """A member of a record; with `spread` it stands for all members of another record."""

    name: str
    attribute: str
    optional: bool
    spread: bool
    get: Callable[[Any], Any]


@cache
def members_of(kind: type) -> tuple[Member, ...]:
    """Return the members of the records of a type of nouns."""
    fields: tuple[str, ...] = tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    members = []
    for word in getattr(kind, "RECORD", "").split() or fields:
        name, _, attribute = word.lstrip("*").partition("=")
        attribute = attribute or name.removesuffix("?")
        get = attrgetter(attribute)
        members.append(Member(name.removesuffix("?"), attribute, name.endswith("?"), word.startswith("*"), get))
    return tuple(members)


def record(noun: Any, *, keep: Collection[str] = ()) -> dict[str, Any]:
    """Return a noun as plain JSON values, members in their order, arrays as tuples.

    Members of `keep` are there also where they are empty.
    """
    found: dict[str, Any] = {}
    for name, _, optional, spread, get in members_of(noun.__class__):
        value = get(noun)
        if spread:
            found |= record(value) if value is not None else {}
        elif not optional or name in keep or not (value is None or value is False or value == ()):
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if value <= _LARGEST else str(value)
    if isinstance(value, tuple):
        return value if not value or type(value[0]) in (int, str) else tuple([_plain(item) for item in value])
    return float(value) if kind is Fraction else record(value)
