"""Lines and plain tables for terminals and pipes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from ms_recover.model.printable import printable
from ms_recover.reporting.wrapping import cell_width, wrap_line, wrap_words

if TYPE_CHECKING:
    from ms_recover.model.inventory import Note

_GAP = "  "
_INDENT = 6
_MOST_LINES = 3
"""A cell that would take more lines stands below its row."""


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, right: Sequence[str] = ("rank",)
) -> list[str]:
    """Return the lines of a table without frames, two spaces between columns, no trailing spaces.

    `width` is that of the terminal; None for a pipe, where nothing is wrapped, so that grep finds whole paths. On a
    terminal cells are broken between words. Where that does not do, the widest columns leave the table: their cells
    stand below each row. The columns in `right` hold numbers.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    table = list(zip(columns, *cells, strict=True))
    pushed = [name in right for name in columns]
    natural = [max(map(cell_width, column)) for column in table]
    beside, widths = list(range(len(columns))), natural
    if width is not None and _total(natural) > width:
        beside, widths = _beside(natural, [max(map(_longest_word, column)) for column in table], width)
    below = [place for place in range(len(columns)) if place not in beside]
    lines = []
    for number, row in enumerate([columns, *cells]):
        lines += _row_lines([row[place] for place in beside], widths, [pushed[place] for place in beside])
        indent = " " * min(widths[0] + len(_GAP), _INDENT)
        for place in below if number else ():
            if row[place]:
                lines += wrap_line(f"{indent}{columns[place]}: {row[place]}", width or 0)
    return lines


def _beside(natural: Sequence[int], least: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Return the columns that stay beside each other, and their widths, of which none is less than its longest word."""
    beside = list(range(len(natural)))
    while True:
        widths = _share([natural[place] for place in beside], [least[place] for place in beside], width)
        if len(beside) == 1 or (
            _total(widths) <= width
            and all(natural[place] <= _MOST_LINES * given for place, given in zip(beside, widths, strict=True))
        ):
            return beside, widths
        beside.remove(max(beside[1:], key=lambda place: natural[place]))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _share(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Give each column its longest word, and what is left to all, at most what they can use."""
    widths = list(least)
    spare = width - _total(least)
    places = sorted(range(len(least)), key=lambda place: natural[place] - least[place])
    for index, place in enumerate(places):
        more = min(natural[place] - least[place], max(spare, 0) // (len(places) - index))
        widths[place] += more
        spare -= more
    return widths


def _row_lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    fitted = zip(row, widths, strict=True)
    pieces = [[cell] if cell_width(cell) <= fit else wrap_words(cell, fit) for cell, fit in fitted]
    lines = []
    for cells in zip_longest(*pieces, fillvalue=""):
        fills = [" " * (fit - cell_width(cell)) for cell, fit in zip(cells, widths, strict=True)]
        padded = [fill + cell if push else cell + fill for cell, fill, push in zip(cells, fills, right, strict=True)]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def _longest_word(cell: str) -> int:
    return max(map(cell_width, cell.split(" ")))


def section(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    right: Sequence[str] = ("rank",),
) -> list[str]:
    """Return an empty line, the title if there is one, and a table; nothing when it has no rows."""
    return ["", *([f"{title}:"] if title else []), *table_lines(columns, rows, width, right)] if rows else []


def first_rows(rows: Sequence[Sequence[str]], most: int, at: int, total: int | None = None) -> Sequence[Sequence[str]]:
    """Return so many rows of a table at most; of more, the last one says in the column `at` how many are left out.

    `total` is how many there are, where `rows` has the first of them alone.
    """
    left_out = (total or len(rows)) - most
    if left_out <= 0:
        return rows
    more = ["..." if place == 0 else "" for place in range(len(rows[0]))]
    more[at] = f"and {left_out:,} more: see --json"
    return [*rows[:most], more]


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
