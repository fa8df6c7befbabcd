"""The text of ``metadata.json`` as MindFormers lays it out (indented by 4), read entry by entry through a window.

An entry whose bytes occurred before is compared with them and not parsed again. Other layouts of the same JSON are read
by `ms_recover.formats.shard_json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from xxhash import xxh3_128_digest

from ms_recover.errors import FormatError
from ms_recover.formats.reading import ReadAt
from ms_recover.formats.shard_entries import check_shards
from ms_recover.formats.shard_json import STATE, STORAGE, Entries, load_value
from ms_recover.model.shard_metadata import ShardedParameter, StoredShard

MAX_ENTRY = 256 << 20
"""Longest entry that is read, in bytes: one shard that 2,900 ranks hold."""

_MOST_NUMBERS = 1 << 24
_MOST_FILES = 1 << 19
_MOST_PARAMETERS = 1 << 16
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


class OtherLayoutError(Exception):
    """The text is not laid out as MindFormers does, or it is damaged."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


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
        self._kept = self._numbers = self._files = self._parsed = 0
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
            name = literal[1:-1].decode("utf-8", "surrogateescape") if b"\\" not in literal else load_value(literal)
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
        self._parsed += 1
        if self._parsed > _MOST_PARAMETERS:
            raise FormatError(f"more than {_MOST_PARAMETERS} different entries come before it")
        value = load_value(data)
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
            name, rank = load_value(head[1]), int(head[2])
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
