"""Lines and plain tables for terminals and pipes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from ms_recover.model.printable import printable

if TYPE_CHECKING:
    from ms_recover.model.inventory import Note


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, right: Sequence[str] = ("rank",)
) -> list[str]:
    """Return the lines of a table without frames, two spaces between columns, no trailing spaces.

    `width` is that of the terminal; None for a pipe, where nothing is wrapped, so that grep finds whole paths. The
    columns in `right` hold numbers.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    if width is None:
        return _unwrapped([columns, *cells], [name in right for name in columns])
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in columns:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    file = StringIO()
    Console(file=file, width=width, color_system=None, legacy_windows=False, _environ={}).print(table)
    return [line.rstrip() for line in file.getvalue().rstrip("\n").split("\n")]


def _unwrapped(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Lay out a table as wide as it is: a terminal's wrapping needs rich, whose import is slow."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        fills = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [fill + cell if pushed else cell + fill for cell, fill, pushed in zip(row, fills, right, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return lines


def section(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    right: Sequence[str] = ("rank",),
) -> list[str]:
    """Return an empty line, the title if there is one, and a table; nothing when it has no rows."""
    return ["", *([f"{title}:"] if title else []), *table_lines(columns, rows, width, right)] if rows else []


def note_lines(notes: Iterable[Note], width: int | None) -> list[str]:
    """Return files and directories that are reported, never used."""
    rows = [(note.path, note.reason) for note in notes]
    return section("Not used, or worth a look", ("path", "why"), rows, width)


def render_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, right: Sequence[str] = ("rank",)
) -> str:
    """Return a table as one text; arguments as for `table_lines`."""
    return "\n".join(table_lines(columns, rows, width, right))


def page(lines: Iterable[str]) -> str:
    """Return lines as one text, in which no name from a file starts a line of its own."""
    return "\n".join(map(one_line, lines))


def one_line(text: str) -> str:
    """Escape the characters that break a line or steer a terminal; names in damaged files can hold any of them."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r"))


def size_text(count: int) -> str:
    """Return a number of bytes with its unit, such as ``1.5 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks with runs folded, such as ``0-3, 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
