"""Listings of folders, for programs as JSON and for browsers as HTML (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from ms_recover.serving.conditions import http_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One name in a folder; a folder has no size."""

    name: str
    size: int | None
    mtime_ns: int
    etag: str | None = None
    digest: str | None = None
    """Where it was worked out."""


def wants_json(accept: str, query: str) -> bool:
    """Whether a listing is wanted as JSON: by ``?format=json``, or because the client names JSON before HTML."""
    if "format=" in query:
        return "format=json" in query.split("&")
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if "application/json" not in kinds:
        return False
    return "text/html" not in kinds or kinds.index("application/json") < kinds.index("text/html")


def listing_json(rows: Sequence[Row]) -> bytes:
    """Return a folder as nginx writes it with ``autoindex_format json``; times in nanoseconds, tags and digests too."""
    entries: list[dict[str, Any]] = []
    for row in rows:
        entry: dict[str, Any] = {
            "name": row.name,
            "type": "directory" if row.size is None else "file",
            "mtime": http_time(row.mtime_ns // 10**9),
            "mtime_ns": row.mtime_ns,
        }
        if row.size is not None:
            entry |= {"size": row.size, "etag": row.etag, **({"digest": row.digest} if row.digest else {})}
        entries.append(entry)
    return (json.dumps(entries, indent=0) + "\n").encode()


def listing_html(folder: str, rows: Sequence[Row]) -> bytes:
    """Return a folder as a page; `folder` is its path below the root."""
    lines = ['<tr><td><a href="../">../</a></td><td></td><td></td></tr>'] if folder else []
    for row in rows:
        slash = "/" if row.size is None else ""
        name = row.name.encode(errors="surrogateescape").decode(errors="replace")
        link = f"./{quote(row.name, errors='surrogateescape')}{slash}"
        size = "" if row.size is None else f"{row.size:,}"
        lines.append(
            f'<tr><td><a href="{link}">{escape(name)}{slash}</a></td><td align="right">{size}</td>'
            f"<td>{http_time(row.mtime_ns // 10**9)}</td></tr>"
        )
    title = escape(f"Index of /{folder}".encode(errors="surrogateescape").decode(errors="replace"))
    head = f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{title}</title></head>\n<body><h1>{title}</h1>'
    rest = "\n".join(["<table>", *lines, "</table></body></html>", ""])
    return f"{head}\n{rest}".encode()
