"""Lines that fit a terminal: broken between words, never within one."""

from __future__ import annotations

import shlex

_HANGING = "  "
_NEXT = "Next: "


def cell_width(text: str) -> int:
    """Return the columns that a text takes on a terminal; wide characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrap_words(text: str, width: int) -> list[str]:
    """Break a text between its words into lines of `width` columns; a longer word has a line of its own."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and cell_width(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


def wrap_line(line: str, width: int) -> list[str]:
    """Break one line of a report; what follows is indented a little more. A command keeps its words and can be copied.

    A line that fits stays as it is, spaces included.
    """
    if cell_width(line) <= width:
        return [line]
    if line.startswith(_NEXT):
        return _wrap_command(line, width)
    text = line.lstrip(" ")
    indent = line[: len(line) - len(text)]
    first, *others = wrap_words(text, width - len(indent) - len(_HANGING))
    return [indent + first, *(indent + _HANGING + other for other in others)]


def wrap_text(text: str, width: int) -> str:
    """Break each line of a text as `wrap_line` does."""
    return "\n".join(piece for line in text.split("\n") for piece in wrap_line(line, width))


def _wrap_command(line: str, width: int) -> list[str]:
    """Break the command that a report proposes, with backslashes as the shell wants them."""
    try:
        words = shlex.split(line.removeprefix(_NEXT))
    except ValueError:  # quoted otherwise than by shlex: as it is
        return [line]
    pieces: list[str] = []
    piece = f"{_NEXT}{shlex.quote(words[0])}"
    for word in map(shlex.quote, words[1:]):
        if cell_width(f"{piece} {word} \\") > width:
            pieces.append(f"{piece} \\")
            piece = f"{_HANGING}{_HANGING}{word}"
        else:
            piece = f"{piece} {word}"
    return [*pieces, piece]
