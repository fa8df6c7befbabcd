"""On a terminal lines are broken between words, whatever its width."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.reporting.tables import table_lines
from ms_recover.reporting.wrapping import cell_width, wrap_line, wrap_text, wrap_words

WORDS = st.text("ab/-中[]", min_size=1, max_size=30)
CELLS = st.lists(WORDS, max_size=8).map(" ".join)


def test_a_line_that_fits_stays_as_it_is():
    assert wrap_line("rank  state    verdict", 22) == ["rank  state    verdict"]
    assert wrap_line("", 20) == [""]


def test_what_follows_is_indented_a_little_more():
    assert wrap_line("  rank 1: a long reason", 14) == ["  rank 1: a", "    long", "    reason"]


def test_a_word_that_is_too_long_has_a_line_of_its_own():
    path = "/a/path/that/is/longer/than/the/terminal"
    assert wrap_line(f"see {path} for more", 20) == ["see", f"  {path}", "  for more"]


def test_wide_characters_count_twice():
    assert cell_width("中文") == 4
    assert wrap_words("中文 中文 中文", 9) == ["中文 中文", "中文"]


def test_a_command_can_be_copied_from_the_terminal():
    line = "Next: recover-ckpt apply '/check points/run 7' --tolerate 'a b' --strategy s/rank_{rank}.ckpt --lost 3"
    pieces = wrap_line(line, 40)
    assert len(pieces) > 2
    assert all(piece.endswith(" \\") for piece in pieces[:-1])
    typed = "\n".join(pieces).removeprefix("Next: ").replace("\\\n", " ")
    assert shlex.split(typed) == shlex.split(line.removeprefix("Next: "))


def test_each_line_of_a_text_is_wrapped():
    assert wrap_text("one two\nthree four", 5) == "one\n  two\nthree\n  four"


@given(st.lists(WORDS, min_size=1, max_size=12), st.integers(20, 80))
def test_wrapping_keeps_every_word_and_the_width(words, width):
    lines = wrap_line(" ".join(words), width)
    assert " ".join(lines).split() == words
    assert all(cell_width(line) <= width or len(line.split()) == 1 for line in lines)


@given(st.lists(st.tuples(*[CELLS] * 4), min_size=1, max_size=4), st.integers(20, 100))
def test_tables_keep_every_word_whole(rows, width):
    columns = ("rank", "state", "slice", "why")
    lines = table_lines(columns, rows, width)
    shown = " ".join(lines).split()
    for row in rows:
        for cell in row:
            for word in cell.split():
                assert word in shown
    longest = max(map(cell_width, shown))
    assert all(cell_width(line) <= max(width, longest + 8) for line in lines)


def test_wide_columns_stand_below_their_row():
    rows = [("0", "missing", "ckpt_dir4/test-2_77.ckpt -> ckpt_dir0/test-2_77.ckpt", "no directory; rank 4 has it")]
    assert table_lines(("rank", "state", "slice", "why"), rows, 40) == [
        "rank  state    why",
        "   0  missing  no directory; rank 4 has",
        "               it",
        "      slice: ckpt_dir4/test-2_77.ckpt",
        "        -> ckpt_dir0/test-2_77.ckpt",
    ]


def test_an_empty_cell_has_no_line_below():
    lines = table_lines(("rank", "why"), [("0", ""), ("1", "word " * 20)], 30)
    assert lines[:3] == ["rank", "   0", "   1"]
    assert lines[3].startswith("      why: word")


@pytest.mark.parametrize("width", [None, 80, 200])
def test_a_table_that_fits_is_the_same_everywhere(width):
    rows = [("0", "ok", "a/b.ckpt", "sound"), ("12", "damaged", "c/d.ckpt", "")]
    assert table_lines(("rank", "state", "slice", "why"), rows, width) == [
        "rank  state    slice     why",
        "   0  ok       a/b.ckpt  sound",
        "  12  damaged  c/d.ckpt",
    ]
