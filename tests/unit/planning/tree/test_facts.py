"""Facts about a tree, before anything is judged."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, Note, PartClaims
from ms_recover.model.manifest import Digests, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.planning.tree.candidates import runs_of, why_older
from ms_recover.planning.tree.facts import gather_facts
from ms_recover.planning.tree.positions import Saved
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


# --- what is known of a slice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "changes", "expected"),
    [
        ("cut off", {"group": (0, 1)}, "cut off"),
        (None, {"group": (0, 1)}, "the rank lists say"),
        (None, {}, "not those of its manifest"),
    ],
)
def test_the_problem_of_a_slice_is_that_of_its_header_then_its_manifest_then_its_contents(problem, changes, expected):
    file = replace(backed(slice_file(0), "a", **changes), problem=problem)
    assert expected in only(gather([file, *plain()[1:]], known=contents(r0="x")), 0).problem


def test_a_manifest_with_another_mismatch_still_states_the_digests():
    facts = gather([backed(slice_file(0), "a", group=(0, 1)), *plain()[1:]])
    assert (only(facts, 0).digests, only(facts, 0).manifest_problem is not None) == (digests("a"), True)


def test_the_digest_of_a_parameter_is_known_where_the_slice_has_it_and_its_digests_are_known():
    whole = replace(digests("a"), parameters=("0", "1", "2", "3"))
    bare = replace(
        backed(slice_file(1), "b"), manifest=replace(backed(slice_file(1), "b").manifest, digests=Digests("b"))
    )
    facts = gather([replace_digests(slice_file(0), whole), bare, slice_file(2)])
    assert [only(facts, 0).digest_of(name) for name in ("a", "moment1.a", "gone")] == ["0", "2", None]
    assert [only(facts, rank).digest_of("a") for rank in (1, 2)] == [None, None]
    assert only(facts, 0).contents == whole


def replace_digests(file, stated):
    file = backed(file, "a")
    return replace(file, manifest=replace(file.manifest, digests=stated))


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, (False, False, False)),
        ("saved", (True, True, False)),
        ("sealed by vote", (True, False, False)),
        ("sealed by header", (False, False, False)),
        ("recovered from rank 2 (a), by group", (True, False, True)),
    ],
)
def test_the_weight_of_a_manifest_is_that_of_its_origin(origin, expected):
    file = slice_file(0) if origin is None else backed(slice_file(0), "a", origin=origin)
    one = only(gather([file, *plain()[1:]]), 0)
    assert (one.saved, one.recovered) == expected[1:]
    assert one.proven == (origin is not None and file.manifest.provenance.proven)
    assert one.manifest == file.manifest


def test_slices_hold_the_same_bytes_where_both_are_known():
    facts = gather([backed(slice_file(rank), value) for rank, value in enumerate("aba")] + [slice_file(3)])
    one = only(facts, 0)
    assert [one.has_bytes_of(only(facts, rank)) for rank in range(4)] == [True, False, True, False]
    assert not only(facts, 3).has_bytes_of(only(facts, 3))
    assert not only(facts, 3).has_bytes_of(one)


@pytest.mark.parametrize(
    ("origin", "recorded"), [("saved", {"b"}), ("sealed by header", set()), ("recovered from a, by layout", {"b"})]
)
def test_what_differed_among_ranks_is_recorded_by_proven_manifests(origin, recorded):
    file = backed(slice_file(0), "a", origin=origin, training=TrainingRecord(100, rank_local=("b",)))
    one = only(gather([file, *plain()[1:]]), 0)
    assert one.recorded_local == (recorded if file.manifest.provenance.proven else set())
    assert one.recorded_local <= one.rank_local
    plainly = backed(slice_file(0), "a", origin=origin)
    assert only(gather([plainly, *plain()[1:]]), 0).recorded_local == frozenset()
    assert only(gather(plain()), 0).recorded_local == frozenset()


def test_what_reading_showed_is_known_of_the_slice_that_was_read():
    paths = [slice_file(rank).path for rank in range(4)]
    known = Contents(failing=frozenset({paths[0]}), nan=frozenset({paths[1]}), states={paths[2]: "odd"})
    facts = gather([*plain()[:3], replace(slice_file(3), failing=True)], known=known)
    assert [only(facts, rank).failing for rank in range(4)] == [True, False, False, True]
    assert [only(facts, rank).is_nan for rank in range(4)] == [False, True, False, False]
    assert [only(facts, rank).state_problem for rank in range(4)] == [None, None, "odd", None]


def test_ranks_that_the_operators_word_alone_groups_are_claimed():
    facts = gather(plain(), lists={}, groups=(frozenset({0, 2}),))
    assert [only(facts, rank).claimed for rank in range(4)] == [True, False, True, False]


# --- whose slices count -----------------------------------------------------------------------------------------------


def test_the_run_of_a_slice_beyond_the_world_is_not_gone_on_with():
    inside = [backed(slice_file(rank), "a", training=TrainingRecord(100)) for rank in range(4)]
    beyond = [
        replace(backed(slice_file(0), "b", run="late", training=TrainingRecord(900)), rank=rank) for rank in (4, 5)
    ]
    beyond = [replace(file, manifest=replace(file.manifest, rank=file.rank)) for file in beyond]
    assert gather([*inside, *beyond]).lineage.last.run_id == "run"
    with pytest.raises(UsageError, match="no run 'late'"):
        gather([*inside, *beyond], run="late")


def test_the_list_of_a_rank_beyond_the_world_says_nothing_of_those_in_it():
    stated = [backed(slice_file(rank), "a") for rank in range(4)]
    assert gather(stated, lists={**PAIRS, 4: [0, 1]}).groups.of(0) == (0, 2)


def test_slices_of_one_time_are_those_with_its_paths():
    facts = gather([*plain(), *plain(OLDER)])
    files = facts.files_at(STEP)
    assert [file.rank for file in files] == [0, 1, 2, 3]
    assert facts.files_at(STEP, Saved(step=STEP)) == files
    assert facts.files_at(STEP, Saved(step=STEP, paths=frozenset({files[1].path}))) == files[1:2]
    assert facts.times_of(OLDER)[0].step == OLDER


def test_ranks_without_a_shard_of_a_part_are_idle():
    expected = {STEP: {rank: plain()[0].parameters for rank in (0, 2)}}
    part = PartClaims(kind="model", steps=(STEP,), world_size=4, source="metadata.json", expected=expected)
    facts = gather_facts(replace(tree(plain(), {}), part=part))
    assert (facts.idle(STEP), facts.idle(OLDER)) == ({1, 3}, frozenset())
    assert [facts.expected(STEP, rank) is not None for rank in range(4)] == [True, False, True, False]
    assert facts.expected(OLDER, 0) is None
    assert facts.kind == "model"
