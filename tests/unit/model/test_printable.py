"""Names from disk are shown without their control characters."""

from __future__ import annotations

import os

import pytest

from ms_recover.model.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("two\nlines\r\t", "two\\x0alines\\x0d\\x09"),
        ("c1\x9b31m\x7f", "c1\\x9b31m\\x7f"),
        ("abc\u202egnp.ckpt", "abc\\u202egnp.ckpt"),
        ("\u2066x\u2069\u200f\u061c", "\\u2066x\\u2069\\u200f\\u061c"),
        ("\u2028", "\\u2028"),
    ],
)
def test_control_and_bidirectional_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_byte_that_is_no_utf8_is_shown_as_it_lies_on_disk() -> None:
    assert printable(os.fsdecode(b"bad\xff.ckpt")) == "bad\\xff.ckpt"


def test_every_lone_surrogate_becomes_text_that_can_be_encoded() -> None:
    assert printable("\ud800\udfff\udc41") == "\\ud800\\udfff\\udc41"
    printable("".join(map(chr, range(0xD800, 0xE000)))).encode()


def test_ordinary_names_stay_as_they_are() -> None:
    name = "ckpt_dir0/模型 é-1_2.ckpt \\x1b {rank}"
    assert printable(name) == name
