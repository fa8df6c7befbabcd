"""Everything that a command prints."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import IO, Any

import click


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object as indented text, in ASCII."""
    from ms_recover.formats.codec import json_text

    click.echo(json_text(data))


def print_line(data: dict[str, Any]) -> None:
    """Print one JSON object in one line, in ASCII."""
    from ms_recover.formats.codec import json_text

    click.echo(json_text(data, 0))


def print_text(text: str) -> None:
    """Print a report on standard output, without what steers a terminal or does not fit its encoding."""
    click.echo(_clean(text, sys.stdout))


def print_error(text: str) -> None:
    """Print a message on standard error, as `print_text` does; a standard error that is closed or full is ignored."""
    with suppress(OSError):
        click.echo(_clean(text.rstrip("\n"), sys.stderr), err=True)


def _clean(text: str, stream: IO[str] | None) -> str:
    from ms_recover.model.printable import printable

    encoding = getattr(stream, "encoding", None) or "utf-8"
    lines = "\n".join(printable(line) for line in text.split("\n"))
    return lines.encode(encoding, "backslashreplace").decode(encoding)


def text_width() -> int | None:
    """Return the columns of the terminal on standard output, None for a pipe or a file."""
    return max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
