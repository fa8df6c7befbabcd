"""Facts about a tree, before anything is judged."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, Note
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.planning.tree.candidates import runs_of, why_older
from ms_recover.planning.tree.facts import gather_facts
from ms_recover.planning.tree.world_size import check_rank
from tests.support.inventories import OLDER, STEP, group_file, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, backed, contents, digests


def gather(slices, lists=PAIRS, known=NOTHING_READ, **options):
    return gather_facts(tree(slices, lists), PlanOptions(**options), known)


def plain(step=STEP):
    return [slice_file(rank, step) for rank in range(4)]


def only(facts, rank, step=STEP):
    (one,) = facts.at(step, rank)
    return one


def test_digests_are_those_read_else_those_of_the_manifest():
    facts = gather([backed(slice_file(0), "a"), backed(slice_file(1), "b"), slice_file(2)], known=contents(r0="x"))
    assert (only(facts, 0).digests, only(facts, 0).was_read) == (digests("x"), True)
    assert (only(facts, 1).digests, only(facts, 1).was_read) == (digests("b"), False)
    assert (only(facts, 2).digests, only(facts, 2).was_read) == (None, False)
    assert "not those of its manifest" in only(facts, 0).content_problem
    assert only(facts, 1).content_problem is None


def test_a_manifest_that_lists_other_parameters_says_nothing_of_the_contents():
    """Digests are in the order of the list; with the bytes of another slice under its name they are not its own."""
    other = replace(backed(slice_file(0), "a"), parameters=(Parameter("w", "Float32", (2,), 8),))
    facts = gather([other, *plain()[1:]])
    assert only(facts, 0).digests is None
    assert "does not list the parameters" in only(facts, 0).manifest_problem


def test_encrypted_slices_have_no_digests_to_compare():
    encrypted = replace(backed(slice_file(0), "a"), encryption="AES-GCM")
    one = only(gather([encrypted, *plain()[1:]], known=Contents({encrypted.path: Digests("file:a")})), 0)
    assert (one.digests, one.was_read, one.content_problem) == (None, True, None)


def test_a_slice_that_could_not_be_read_has_the_reason():
    known = Contents(problems={slice_file(0).path: "input/output error"})
    assert only(gather(plain(), known=known), 0).content_problem == "input/output error"


def test_manifests_are_checked_against_the_rank_lists():
    slices = [backed(slice_file(0), "a", group=(0, 1)), *plain()[1:]]
    assert "the rank lists say [0, 2]" in only(gather(slices), 0).manifest_problem


def test_equal_parameter_lists_are_one_object():
    facts = gather([*plain(), *plain(OLDER)])
    assert len({id(one.listed) for one in facts.counted}) == 1


def test_slices_of_lost_ranks_are_there_and_do_not_count():
    facts = gather(plain(), lost=frozenset((1,)))
    assert only(facts, 1).rank == 1
    assert [one.rank for one in facts.counted] == [0, 2, 3]
    assert [one.rank for one in facts.counted_at(STEP)] == [0, 2, 3]
    assert facts.counted_at(OLDER) == ()


def test_a_lost_ranks_manifest_makes_no_run_commit():
    slices = [backed(slice_file(0), "a"), *plain()[1:]]
    assert gather(slices).committing == {"test"}
    assert gather(slices, lost=frozenset((0,))).committing == frozenset()
    sealed = [backed(slice_file(0), "a", origin="sealed by vote"), *plain()[1:]]
    assert gather(sealed).committing == frozenset()


def test_a_lost_rank_names_no_run():
    slices = [backed(slice_file(0), "a", run="gone"), *plain()[1:]]
    assert [run.run_id for run in runs_of(gather(slices), STEP)] == ["gone"]
    assert [run.run_id for run in runs_of(gather(slices, lost=frozenset((0,))), STEP)] == [None]


def test_lost_ranks_outside_the_world_are_refused():
    with pytest.raises(UsageError, match="rank 4 is declared lost, but the ranks are 0 to 3"):
        gather(plain(), lost=frozenset((4,)))
    with pytest.raises(UsageError, match="there is no rank -1"):
        check_rank(-1, gather(plain()).world)


def test_slices_and_lists_outside_the_world_are_noted_and_not_used():
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in range(4)]
    slices += [slice_file(rank) for rank in (5, 6, 7)]
    facts = gather(slices, {**PAIRS, 5: [5, 6]})
    assert facts.world.ranks == 4
    assert sorted(facts.steps[STEP]) == [0, 1, 2, 3]
    assert {note.path for note in facts.notes} == {
        "ckpt_dir5/group_info.pb",
        "ckpt_dir5/test-2_8.ckpt",
        "ckpt_dir6/test-2_8.ckpt",
    }
    assert any("like 1 more" in note.reason for note in facts.notes)


def test_ranks_that_the_operator_excludes_are_taken_from_the_lists():
    facts = gather([slice_file(0), slice_file(1)], {0: [0, 2], 1: [1]}, world_size=2)
    assert facts.groups.of(0) == (0,)


def test_lists_that_contradict_each_other_are_refused():
    with pytest.raises(ContradictionError, match="contradict"):
        gather(plain(), {0: [0, 2], 2: [2]})


def test_denied_ranks_and_tolerated_patterns_are_kept():
    note = Note("ckpt_dir3", "permission denied")
    inventory = Inventory("/tree", (0, 3), (slice_file(0),), (group_file(0, [0, 3]),), denied=((3, note),))
    facts = gather_facts(inventory, PlanOptions(tolerate=("mine*",)))
    assert facts.denied == {3: note}
    assert facts.tolerance.covers("mine.1")
    assert facts.tolerance.covers("bn.moving_mean")
    assert not facts.tolerance.covers("yours")


def test_a_step_that_an_older_run_alone_saved_has_the_reason():
    older = [slice_file(rank, OLDER, prefix="old") for rank in range(4)]
    facts = gather([*older, *(slice_file(rank, mtime=2) for rank in range(4))])
    assert "older run" in why_older(facts, OLDER)
    assert why_older(facts, STEP) is None


def test_facts_do_not_depend_on_the_order_of_the_scan():
    slices = [*plain(), slice_file(0, prefix="test_1"), *plain(OLDER)]
    assert [one.path for one in gather(slices).counted_at(STEP)] == [
        one.path for one in gather(slices[::-1]).counted_at(STEP)
    ]


def test_a_slice_of_the_first_rank_beyond_the_world_is_none_of_its_slices():
    inside = [backed(slice_file(rank), "a") for rank in range(4)]
    facts = gather_facts(tree([*inside, slice_file(4)], {}))
    assert (facts.world.ranks, [slice_.rank for slice_ in facts.counted]) == (4, [0, 1, 2, 3])


@pytest.mark.parametrize(("run_id", "expected"), [("", None), ("run", "run")])
def test_manifests_without_a_run_s_name_leave_the_run_without_one(run_id, expected):
    facts = gather([backed(slice_file(rank), "a", run=run_id) for rank in range(4)])
    assert [run.run_id for run in runs_of(facts, STEP)] == [expected]
