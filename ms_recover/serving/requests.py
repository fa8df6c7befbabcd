"""The body of a request for digests (pure)."""

from __future__ import annotations

from ms_recover.errors import FormatError
from ms_recover.formats.bounded_json import decode_object
from ms_recover.formats.codec import Fields, Path, Size, convert
from ms_recover.stores.http_digests import VERSION, Wanted

_MOST_ENTRIES = 1 << 18


class _File(Fields):
    path: Path
    bytes: Size
    mtime_ns: int


class _Digests(Fields):
    version: int
    files: tuple[_File, ...]


def read_wanted(data: bytes) -> list[Wanted]:
    """Return the files to digest.

    Raises
    ------
    FormatError
        When it is no such request.
    """
    try:
        asked = convert(decode_object(data, brackets=_MOST_ENTRIES, commas=4 * _MOST_ENTRIES), _Digests)
        if asked.version != VERSION:
            raise ValueError(f"version {asked.version}, this side has version {VERSION}")
    except ValueError as error:
        raise FormatError(f"this is no request for digests: {str(error)[:500]}") from None
    return [Wanted(one.path, one.bytes, one.mtime_ns, None) for one in asked.files]
