"""What the slices of a step give to a reshard."""

from dataclasses import replace

import pytest

from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.reshard.source import disputed, find_source
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import STEP, tree
from tests.unit.planning.supply.test_choose import cut_by_layouts, plain


def source_of(*without):
    facts = gather_facts(cut_by_layouts(tree(plain(*without), {})))
    return find_source([compare_slices(facts)], STEP, runs_of(facts, STEP)[0])


def test_regions_name_slices_by_their_numbers():
    found = source_of(1)
    assert [one.replica.rank for one in found.slices] == [0, 2, 3]
    assert [(region.box, region.holders) for region in found.parameters["a"].regions] == [
        (((0, 4),), (0, 1)),
        (((4, 8),), (2,)),
    ]
    assert (found.alive, found.stage_names, found.lost) == ({0}, (frozenset(found.parameters),), ())


@pytest.mark.parametrize("names", [(), ("a",), ("b", "a")])
def test_parameters_of_which_stages_hold_different_contents_have_no_source(names):
    before = source_of()
    after = disputed(replace(before, disagreements=("before",)), names)
    assert [name for name, one in after.parameters.items() if not one.regions] == [
        name for name in before.parameters if name in names
    ]
    for name in names:
        assert [(gone.region, gone.bytes) for gone in after.parameters[name].missing] == [(((0, 8),), 32)]
    assert len(after.disagreements) == 1 + len(names)
    assert after.disagreements[0] == "before"
    assert list(after.parameters) == list(before.parameters)
