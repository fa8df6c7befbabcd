"""Text that is safe to show: file names come from anywhere, and a terminal obeys control characters."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1 controls: escape sequences, bells, line breaks
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls: they reorder the text around them
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff"  # lone surrogates: bytes of a file name that are no UTF-8; no stream can encode them
    "]"
)


def printable(text: str) -> str:
    r"""Escape the characters that act on a terminal instead of being shown.

    Control characters become ``\xNN`` or ``\uNNNN``; a byte of a file name that is no UTF-8 becomes ``\xNN``, as it
    lies on disk. Line breaks are escaped too, so apply this to names and messages, not to whole pages. Everything else,
    backslashes included, stays as it is.
    """
    return _UNSAFE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that surrogateescape smuggled in
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
