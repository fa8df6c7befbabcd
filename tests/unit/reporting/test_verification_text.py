"""What verify prints: SOUND only for contents that were compared, and ranks in every column."""

import pytest

from ms_recover.model.steps import Step
from ms_recover.model.verification import MissingRanks, SliceCheck, Verification
from ms_recover.reporting.verification_text import verification_text

OLD, NEW = Step(1, 8), Step(2, 8)


def check(rank, status="sound", evidence="vote", step=NEW):
    return SliceCheck(rank, step, f"rank_{rank}/a-{step}.ckpt", status, evidence, "because")


def lines(*checks, missing=()):
    return verification_text(Verification("/tree", checks, (), missing), None).splitlines()


@pytest.mark.parametrize("evidence", ["manifest", "vote", "layout"])
def test_sound_where_everything_was_compared(evidence):
    found = lines(*(check(rank, evidence=evidence) for rank in (0, 1, 2, 5)))
    assert found[1] == "SOUND: all 4 slices"
    assert f"0-2, 5 by {evidence}" in found[-1]


def test_what_rests_on_structure_alone_is_called_that():
    found = lines(*(check(rank) for rank in range(4)), check(4, evidence="structure"), check(5, evidence="structure"))
    assert found[1] == "SOUND where compared; 2 slices were not compared (structure only): ranks 4-5"
    assert "0-3 by vote" in found[-1]
    assert "4-5" in found[-1]


def test_nothing_compared_is_not_called_sound():
    found = lines(check(0, evidence="structure"), check(1, evidence="structure"))
    assert found[1].startswith("NOT COMPARED: ")
    assert "structure only" in found[1]


def test_a_missing_slice_is_wrong_and_has_its_column():
    found = lines(check(0), check(1, "missing"), check(2, "suspect"), missing=(MissingRanks(NEW, (1,)),))
    assert found[1] == "WRONG: 2 of 3 slices: 1 missing, 1 suspect"
    head = next(line for line in found if line.startswith("step"))
    row = found[-1]
    assert row[head.index("wrong") :].split()[0] == "2"
    assert row[head.index("missing") :].split() == ["1"]


def test_columns_say_ranks_for_each_step():
    found = lines(
        *(check(rank) for rank in range(4)), check(0, step=OLD, evidence="manifest"), check(1, "damaged", step=OLD)
    )
    assert found[-2].startswith("2_8   0-3 by vote")
    assert found[-1].startswith("1_8   0 by manifest")


def test_a_step_of_which_every_slice_is_missing_has_a_row():
    found = lines(check(0), missing=(MissingRanks(OLD, (0, 1)),))
    assert found[-1].split() == ["1_8", "0-1"]
