"""JSON from untrusted files: decoded only when it cannot become large, and unambiguous."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ms_recover.errors import FormatError

_SHOWN = 40


def decode_object(data: bytes, *, brackets: int, commas: int, fractions: bool = False) -> dict[str, Any]:
    """Decode a JSON object whose length has been capped.

    Numbers are whole, or with `fractions` finite, names within one object differ, texts are UTF-8. The most opening
    brackets and commas bound what the decoder builds. Inner objects are dicts as well.

    Raises
    ------
    FormatError
        When it is anything else. The text is the reason and names no file.
    """
    check_entries(data, brackets, commas)
    parse_float = float if fractions else _no_number
    with decoding():
        found = json.loads(data.decode(), object_pairs_hook=_object, parse_float=parse_float, parse_constant=_no_number)
    if not isinstance(found, dict):
        raise FormatError("it is not a JSON object")
    return found


def decode_list(data: bytes | bytearray, *, brackets: int, commas: int) -> list[Any]:
    """Decode a JSON list, as `decode_object`, except that numbers may be any and bytes that are no UTF-8 are kept.

    A text has them as `os.fsdecode` does.
    """
    check_entries(data, brackets, commas)
    with decoding():
        found = json.loads(data.decode(errors="surrogateescape"), object_pairs_hook=_object)
    if not isinstance(found, list):
        raise FormatError("it is not a JSON list")
    return found


def check_entries(data: bytes | bytearray, brackets: int, commas: int) -> None:
    """Raise a FormatError when JSON has more opening brackets or commas."""
    if data.count(b"{") + data.count(b"[") > brackets or data.count(b",") > commas:
        raise FormatError("it has too many entries")


@contextmanager
def decoding() -> Iterator[None]:
    """Raise what a JSON decoder raises in a block as a FormatError that names the place."""
    try:
        yield
    except FormatError:
        raise
    except RecursionError:
        raise FormatError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"it is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise FormatError(f"it is cut or damaged: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # numbers of thousands of digits
        raise FormatError(f"it is damaged: {str(error)[:80]}") from None


def is_text(value: Any) -> bool:
    """Whether a value is text that can be written as UTF-8; JSON can escape halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_numbers(values: Any, most: int, least: int = 0) -> bool:
    """Whether a value is a list of up to ``most`` whole numbers from ``least`` on that fit into 64 bits."""
    return (
        isinstance(values, list)
        and len(values) <= most
        and all(type(value) is int and least <= value < 1 << 63 for value in values)
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise FormatError(f"{twice[:_SHOWN]!r} occurs twice in it")
    return found


def _no_number(text: str) -> NoReturn:
    raise FormatError(f"it holds the number {text[:_SHOWN]}, which is not whole")


WHOLE_NUMBERS = json.JSONDecoder(object_pairs_hook=_object, parse_float=_no_number, parse_constant=_no_number)
"""Decodes a value whose entries were counted before: numbers are whole, and names within one object differ."""
