"""What brings all parts to the same step, and what is kept to repeat steps."""

import pytest

from ms_recover.splitting.training.alignment import Alignment, align
from ms_recover.splitting.training.journal import Entry, Journal


def test_parts_at_the_step_need_nothing():
    assert not align(2, {(0, 0): 5, (1, 1): 5}, 5, 4).any


def test_a_part_behind_takes_everyone_back_to_the_snapshot():
    assert align(2, {(0, 0): 5, (1, 1): 3}, 5, 3) == Alignment(restored=((0, 0),), repeated=(4, 5))
    assert align(2, {(0, 0): 5, (1, 1): None}, 5, 3) == Alignment(restored=((0, 0), (1, 1)), repeated=(4, 5))


def test_a_part_ahead_goes_back_too():
    assert align(2, {(0, 0): 6, (1, 1): 5}, 5, 5) == Alignment(restored=((0, 0),))


def test_a_copy_of_the_same_part_is_taken_where_there_is_one():
    assert align(1, {(0, 0): None, (1, 0): 5, (2, 0): 2}, 5, 2) == Alignment(copied=((0, 1, (0, 2)),))


def test_copies_that_are_all_behind_go_back():
    assert align(1, {(0, 0): None, (1, 0): 6}, 5, 2) == Alignment(restored=((0, 0), (1, 0)), repeated=(3, 4, 5))


def test_a_part_without_a_device_comes_first():
    assert align(3, {(0, 0): 1}, 5, 2) == Alignment(unserved=(1, 2))


def entry(step):
    return Entry(step, object(), ((0, 4), (4, 8)), (0, 1))


def test_the_journal_keeps_what_the_snapshot_lacks():
    journal = Journal()
    entries = [entry(step) for step in (1, 2, 3)]
    for each in entries:
        journal.add(each)
    assert journal.entries((2, 3)) == entries[1:]
    journal.taken(2)
    assert journal.snapshot == 2
    assert journal.entries((3,)) == [entries[2]]
    with pytest.raises(KeyError):
        journal.entries((2,))


def test_a_step_out_of_order_is_refused():
    journal = Journal()
    with pytest.raises(ValueError, match="step 2 does not follow step 0"):
        journal.add(entry(2))
