"""Planning when contents were read: votes, manifests, runs."""

from dataclasses import replace

import pytest

from ms_recover.formats.manifest_json import parse_origin
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.options import PlanOptions
from ms_recover.planning.choice import choose_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.plan.required_reads import required_reads
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.support.plans import make_plan

TRIPLES = {rank: [rank % 2, rank % 2 + 2, rank % 2 + 4] for rank in range(6)}
PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}


def digests(value):
    return Digests(f"file:{value}", (f"p:{value}",) * 4)


def backed(file, value, run="run", origin="saved", **changes):
    group = tuple((PAIRS if changes.pop("pairs", True) else TRIPLES)[file.rank])
    name = file.path.rpartition("/")[2]
    made = Manifest(
        run,
        file.rank,
        4,
        file.step,
        8,
        name,
        file.size,
        digests(value),
        file.parameters,
        group,
        provenance=parse_origin(origin),
    )
    return replace(file, manifest=replace(made, **changes))


def contents(**values):
    """``r0="a"`` says that rank 0's newest slice contains a."""
    return Contents({slice_file(int(name[1:])).path: digests(value) for name, value in values.items()})


def test_the_outvoted_slice_is_replaced():
    slices = [slice_file(rank) for rank in range(6)]
    plan = make_plan(tree(slices, TRIPLES), contents=contents(r0="a", r2="x", r4="a", r1="b", r3="b", r5="b"))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(2, 0)]
    assert "silent corruption" in plan.ranks[2].reason
    assert plan.ranks[0].evidence == "vote"
    assert [replica.rank for replica in plan.actions[0].alternatives] == [4]


def test_two_that_disagree_stop_everything_even_with_an_older_step():
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    plan = make_plan(tree(slices, PAIRS), contents=contents(r0="a", r2="x", r1="b", r3="b"))
    assert not plan.recoverable
    assert plan.disagreements
    assert "ckpt_dir0" in plan.disagreements[0]
    settled = make_plan(
        tree(slices, PAIRS), PlanOptions(lost=frozenset((2,))), contents=contents(r0="a", r2="x", r1="b", r3="b")
    )
    assert [(action.rank, action.source_rank) for action in settled.actions] == [(2, 0)]
    assert make_plan(tree(slices, PAIRS), PlanOptions(step=OLDER), contents=contents(r0="a", r2="x")).step == OLDER


def test_replicas_that_differ_are_not_hidden_behind_a_smaller_run():
    """One slice of another run could serve a whole group; the conflict of the run that most ranks have comes first."""
    main = [backed(slice_file(rank), rank, run="main") for rank in range(4)]
    other = [backed(slice_file(rank, prefix="copied"), "x", run="other") for rank in range(2)]
    plan = make_plan(tree([*main, *other], PAIRS))
    assert plan.disagreements
    assert not plan.actions
    assert plan.run_id == "main"


def test_a_renamed_older_slice_is_found_among_two():
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    known = contents(r0="old", r2="new", r1="b", r3="b")
    known.digests[slice_file(0, OLDER).path] = digests("old")
    known.digests[slice_file(2, OLDER).path] = digests("old")
    plan = make_plan(tree(slices, PAIRS), contents=known)
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 2)]
    assert "renamed" in plan.ranks[0].reason


def test_another_groups_slice_is_found_among_two():
    slices = [slice_file(rank) for rank in range(4)]
    plan = make_plan(tree(slices, PAIRS), contents=contents(r0="b", r2="a", r1="b", r3="b"))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 2)]


def reads(inventory, known=NOTHING_READ):
    choice = choose_step(Parts(TreeFacts(inventory, contents=known), all_read=False))
    return {(file.rank, file.step) for file in required_reads(choice)}


def test_what_must_be_read():
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    inventory = tree(slices, PAIRS)
    assert reads(inventory) == {(rank, STEP) for rank in range(4)}
    undecided = reads(inventory, contents(r0="a", r2="x", r1="b", r3="b"))
    assert undecided == {(rank, step) for rank in (0, 2) for step in (OLDER, STEP)}
    assert reads(tree([slice_file(0), slice_file(1)], {0: [0], 1: [1]})) == set()


def test_a_slice_without_manifest_is_not_committed_where_its_run_writes_them():
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in range(4)]
    slices[0] = slice_file(0)
    plan = make_plan(tree(slices, PAIRS))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 2)]
    assert "not committed" in plan.ranks[0].reason
    sealed = [backed(slice_file(rank), "ab"[rank % 2], origin="sealed") for rank in range(4)]
    sealed[0] = slice_file(0)
    assert not make_plan(tree(sealed, PAIRS)).actions


def test_a_manifest_settles_between_two():
    slices = [slice_file(rank) for rank in range(4)]
    slices[2] = backed(slices[2], "a", origin="sealed by vote")
    plan = make_plan(tree(slices, PAIRS), contents=contents(r0="x", r2="a", r1="b", r3="b"))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 2)]
    assert plan.ranks[2].evidence == "manifest"


def test_contents_that_break_their_manifest_are_damaged():
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in range(4)]
    plan = make_plan(tree(slices, PAIRS), contents=contents(r0="x", r2="a", r1="b", r3="b"))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 2)]
    assert plan.actions[0].replica.digest == "file:a"


def test_runs_are_never_mixed():
    slices = [backed(slice_file(rank), "ab"[rank % 2], run="new") for rank in (0, 1, 2)]
    slices.append(backed(slice_file(3), "b", run="old"))
    plan = make_plan(tree(slices, PAIRS))
    assert plan.run_id == "new"
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(3, 1)]
    assert "belongs to run old" in plan.ranks[3].reason


def test_the_other_run_is_taken_when_only_it_is_whole():
    slices = [backed(slice_file(rank), "ab"[rank % 2], run="half") for rank in (0, 2)]
    slices += [backed(slice_file(rank, prefix="test_1"), "ab"[rank % 2], run="whole") for rank in (0, 1)]
    plan = make_plan(tree(slices, PAIRS))
    assert plan.run_id == "whole"
    assert {action.source_rank for action in plan.actions} == {0, 1}


def test_a_rank_that_took_another_layout_is_foreign():
    slices = [
        backed(slice_file(rank), "ab"[rank % 2], pairs=False, world_size=6, strategy_digest="s" if rank != 2 else "t")
        for rank in range(6)
    ]
    plan = make_plan(tree(slices, TRIPLES))
    assert [action.rank for action in plan.actions] == [2]
    assert "layout" in plan.ranks[2].reason


@pytest.mark.parametrize("world", [2, 16])
def test_manifests_of_another_world_are_foreign(world):
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in range(4)]
    slices[1] = backed(slice_file(1), "b", world_size=world)
    plan = make_plan(tree(slices, PAIRS), PlanOptions(world_size=4))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(1, 3)]


def test_groups_are_known_from_manifests_alone():
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in (1, 2, 3)]
    plan = make_plan(tree(slices, {}))
    assert plan.world_size == 4
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 2)]
    assert plan.group_files == ()


def test_borrowed_values_are_named():
    names = ("a", "moving_mean", "c", "d")
    slices = [slice_file(rank, names=names) for rank in (1, 2, 3, 4, 5)]
    known = contents(r1="b", r3="b", r5="b")
    known.digests[slices[1].path] = Digests("file:2", ("p", "2", "p", "p"))
    known.digests[slices[3].path] = Digests("file:4", ("p", "4", "p", "p"))
    (action,) = make_plan(tree(slices, TRIPLES), contents=known).actions
    assert action.rank == 0
    assert action.borrowed == ("moving_mean",)


def saved_triples(*values, **changes):
    """Return the slices of ranks 0, 2 and 4, which hold the same, and of 1, 3 and 5, as training saved them."""
    held = [(0, values[0]), (2, values[1]), (4, values[2]), (1, "b"), (3, "b"), (5, "b")]
    return [backed(slice_file(r), v, pairs=False, world_size=6, **changes) for r, v in held if v]


def test_a_slice_that_training_saved_is_kept_against_a_majority_and_named():
    plan = make_plan(tree(saved_triples("a", "x", "a"), TRIPLES))
    assert plan.recoverable
    assert not plan.actions
    assert plan.ranks[2].verdict == "keep"
    [warning] = plan.warnings
    assert "rank 2" in warning
    assert "ckpt_dir2" in warning
    assert "--lost 2" in warning


def test_declaring_it_lost_replaces_it_by_the_majority():
    plan = make_plan(tree(saved_triples("a", "x", "a"), TRIPLES), PlanOptions(lost=frozenset((2,))))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(2, 0)]


def test_a_lost_rank_recovers_from_the_majority_and_not_from_the_slice_that_is_kept():
    lists = {rank: list(range(4)) for rank in range(4)}
    slices = [backed(slice_file(rank), v, group=(0, 1, 2, 3)) for rank, v in enumerate("xaa")]
    plan = make_plan(tree(slices, lists))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(3, 1)]
    assert plan.ranks[0].verdict == "keep"
    assert [one.rank for one in plan.actions[0].alternatives] == [2]


def test_without_a_majority_of_saved_slices_nothing_is_settled():
    plan = make_plan(tree(saved_triples("a", "x", ""), TRIPLES))
    assert not plan.recoverable
    assert plan.disagreements
