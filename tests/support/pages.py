"""Pages that show what commands print: each shown block is run again, on a tree made for it.

A block follows a comment ``<!-- run: NAME exit=CODE -->``, NAME being a function of `tests.support.page_trees`; with
``lines=N`` only the first N lines of each output are shown. ``/checkpoints``, or the path after ``root=``, stands for
the root of the tree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.support import page_trees
from tests.support.command_line import Recovered

BLOCK = re.compile(
    r"<!-- run: (?P<name>\S+)(?: root=(?P<root>\S+))?(?: lines=(?P<lines>\d+))? exit=(?P<exit>\d+) -->\n"
    r"```\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_TIMES = re.compile(r"(?:under )?\d+(?:\.\d+)?(?= (?:ms|s|[KMG]i?B/s)\b)")


def run_block(block: re.Match[str], root: Path, run: Callable[..., Recovered]) -> tuple[str, int]:
    """Run the commands of a block on its tree; return the block's text with what they print now, and the last code."""
    most, shown_root = int(block["lines"] or 1000), block["root"] or "/checkpoints"
    lines, code = [], 0
    with ExitStack() as stack:
        getattr(page_trees, block["name"])(root, stack)
        for line in block["text"].splitlines():
            if not line.startswith("$ recover-ckpt "):
                continue
            words = shlex.split(line.removeprefix("$ recover-ckpt "), comments=True)
            done = run(*(word.replace(shown_root, str(root)) for word in words))
            printed = (done.out + done.err).replace(str(root), shown_root).rstrip("\n").split("\n")
            lines += [line, *(shown.rstrip() for shown in printed[:most]), *(["..."] if len(printed) > most else [])]
            code = done.code
    return "\n".join(lines) + "\n", code


def without_times(text: str) -> str:
    """Return a text whose seconds and rates do not differ from run to run."""
    return _TIMES.sub("N", text)
