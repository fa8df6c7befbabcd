"""Listings of folders as web servers write them (pure): JSON of nginx and of recover-ckpt serve, and HTML pages.

Sources of the formats: ``autoindex_format json`` of nginx's ngx_http_autoindex_module, and the pages of nginx, Apache's
mod_autoindex, lighttpd and Python's http.server, whose titles begin as `_TITLES` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

from ms_recover.stores.store import Entry, EntryKind, FileInfo

MOST_BYTES = 64 << 20
"""Longest listing that is read."""
_TITLES = ("Index of ", "Directory listing for ", "Directory: ")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_KINDS: dict[object, EntryKind] = {"file": "file", "directory": "folder"}


def parse_listing(data: bytes, content_type: str) -> list[Entry]:
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
        return _sorted(_from_html(data.decode(errors="surrogateescape")))
    raise ValueError(f"it is {kind or 'of no type'}")


def _sorted(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries by name, each once; a ValueError for a name that is no name."""
    found = {entry.name: entry for entry in entries}
    for name in found:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"it has a file of the name {name!r}")
    return [found[name] for name in sorted(found)]


def _from_json(data: bytes) -> list[Entry]:
    try:
        rows = json.loads(data.decode(errors="surrogateescape"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(rows, list):
        raise ValueError("it is no list")
    entries = []
    for row in rows:
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str):
            raise ValueError("it has a file without a name")
        kind = _KINDS.get(row.get("type"), "other")
        entries.append(Entry(name=name, kind=kind, info=_info(row) if kind == "file" else None))
    return entries


def _info(row: dict[str, Any]) -> FileInfo | None:
    """Return what recover-ckpt serve says of a file; None of another server, whose times have whole seconds."""
    size, mtime_ns, etag, digest = (row.get(key) for key in ("size", "mtime_ns", "etag", "digest"))
    if type(size) is not int or type(mtime_ns) is not int or size < 0:
        return None
    return FileInfo(size=size, mtime_ns=mtime_ns, version=_text(etag), digest=_text(digest))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _from_html(text: str) -> list[Entry]:
    page = _Page()
    page.feed(text)
    page.close()
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


class _Page(HTMLParser):
    """Collects the title, or else the first heading, the links, and whether the page has its end."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self.ended = False
        self._within = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attributes if name == "href" and value]
        if tag in ("title", "h1") and not self.title:
            self._within = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._within = ""
        self.ended = self.ended or tag == "html"

    def handle_data(self, data: str) -> None:
        if self._within:
            self.title += data
