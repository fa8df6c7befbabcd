"""Colour for the verdict in the headline: on a terminal, unless NO_COLOR or a dumb terminal says no."""

import io
import sys

import pytest

from ms_recover.cli.output import print_text, wants_colour

GREEN, YELLOW, RED = "\x1b[32m\x1b[1m", "\x1b[33m\x1b[1m", "\x1b[31m\x1b[1m"
END = "\x1b[0m"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def printed(text, monkeypatch, stream, **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "200", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    print_text(text)
    monkeypatch.undo()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("headline", "shown"),
    [
        ("COMPLETE at step 1_8", f"{GREEN}COMPLETE{END} at step 1_8"),
        ("DONE: every rank", f"{GREEN}DONE{END}: every rank"),
        ("SOUND: all 4 slices", f"{GREEN}SOUND{END}: all 4 slices"),
        ("SOUND where compared; 2", f"{YELLOW}SOUND where compared{END}; 2"),
        ("UNCERTAIN at step", f"{YELLOW}UNCERTAIN{END} at step"),
        ("UNRECOVERABLE: no step", f"{RED}UNRECOVERABLE{END}: no step"),
        ("PERMISSION DENIED at", f"{RED}PERMISSION DENIED{END} at"),
        ("WRONG: 1 of 3", f"{RED}WRONG{END}: 1 of 3"),
        ("DONEGAL", "DONEGAL"),
    ],
)
def test_the_verdict_has_a_colour_on_a_terminal(headline, shown, monkeypatch):
    assert printed(f"/tree\n{headline}\n\nDONE: no headline", monkeypatch, Terminal()) == (
        f"/tree\n{shown}\n\nDONE: no headline\n"
    )


def test_every_headline_of_the_reports_has_a_colour():
    import re
    from pathlib import Path

    from ms_recover import reporting
    from ms_recover.cli.output import _VERDICTS

    words = {word for word, _ in _VERDICTS}
    for page in ("plan_text", "outcome_text", "verification_text", "inspection"):
        text = (Path(reporting.__file__).parent / f"{page}.py").read_text()
        for found in re.findall(r'f?"([A-Z]{4,}(?: [A-Z]{4,})*)[ :](?![A-Z]{4})', text):
            assert found in words | {"HINT"}, (page, found)


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal, {}, True),
        (Terminal, {"TERM": "dumb"}, False),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (io.StringIO, {"FORCE_COLOR": ""}, False),
        (io.StringIO, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_who_gets_colours(stream, environment, coloured, monkeypatch):
    text = printed("/tree\nDONE: x", monkeypatch, stream(), **environment)
    assert (END in text) is coloured
    assert text.replace(END, "").replace(GREEN, "") == "/tree\nDONE: x\n"


def test_nothing_has_no_colour():
    assert not wants_colour(None)


def test_names_cannot_steer_a_terminal_with_colours(monkeypatch):
    text = printed("/tree \x1b[2J\nWRONG: \x1b]0;x\x07", monkeypatch, Terminal())
    assert text.count("\x1b") == 3
    assert "\\x1b[2J" in text


def test_long_lines_are_broken_between_words_on_a_terminal_only(monkeypatch):
    line = "RECOVERABLE at step 1_8: 2 slices to copy"
    assert printed(line, monkeypatch, Terminal(), COLUMNS="24", NO_COLOR="1") == (
        "RECOVERABLE at step\n  1_8: 2 slices to copy\n"
    )
    assert printed(line, monkeypatch, io.StringIO(), COLUMNS="24") == line + "\n"
