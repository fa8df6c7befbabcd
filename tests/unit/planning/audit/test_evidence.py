"""Which lists and layouts are lost with which ranks."""

from dataclasses import replace

import pytest

from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import GroupFile, PartClaims, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.evidence import find_evidence
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import slice_file, tree
from tests.unit.planning.test_contents import backed


def _file(rank, devices, folder=None):
    strategy = Strategy((0,), 1, (Layout("a", (devices,), ((),)),))
    return StrategyFile(rank, f"ckpt_dir{rank if folder is None else folder}/strategy.ckpt", strategy)


@pytest.mark.parametrize(
    ("other", "lost_with", "kept"),
    [
        (_file(2, 4), {0, 1, 2}, []),
        (_file(2, 2), {0, 1}, []),
        (_file(2, 4, folder=99), {0, 1}, [0]),
    ],
    ids=["of the same size", "of another size", "in no rank's directory"],
)
def test_layouts_are_lost_with_the_directories_of_the_files_that_state_them(other, lost_with, kept):
    inventory = replace(
        tree([slice_file(rank) for rank in range(4)], {}), strategy_files=(_file(0, 4), _file(1, 4), other)
    )
    found = find_evidence(gather_facts(inventory))
    assert found.by_stage == {0: lost_with}
    assert sorted(found.kept_stages) == kept


def sealed(file, group):
    """Return a slice with a manifest that names a group."""
    return backed(file, "a", group=group)


def test_rank_lists_are_lost_with_the_directories_that_have_them():
    """The ranks 0 and 2 have the list of their pair; that of the others lies beside the directories."""
    inventory = tree([slice_file(rank) for rank in range(4)], {0: [0, 2], 2: [0, 2]})
    apart = GroupFile(None, "lists/group_info.pb", None, GroupInfo((1, 3)))
    damaged = GroupFile(1, "ckpt_dir1/group_info.pb", None, None, problem="it is cut off")
    found = find_evidence(gather_facts(replace(inventory, group_files=(*inventory.group_files, apart, damaged))))
    assert found.lists((0, 2)) == {0, 2}
    assert found.lists((1, 3)) is None
    assert found.lists((0, 1, 2, 3)) == frozenset()


def test_a_list_in_the_directory_of_another_rank_is_not_lost_with_its_own():
    inventory = tree([slice_file(rank) for rank in range(2)], {0: [0, 1]})
    (listing,) = inventory.group_files
    moved = replace(listing, path="ckpt_dir1/group_info.pb")
    assert find_evidence(gather_facts(replace(inventory, group_files=(moved,)))).lists((0, 1)) is None


def test_a_manifest_states_the_group_of_its_slice():
    slices = [slice_file(0), sealed(slice_file(1), (0, 1)), slice_file(2)]
    found = find_evidence(gather_facts(tree(slices, {0: [0, 1]})))
    assert found.lists((0, 1)) == {0, 1}
    assert found.lists((2,)) == frozenset()


def test_what_the_operator_says_stays():
    found = find_evidence(
        gather_facts(tree([slice_file(0), slice_file(1)], {}), PlanOptions(groups=(frozenset({0, 1}),)))
    )
    assert found.lists((0, 1)) is None


@pytest.mark.parametrize(("digest", "lost_with"), [("s", {0, 1}), ("", {0, 1}), ("other", {0})])
def test_a_strategy_file_that_was_not_used_states_nothing(digest, lost_with):
    files = (replace(_file(0, 4), digest="s"), replace(_file(0, 4, folder=2), rank=2, digest="s"))
    other = replace(_file(1, 4), digest=digest)
    facts = gather_facts(replace(tree([slice_file(rank) for rank in range(4)], {}), strategy_files=files))
    found = find_evidence(replace(facts, inventory=replace(facts.inventory, strategy_files=(files[0], other))))
    assert found.strategies(0) == lost_with


def test_a_stage_without_a_strategy_file_has_none_to_lose():
    found = find_evidence(gather_facts(tree([slice_file(0)], {})))
    assert (found.strategies(0), found.by_stage, found.kept_stages) == (frozenset(), {}, frozenset())


def test_documents_of_an_iteration_state_all_of_it_for_every_rank():
    inventory = replace(tree([slice_file(rank) for rank in range(4)], {0: [0, 2]}), strategy_files=(_file(0, 4),))
    facts = gather_facts(inventory)
    facts = replace(facts, inventory=replace(inventory, part=PartClaims(kind="model")))
    found = find_evidence(facts)
    assert (found.lists((0, 2)), found.strategies(0)) == (None, None)
    assert find_evidence(gather_facts(inventory)).lists((0, 2)) == {0}
