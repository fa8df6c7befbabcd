"""The JSON text of ``metadata.json``, read entry by entry in bounded memory.

Two readers call one object: `read_mindformers_layout` for the layout that MindFormers writes (indented by 4), of any
length, and `read_any_layout` for other layouts of the same JSON.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from xxhash import xxh3_128_digest

from ms_recover.errors import FormatError
from ms_recover.formats.reading import ReadAt
from ms_recover.formats.shard_entries import check_shards
from ms_recover.model.shard_metadata import ShardedParameter, StoredShard

STATE, STORAGE = "state_dict_metadata", "storage_data"

MAX_OTHER_SIZE = 64 << 20
"""Longest file of another layout that is read, in bytes."""
MAX_ENTRY = 256 << 20
"""Longest entry that is read, in bytes: one shard that 2,900 ranks hold."""

_MOST_BRACKETS = 1 << 21
_MOST_COMMAS = 1 << 23
_MOST_NUMBERS = 1 << 24
_MOST_FILES = 1 << 21
_BLOCK = 4 << 20
_KEEP = 128 << 20
_MOST_LIKE = 64
_HEAD = 128
_MAX_LINE = 64 << 10

_OPENING = b'{\n    "state_dict_metadata": {\n'
_BETWEEN = b'    },\n    "storage_data": {\n'
_CLOSING = b"    }\n}"
_KEY = re.compile(rb'        ("(?:[^"\\\x00-\x1f]|\\.)*"): ')
_FILE = re.compile(
    rb'            \{\n                "file_name": ("[^"\\\x00-\x1f]*"),\n'
    rb'                "storage_rank": (0|[1-9][0-9]{0,7}),\n                "rank_group": \[\n'
)
_LAST_MEMBER = b"\n        }"
_NEXT_FILE, _LAST_FILE = b"\n            },\n", b"\n            }\n        ]"
_RANKS = re.compile(rb"(?:                    (?:0|[1-9][0-9]{0,7})(?:,\n|\n                \]\Z))+")
_BLANKS = re.compile(r"[ \t\n\r]*")


class OtherLayoutError(Exception):
    """The text is not laid out as MindFormers does, or it is damaged."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


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


def read_mindformers_layout(read_at: ReadAt, size: int, entries: Entries) -> None:
    """Read a file that is laid out as MindFormers does.

    Raises
    ------
    OtherLayoutError
        Where the text is anything else.
    FormatError
        When an entry is not what it must be.
    """
    text = _Window(read_at, size)
    text.skip(_OPENING)
    _Values(text, entries).read(STATE)
    text.skip(_BETWEEN)
    _Values(text, entries).read(STORAGE)
    text.skip(_CLOSING)
    if text.offset != size:
        raise OtherLayoutError(text.offset)


def read_any_layout(data: bytes, entries: Entries) -> None:
    """Read a file in any layout of JSON; its length has been capped.

    Raises
    ------
    FormatError
        When it is damaged, or no JSON of this kind.
    """
    if data.count(b"{") + data.count(b"[") > _MOST_BRACKETS or data.count(b",") > _MOST_COMMAS:
        raise FormatError("it has too many entries")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"it is not UTF-8 at byte {error.start}") from None
    end = _AnyLayout(text, entries).read()
    if _BLANKS.fullmatch(text, end) is None:
        raise FormatError(f"it goes on behind its end, at character {end}")


class _Window:
    """The part of a file that is being looked at."""

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at, self._size, self._read = read_at, size, 0
        self.data, self.at = b"", 0

    @property
    def offset(self) -> int:
        """Where in the file the text that has not been passed begins."""
        return self._read - len(self.data) + self.at

    def reach(self, length: int) -> bool:
        """Have so many bytes from `at` on; False where the file ends before."""
        if len(self.data) - self.at >= length:
            return True
        if self._read < self._size:
            have = len(self.data) - self.at
            more = self._read_at(self._read, min(max(length - have, have // 2, _BLOCK), self._size - self._read))
            self.data, self.at = self.data[self.at :] + more, 0
            self._read += len(more)
        return len(self.data) - self.at >= length

    def find(self, mark: bytes, begin: int) -> int:
        """Return where from `at` a mark is, looking from `begin` behind `at`; -1 where there is none."""
        while (found := self.data.find(mark, self.at + begin)) < 0:
            have = len(self.data) - self.at
            begin = max(begin, have - len(mark) + 1)
            if have < MAX_ENTRY:
                self.reach(have + 1)
            if len(self.data) - self.at == have:
                return -1
        return found - self.at

    def has(self, expected: bytes) -> bool:
        """Whether this text comes next."""
        return self.reach(len(expected)) and self.data.startswith(expected, self.at)

    def skip(self, expected: bytes) -> None:
        """Pass this text, which must come next."""
        if not self.has(expected):
            raise OtherLayoutError(self.offset)
        self.at += len(expected)


class _Values:
    """The entries of one of the two objects, in MindFormers' layout."""

    def __init__(self, text: _Window, entries: Entries) -> None:
        self._text, self._entries = text, entries
        self._seen: dict[bytes, list[tuple[bytes, Any]]] = {}
        self._kept = self._numbers = self._files = 0
        self._groups: dict[bytes, tuple[int, ...]] = {}
        self._same_rank: dict[int, int] = {}
        self._same_name: dict[str, str] = {}

    def read(self, section: str) -> None:
        """Read all entries of the object, and the line break behind the last one."""
        text = self._text
        parse: Callable[[], tuple[int, Any]] = self._parameter if section == STATE else self._shards
        add: Callable[[str, Any], None] = self._entries.add_parameter if section == STATE else self._entries.add_shards
        while True:
            if len(text.data) - text.at < _MAX_LINE:
                text.reach(_MAX_LINE)
            key = _KEY.match(text.data, text.at)
            if not key:
                raise OtherLayoutError(text.offset)
            text.at = key.end()
            literal = key[1]
            name = literal[1:-1].decode("utf-8", "surrogateescape") if b"\\" not in literal else _loads(literal)
            try:
                add(name, self._value(parse))
            except FormatError as error:
                raise FormatError(f"{section}[{name[:200]!r}]: {error}") from None
            text.reach(2)
            if text.data.startswith(b",\n", text.at):
                text.at += 2
            else:
                return text.skip(b"\n")

    def _value(self, parse: Callable[[], tuple[int, Any]]) -> Any:
        """Return the noun of the next entry, which a comparison finds where the same bytes occurred before."""
        text = self._text
        text.reach(_HEAD)
        head = text.data[text.at : text.at + _HEAD]
        like = self._seen.get(head, [])
        for place, (known, made) in enumerate(like):
            if len(text.data) - text.at < len(known):
                text.reach(len(known))
            if text.data.startswith(known, text.at):
                text.at += len(known)
                if place:
                    like.insert(0, like.pop(place))
                return made
        length, made = parse()
        if self._kept + length <= _KEEP:
            self._kept += length
            self._seen[head] = like
            like.insert(0, (text.data[text.at : text.at + length], made))
            self._kept -= sum(len(known) for known, _ in like[_MOST_LIKE:])
            del like[_MOST_LIKE:]
        text.at += length
        return made

    def _parameter(self) -> tuple[int, ShardedParameter]:
        text = self._text
        length = text.find(_LAST_MEMBER, 0) + len(_LAST_MEMBER)
        if length < len(_LAST_MEMBER) or not text.has(b"{\n"):
            raise OtherLayoutError(text.offset)
        data = text.data[text.at : text.at + length]
        self._count(data.count(b","))
        value = _loads(data)
        return length, self._entries.parameter(value)

    def _shards(self) -> tuple[int, tuple[StoredShard, ...]]:
        text = self._text
        if not text.has(b"[\n"):
            raise OtherLayoutError(text.offset)
        items: list[StoredShard] = []
        at, ranks = 2, b""
        while True:
            text.reach(at + _MAX_LINE)
            head = _FILE.match(text.data, text.at + at)
            if not head:
                raise OtherLayoutError(text.offset + at)
            at = head.end() - text.at
            name, rank = _loads(head[1]), int(head[2])
            name = self._same_name.setdefault(name, name)
            text.reach(at + len(ranks))
            if not ranks or not text.data.startswith(ranks, text.at + at):
                end = text.find(b"]", at)
                if end < 0:
                    raise OtherLayoutError(text.offset + at)
                ranks = text.data[text.at + at : text.at + end + 1]
                group = self._group(ranks)
            items.append(StoredShard(name, rank, group))
            at += len(ranks)
            self._files += 1
            if self._files > _MOST_FILES or at > MAX_ENTRY:
                raise FormatError(f"it is longer than {MAX_ENTRY} bytes, or too many different entries come before it")
            text.reach(at + _MAX_LINE)
            if text.data.startswith(_NEXT_FILE, text.at + at):
                at += len(_NEXT_FILE)
            elif text.data.startswith(_LAST_FILE, text.at + at):
                return at + len(_LAST_FILE), check_shards(tuple(items))
            else:
                raise OtherLayoutError(text.offset + at)

    def _group(self, text: bytes) -> tuple[int, ...]:
        """Return the ranks that a text of one a line lists."""
        key = xxh3_128_digest(text)
        group = self._groups.get(key)
        if group is None:
            self._count(text.count(b","))
            if not _RANKS.fullmatch(text):
                raise OtherLayoutError(self._text.offset)
            same = self._same_rank.setdefault
            group = self._groups[key] = tuple(same(rank, rank) for rank in map(int, text[:-1].split(b",")))
        return group

    def _count(self, numbers: int) -> None:
        self._numbers += numbers
        if self._numbers > _MOST_NUMBERS:
            raise FormatError("too many different entries come before it")


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


def _loads(data: bytes) -> Any:
    """Decode one JSON value of limited length."""
    if data.count(b"{") + data.count(b"[") > _MOST_BRACKETS or data.count(b",") > _MOST_COMMAS:
        raise FormatError("it has too many entries")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"it is not UTF-8 at byte {error.start}") from None
    value, end = _decode(text, 0)
    if end != len(text):
        raise FormatError(f"it is damaged at character {end}")
    return value


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise FormatError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise FormatError(f"it is cut or damaged: {error.msg} at character {error.pos}") from None
    except FormatError:
        raise
    except ValueError as error:  # numbers of thousands of digits
        raise FormatError(f"it is damaged: {str(error)[:80]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise FormatError(f"{twice[:40]!r} occurs twice in it")
    return found


def _no_number(text: str) -> NoReturn:
    raise FormatError(f"it holds the number {text[:40]}, which is not whole")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_no_number, parse_constant=_no_number)
