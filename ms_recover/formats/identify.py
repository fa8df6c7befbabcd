"""The kind of a file, by its first bytes.

Slices and group files have no magic, and both begin with ``0a <len> 0a <len> name 12 <len> 08``: they differ in the
bytes behind the numbers, a type in a slice (``12``) and nothing in a group file.
"""

from __future__ import annotations

import os
import re

from ms_recover.formats.encrypted import MODES
from ms_recover.formats.reading import open_regular, pread
from ms_recover.formats.wire import WireError, varint

HEAD = 4096
"""Bytes that are looked at."""

DESCRIPTIONS = {
    "ckpt": "a slice (.ckpt)",
    "encrypted-ckpt": "an encrypted slice (.ckpt)",
    "group_info": "a group_info.pb",
    "strategy": "a strategy file",
    "safetensors": "a safetensors file",
    "json": "a JSON file",
    "graph.meta": "a graph.meta, the compiled graph",
    "empty": "empty",
    "zeros": "zeros where it should begin, so its bytes never reached the disk",
    "unknown": "of no kind known here",
}
"""Kinds of files, and how messages name them: "the file is ..."."""

_MAX_SAFETENSORS_HEADER = 100_000_000
_MOST_DIMS = 32

_N = rb"[\x80-\xff]{0,9}[\x00-\x7f]"  # a varint
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]\s*(?:[\[\]{}\"\d-]|true|false|null|\Z)[\t\n\r -\xff]*")
_STRATEGY = re.compile(rb"\x08" + _N + rb"(?:\Z|[\x12\x1a]" + _N + rb"\x0a)")
_STRATEGY_JSON = re.compile(rb"\s*\{\s*\"(?:current_stage|parallel_(?:strategy|layout)_item)\"")
_GRAPH = re.compile(rb"\x08" + _N + rb"\x22")
_RESTORE_LIST = re.compile(rb"\x12" + _N + rb"(?:\Z|\x08)")
_NAMED = re.compile(rb"\x0a" + _N + rb"\x0a(" + _N + rb")")
_CUT_BEFORE_NAME = re.compile(rb"\x0a(?:[\x80-\xff]{0,9}|" + _N + rb"(?:\x0a[\x80-\xff]{0,9})?)")
_NUMBERS = re.compile(rb"\x12(" + _N + rb")((?:\x08" + _N + rb")*)")
_GROUP_NAME = re.compile(rb"\d+-\d+|(?:nccl|hccl)_world_group")


def identify(path: str | os.PathLike[str]) -> str:
    """Return the kind of a file, a key of `DESCRIPTIONS`, whatever its name.

    Damaged files keep their kind where it is still evident: a slice cut in its first record is a ``"ckpt"``.

    Raises
    ------
    MissingInputError, FormatError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    with open_regular(path, "a file") as (descriptor, size):
        return classify(pread(descriptor)(0, min(size, HEAD)), size)


def classify(head: bytes, size: int) -> str:
    """Return the kind of a file of ``size`` bytes that begins with ``head`` (`HEAD` bytes or all)."""
    if not size or not head:
        return "empty"
    if not any(head):
        return "zeros"
    if head[:4] in MODES:
        return "encrypted-ckpt"
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _MAX_SAFETENSORS_HEADER:
        return "safetensors"
    if _STRATEGY_JSON.match(head):
        return "strategy"
    if _JSON.fullmatch(head):
        return "json"
    if _GRAPH.match(head):
        return "graph.meta"
    if _STRATEGY.match(head):
        return "strategy"
    if _RESTORE_LIST.match(head):
        return "group_info"
    named = _NAMED.match(head)
    if named:
        try:
            return _slice_or_group(head[named.end() :], varint(named[1]))
        except WireError:  # a number beyond 64 bits
            return "unknown"
    return "ckpt" if _CUT_BEFORE_NAME.fullmatch(head) else "unknown"


def _slice_or_group(rest: bytes, name_length: int) -> str:
    """Distinguish a record of a slice from an item of a group file; ``rest`` begins with the name."""
    name, rest = rest[:name_length], rest[name_length:]
    as_named = "group_info" if _GROUP_NAME.fullmatch(name) else "ckpt"
    if not rest:
        return as_named
    if rest[0] == 0x1A:
        return "ckpt"
    numbers = _NUMBERS.match(rest)
    if numbers is None:
        return as_named if rest[0] == 0x12 and len(rest) <= 10 else "unknown"
    if numbers.end() >= numbers.start(2) + varint(numbers[1]):
        return "group_info"
    following = rest[numbers.end() : numbers.end() + 1]
    if following in (b"", b"\x08"):  # the head ends among the numbers
        return "group_info" if numbers[2].count(b"\x08") > _MOST_DIMS else as_named
    return "ckpt" if following in (b"\x0a", b"\x12", b"\x1a") else "unknown"
