"""The host that a request names, and the body of a request for digests (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from ipaddress import ip_address

from ms_recover.bounded_json import decode_object
from ms_recover.errors import FormatError
from ms_recover.formats.codec import Fields, Path, Size, convert
from ms_recover.stores.http_digests import VERSION, Wanted

_MOST_ENTRIES = 1 << 18
_PORT = re.compile(r":\d*\Z", re.ASCII)


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
        paths = Counter(one.path for one in asked.files)
        if len(paths) < len(asked.files):
            raise ValueError(f"{paths.most_common(1)[0][0]} is asked for twice")
    except ValueError as error:
        raise FormatError(f"this is no request for digests: {str(error)[:500]}") from None
    return [Wanted(one.path, one.bytes, one.mtime_ns, None) for one in asked.files]


def is_own_name(host: str | None, names: Collection[str]) -> bool:
    """Whether a request's Host is this host: an address or a name of loopback, or one of `names`.

    Browsers always send one; a program of before HTTP/1.1 may leave it out.
    """
    if host is None:
        return True
    name = (_PORT.sub("", host.strip()).removeprefix("[").removesuffix("]")).rstrip(".").lower()
    if name in names or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
