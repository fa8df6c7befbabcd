"""What is said of values and states that a recovered rank does not have of its own."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.manifest import TrainingRecord
from ms_recover.planning.supply.choose import choose_sources
from ms_recover.planning.supply.lent_values import name_lost_states
from tests.support.inventories import slice_file, tree
from tests.unit.planning.supply.test_choose import supply
from tests.unit.planning.test_contents import PAIRS, backed, digests


def saved(rank, **training):
    """Return a slice that training saved with its state file."""
    file = backed(slice_file(rank), "ab"[rank % 2])
    record = TrainingRecord(started=None, **{"state_digest": f"state {rank}", **training})
    return replace(file, manifest=replace(file.manifest, training=record))


def said(slices, states=None):
    known = Contents({one.path: digests("ab"[one.rank % 2]) for one in slices}, states=states or {})
    found = supply(tree(slices, PAIRS), known)
    return name_lost_states(found.facts, choose_sources(found))


def test_nothing_is_said_where_every_rank_has_its_state():
    assert said([saved(rank, states_differ=True) for rank in range(4)]) == []


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"states_differ": True}, "are lost with their slices, and differ from those of other ranks"),
        ({"states_differ": None}, "are lost with their slices: training resumes with the random generators"),
        ({"states_differ": False}, None),
        ({"states_differ": True, "state_digest": None}, None),
    ],
    ids=["differ", "not compared", "alike", "without states"],
)
def test_a_rank_whose_slice_is_copied_has_the_state_of_its_source(training, words):
    texts = said([saved(rank, **training) for rank in (1, 2, 3)])
    assert [f"the state files of rank(s) 0 {words}" in text for text in texts] == ([True] if words else [])


def test_nothing_is_said_of_the_states_of_slices_without_manifests():
    assert said([slice_file(rank) for rank in (1, 2, 3)]) == []


def test_state_files_that_are_wrong_are_named_with_their_ranks():
    slices = [saved(rank, states_differ=False) for rank in range(4)]
    (text,) = said(slices, {slices[rank].path: f"odd state {rank}" for rank in (1, 2)})
    assert text.startswith("state files are wrong (rank 1: odd state 1; rank 2: odd state 2): training resumes with")


def test_the_wrong_state_of_a_source_is_not_lent():
    slices = [saved(rank, states_differ=True) for rank in (1, 2, 3)]
    (text,) = said(slices, {slices[1].path: "odd state"})
    assert text.startswith("state files are wrong (rank 2: odd state)")
