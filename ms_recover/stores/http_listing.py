"""Listings of folders as web servers write them (pure): JSON of nginx and of recover-ckpt serve, and HTML pages.

Sources of the formats: ``autoindex_format json`` of nginx's ngx_http_autoindex_module, and the pages of nginx, Apache's
mod_autoindex, lighttpd and Python's http.server, whose titles begin as `_TITLES` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import unquote

from ms_recover.bounded_json import decode_list, is_text
from ms_recover.stores.store import Entry, EntryKind, FileInfo

MOST_BYTES = 24 << 20
"""Longest listing that is read."""

MOST_HTML = 4 << 20
"""Longest page."""

_MOST_ROWS, _MOST_COMMAS = 150_000, 750_000
"""Brackets and commas of JSON: what its objects take in memory is bounded by them."""

_TAG = re.compile(r"<(/?)([A-Za-z][^\s<>/]*)([^<>]*)>")
_HREF = re.compile(r"""(?:^|\s)href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>=]+))""", re.IGNORECASE)
_TITLES = ("Index of ", "Directory listing for ", "Directory: ")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_KINDS: dict[str, EntryKind] = {"file": "file", "directory": "folder"}


def parse_listing(data: bytes | bytearray, content_type: str) -> list[Entry]:
    """Return the entries of a folder, sorted by name; with their state where recover-ckpt serve lists them.

    Raises
    ------
    ValueError
        When it is no listing, or only the beginning of one.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        return _sorted(_from_json(data))
    if kind in ("text/html", "application/xhtml+xml"):
        return _sorted(_from_html(data))
    raise ValueError(f"it is {kind or 'of no type'}")


def _sorted(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries by name, each once; a ValueError for a name that is no name."""
    found = {entry.name: entry for entry in entries}
    for name in found:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"it has a file of the name {name!r}")
        try:
            name.encode(errors="surrogateescape")  # bytes that are no UTF-8 are part of names
        except UnicodeEncodeError as error:
            raise ValueError(f"it has a file of the name {name!r}, with half a character at {error.start}") from None
    return [found[name] for name in sorted(found)]


def _from_json(data: bytes | bytearray) -> list[Entry]:
    rows = decode_list(data, brackets=_MOST_ROWS, commas=_MOST_COMMAS)
    entries = []
    for row in rows:
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str):
            raise ValueError("it has a file without a name")
        kind = row.get("type")
        known = _KINDS.get(kind, "other") if isinstance(kind, str) else "other"
        entries.append(Entry(name=name, kind=known, info=_info(row) if known == "file" else None))
    return entries


def _info(row: dict[str, Any]) -> FileInfo | None:
    """Return what recover-ckpt serve says of a file; None of another server, whose times have whole seconds."""
    size, mtime_ns, etag, digest = (row.get(key) for key in ("size", "mtime_ns", "etag", "digest"))
    if type(size) is not int or type(mtime_ns) is not int or not 0 <= size < 1 << 63 or abs(mtime_ns) >= 1 << 63:
        return None
    return FileInfo(size=size, mtime_ns=mtime_ns, version=_text(etag), digest=_text(digest))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and is_text(value) else None


def _from_html(data: bytes | bytearray) -> list[Entry]:
    if len(data) > MOST_HTML:
        raise ValueError(f"it is a page of {len(data):,} bytes, more than {MOST_HTML:,}")
    page = _read_page(data.decode(errors="surrogateescape"))
    if not page.title.strip().startswith(_TITLES):
        raise ValueError("it is a page and no listing")
    if not page.ended:
        raise ValueError("it is cut off")
    entries = []
    for link in page.links:
        path = link.removeprefix("./").partition("?")[0].partition("#")[0]
        name = unquote(path.removesuffix("/"), errors="surrogateescape")
        if not path or path.startswith("/") or _SCHEME.match(path) or name in (".", ".."):
            continue  # to sort by another column, to the parent, to another site
        entries.append(Entry(name=name, kind="folder" if path.endswith("/") else "file"))
    return entries


@dataclass(frozen=True)
class _Page:
    """The title, or else the first heading, of a page, its links, and whether it has its end."""

    title: str
    links: tuple[str, ...]
    ended: bool


def _read_page(text: str) -> _Page:
    """Read a page in time that grows with its length alone: each character is passed over once.

    A tag ends at the next ``<`` or ``>``, which servers escape in attributes. Unlike ``html.parser``, whose time grows
    with the square of what is not closed, nothing is looked for twice.
    """
    title, within, links, ended, place = "", "", [], False, 0
    for tag in _TAG.finditer(_without_comments(text)):
        closes, name = tag[1] == "/", tag[2].lower()
        if within and not title:
            title = unescape(tag.string[place : tag.start()])
        if closes:
            within = "" if name == within else within
            ended = ended or name == "html"
        elif name in ("title", "h1") and not title:
            within, place = name, tag.end()
        elif name == "a" and (link := _HREF.search(tag[3])) is not None:
            links.append(unescape(link[1] if link[1] is not None else link[2] if link[2] is not None else link[3]))
    return _Page(title, tuple(link for link in links if link), ended)


def _without_comments(text: str) -> str:
    """Return a page without its comments; one that is not closed hides the rest."""
    parts, place = [], 0
    while (begin := text.find("<!--", place)) >= 0:
        parts.append(text[place:begin])
        end = text.find("-->", begin + 4)
        place = end + 3 if end >= 0 else len(text)
    return "".join((*parts, text[place:]))
