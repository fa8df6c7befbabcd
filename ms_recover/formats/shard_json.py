"""The JSON of ``metadata.json`` in any layout, entry by entry: strict, with everything bounded before it is built."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from ms_recover.bounded_json import WHOLE_NUMBERS, check_entries, decoding
from ms_recover.errors import FormatError
from ms_recover.model.shard_metadata import ShardedParameter, StoredShard

STATE, STORAGE = "state_dict_metadata", "storage_data"

MAX_OTHER_SIZE = 64 << 20
"""Longest file of another layout than MindFormers' that is read, in bytes."""

_MOST_BRACKETS = 1 << 21
_MOST_COMMAS = 1 << 23
_BLANKS = re.compile(r"[ \t\n\r]*")


class Entries(ABC):
    """What takes the entries of a file. A FormatError of its methods gets the place in the file put before it."""

    @abstractmethod
    def parameter(self, value: Any) -> ShardedParameter:
        """Make a noun of the JSON value of an entry of ``state_dict_metadata``."""

    @abstractmethod
    def shards(self, value: Any) -> tuple[StoredShard, ...]:
        """Make nouns of the JSON value of an entry of ``storage_data``."""

    @abstractmethod
    def add_parameter(self, name: str, parameter: ShardedParameter) -> None:
        """Take an entry of ``state_dict_metadata``."""

    @abstractmethod
    def add_shards(self, key: str, items: tuple[StoredShard, ...]) -> None:
        """Take an entry of ``storage_data``."""

    @abstractmethod
    def ignore(self, name: str) -> None:
        """Take the name of a member that is not known."""


def read_any_layout(data: bytes, entries: Entries) -> None:
    """Read a file in any layout of JSON; its length has been capped.

    Raises
    ------
    FormatError
        When it is damaged, or no JSON of this kind.
    """
    check_entries(data, _MOST_BRACKETS, _MOST_COMMAS)
    with decoding():
        text = data.decode()
    end = _AnyLayout(text, entries).read()
    if _BLANKS.fullmatch(text, end) is None:
        raise FormatError(f"it goes on behind its end, at character {end}")


class _AnyLayout:
    """A file in any layout of JSON."""

    def __init__(self, text: str, entries: Entries) -> None:
        self._text, self._entries = text, entries

    def read(self) -> int:
        """Read the whole object and return where it ends."""
        seen: set[str] = set()
        at = self._blank(0)
        for name, start in self._members(at):
            if name in seen:
                raise FormatError(f"{name[:40]!r} occurs twice in it")
            seen.add(name)
            self.at = self._section(name, start) if name in (STATE, STORAGE) else self._ignored(name, start)
        for name in (STATE, STORAGE):
            if name not in seen:
                raise FormatError(f"it has no {name}")
        return self.at

    def _section(self, section: str, start: int) -> int:
        for name, begin in self._members(start):
            value, self.at = self._decode(begin)
            try:
                if section == STATE:
                    self._entries.add_parameter(name, self._entries.parameter(value))
                else:
                    self._entries.add_shards(name, self._entries.shards(value))
            except FormatError as error:
                raise FormatError(f"{section}[{name[:200]!r}]: {error}") from None
        return self.at

    def _ignored(self, name: str, start: int) -> int:
        self._entries.ignore(name)
        return self._decode(start)[1]

    def _members(self, at: int) -> Iterator[tuple[str, int]]:
        """Yield the name of each member of an object and where its value begins; `at` is set behind each value."""
        self._expect(at, "{")
        at = self._blank(at + 1)
        if self._text.startswith("}", at):
            self.at = at + 1
            return
        while True:
            self._expect(at, '"')
            name, at = self._decode(at)
            at = self._blank(at)
            self._expect(at, ":")
            yield name, self._blank(at + 1)
            at = self._blank(self.at)
            if self._text.startswith("}", at):
                self.at = at + 1
                return
            self._expect(at, ",")
            at = self._blank(at + 1)

    def _decode(self, at: int) -> tuple[Any, int]:
        return _decode(self._text, at)

    def _blank(self, at: int) -> int:
        found = _BLANKS.match(self._text, at)
        return found.end() if found else at

    def _expect(self, at: int, mark: str) -> None:
        if not self._text.startswith(mark, at):
            raise FormatError(f"it is cut or damaged: {mark!r} expected at character {at}")


def load_value(data: bytes) -> Any:
    """Decode one JSON value of limited length."""
    check_entries(data, _MOST_BRACKETS, _MOST_COMMAS)
    with decoding():
        text = data.decode()
    value, end = _decode(text, 0)
    if end != len(text):
        raise FormatError(f"it is damaged at character {end}")
    return value


def _decode(text: str, at: int) -> tuple[Any, int]:
    with decoding():
        return WHOLE_NUMBERS.raw_decode(text, at)
