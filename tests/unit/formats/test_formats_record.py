"""Nouns as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ms_recover.formats.codec import json_text
from ms_recover.formats.record import record
from ms_recover.model.inventory import Note
from ms_recover.model.listening import Started, Stopped
from ms_recover.model.sealing import SealedStep
from ms_recover.model.steps import Step
from ms_recover.model.units import BigCount
from ms_recover.model.verification import SliceCheck


@dataclass(frozen=True)
class Whole:
    number: BigCount
    names: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    share: Fraction | None = None


@dataclass(frozen=True)
class Alone:
    name: str


@dataclass(frozen=True)
class Listed:
    RECORD = "*step bytes=size kind? ranks? seen? late?asked"

    step: Step
    size: int
    kind: str | None = None
    ranks: tuple[int, ...] = ()
    seen: bool = False
    late: tuple[Note, ...] = ()
    asked: bool = False


def test_a_noun_is_an_object_of_its_attributes():
    made = record(Whole(1, ("a",), (Note("b", "c"),), Fraction(1, 4)))
    assert made == {"number": 1, "names": ("a",), "notes": ({"path": "b", "reason": "c"},), "share": 0.25}


def test_a_noun_may_have_one_attribute():
    assert record(Alone("a")) == {"name": "a"}


def test_a_number_that_readers_would_round_is_text():
    assert [record(Whole(number))["number"] for number in (2**63 - 1, 2**63)] == [2**63 - 1, "9223372036854775808"]


def test_members_that_are_listed_come_in_that_order():
    made = record(Listed(Step(1, 2), 3, "model", (0,), True, (Note("a", "b"),), True))
    assert json_text(made, 0) == (
        '{"epoch": 1, "step": 2, "bytes": 3, "kind": "model", "ranks": [0], "seen": true, '
        '"late": [{"path": "a", "reason": "b"}]}'
    )


def test_members_that_are_empty_or_not_asked_for_are_left_out():
    assert record(Listed(Step(1, 2), 0, late=(Note("a", "b"),))) == {"epoch": 1, "step": 2, "bytes": 0}
    assert record(Listed(Step(1, 2), 0, asked=True)) == {"epoch": 1, "step": 2, "bytes": 0, "late": ()}


def test_the_lines_of_a_server_and_of_a_watched_tree():
    started = Started(root="/tree", address="::1", port=7, tls=True, token=False, token_file=None, pid=9)
    wrong = SliceCheck(1, Step(1, 8), "a.ckpt", "damaged", "structure", "cut off")
    sealed = SealedStep(root="/tree", step=Step(1, 8), sealed=("b.ckpt",), wrong=(wrong,), bytes=5, seconds=0.5)
    lines = [json_text(record(one), 0) for one in (started, Stopped(reason="idle"), sealed)]
    assert lines == [
        (
            '{"event": "started", "version": 1, "root": "/tree", "address": "::1", "port": 7, "tls": true, '
            '"token": false, "token_file": null, "pid": 9}'
        ),
        '{"event": "stopped", "version": 1, "reason": "idle"}',
        (
            '{"version": 1, "root": "/tree", "epoch": 1, "step": 8, "ok": false, "sealed": ["b.ckpt"], "wrong": '
            '[{"rank": 1, "epoch": 1, "step": 8, "path": "a.ckpt", "status": "damaged", "evidence": "structure", '
            '"reason": "cut off"}], "bytes": 5, "seconds": 0.5}'
        ),
    ]
