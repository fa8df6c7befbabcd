"""Everything that a command prints."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import suppress
from typing import IO, Any

import click

_COLOURS = {
    "green": ("COMPLETE", "DONE", "RECOVERABLE", "SOUND"),
    "yellow": ("NOT COMPARED", "PARTIAL", "SOUND where compared", "UNCERTAIN", "WARNING"),
    "red": (
        "BLOCKED",
        "DAMAGED",
        "FAILED",
        "PERMISSION DENIED",
        "REFUSED",
        "UNDECIDED",
        "UNHEALTHY",
        "UNRECOVERABLE",
        "WRONG",
    ),
}
_VERDICTS = sorted(((word, colour) for colour, words in _COLOURS.items() for word in words), reverse=True)
"""Longer ones first, where one begins like another."""


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object as indented text, in ASCII."""
    from ms_recover.formats.codec import json_text

    click.echo(json_text(data))


def print_line(data: dict[str, Any]) -> None:
    """Print one JSON object in one line, in ASCII."""
    from ms_recover.formats.codec import json_text

    click.echo(json_text(data, 0))


def print_text(text: str) -> None:
    """Print a report on standard output, without what steers a terminal or does not fit its encoding.

    On a terminal lines are broken between words, and the verdict in the headline has a colour.
    """
    text = _clean(text, sys.stdout)
    coloured = wants_colour(sys.stdout)
    click.echo(_paint(text) if coloured else text, color=coloured or None)


def print_error(text: str) -> None:
    """Print a message on standard error, as `print_text` does; a standard error that is closed or full is ignored."""
    with suppress(OSError, ValueError):
        click.echo(_clean(text.rstrip("\n"), sys.stderr), err=True)


def wants_colour(stream: IO[str] | None) -> bool:
    """Whether a stream gets colours: a terminal does, unless NO_COLOR is set or TERM is dumb; FORCE_COLOR forces it."""
    if os.environ.get("NO_COLOR") or stream is None:
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_ascii_only() -> bool:
    """Whether the encoding of standard output lacks the signs of `ms_recover.reporting.rank_map`."""
    try:
        "│■□▲◆◇…".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _paint(text: str) -> str:
    """Give the cells of pictures their colours, and the verdicts at the beginning of lines to the first empty one."""
    lines = _paint_cells(text).split("\n")
    for number, line in enumerate(lines):
        if not line:
            break
        for word, colour in _VERDICTS:
            if line.startswith(word) and not line[len(word) : len(word) + 1].isalnum():
                lines[number] = click.style(word, fg=colour, bold=True) + line[len(word) :]
                break
    return "\n".join(lines)


def _paint_cells(text: str) -> str:
    from ms_recover.reporting.rank_map import coloured_signs

    colours = coloured_signs()
    cells = "".join(map(re.escape, colours))
    one = re.compile(f"([{cells}])\\1*")

    def paint(found: re.Match[str]) -> str:
        return one.sub(lambda run: click.style(run[0], fg=colours[run[1]]), found[0])

    return re.sub(f"(?<=[│|])[{cells} ]+(?=[│|])", paint, text)


def _clean(text: str, stream: IO[str] | None) -> str:
    from ms_recover.model.printable import printable

    encoding = getattr(stream, "encoding", None) or "utf-8"
    lines = "\n".join(printable(line) for line in text.split("\n"))
    if stream is not None and stream.isatty():
        from ms_recover.reporting.wrapping import wrap_text

        lines = wrap_text(lines, _columns(stream))
    return lines.encode(encoding, "backslashreplace").decode(encoding)


def text_width() -> int | None:
    """Return the columns of the terminal on standard output, None for a pipe or a file."""
    return _columns(sys.stdout) if sys.stdout.isatty() else None


def _columns(stream: IO[str]) -> int:
    own = 0
    with suppress(OSError, ValueError):
        own = os.get_terminal_size(stream.fileno()).columns
    return max(20, shutil.get_terminal_size((own or 80, 24)).columns)  # COLUMNS comes first
