"""The worth of every slice of a tree."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import WHOLE, Note, RankPath
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.slices import ParameterList
from ms_recover.model.verification import MissingRanks, SliceCheck, Verification
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.verification import join_verifications, judge_slices, make_verification
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, backed, contents


def plain(*without, step=STEP):
    return [slice_file(rank, step) for rank in range(4) if rank not in without]


def path(rank, name="test-2_8.ckpt"):
    return f"ckpt_dir{rank}/{name}"


def compared(slices, known=NOTHING_READ, *, lists=PAIRS, options=DEFAULT_PLAN, **changes):
    return compare_slices(gather_facts(replace(tree(slices, lists), **changes), options, known))


def verify(slices, known=NOTHING_READ, *, sealing=False, **how):
    return make_verification(compared(slices, known, **how), sealing=sealing)


def found(verification):
    return [(check.rank, check.path, check.status) for check in verification.checks]


def test_every_slice_is_judged_newest_step_first_and_then_by_rank():
    slices = [*plain(2), slice_file(2, problem="cut"), *plain(step=OLDER)]
    verification = verify(slices)
    assert found(verification) == [
        *((rank, path(rank), "sound" if rank != 2 else "damaged") for rank in range(4)),
        *((rank, path(rank, "test-1_8.ckpt"), "sound") for rank in range(4)),
    ]
    assert verification.checks[2].reason == "cut"
    assert (verification.root, verification.missing, verification.disagreements) == ("/tree", (), ())
    assert [check.step for check in verification.checks] == [STEP] * 4 + [OLDER] * 4
    assert [item.file.step for item, _ in judge_slices(compared(slices)).slices] == [STEP] * 4 + [OLDER] * 4


def test_of_a_step_that_is_asked_for_it_alone_is_judged():
    for step in (OLDER, STEP):
        verification = verify([*plain(), *plain(step=OLDER)], options=PlanOptions(step=step))
        assert {check.step for check in verification.checks} == {step}


def test_slices_of_ranks_declared_lost_are_not_judged():
    verification = verify(plain(), options=PlanOptions(lost=frozenset((1,))))
    assert [rank for rank, _, _ in found(verification)] == [0, 2, 3]


def test_a_slice_that_is_not_there_is_wrong_and_its_place_is_named():
    verification = verify(plain(1))
    (check,) = verification.wrong
    assert check == SliceCheck(
        rank=1,
        step=STEP,
        path=path(1),
        status="missing",
        evidence="structure",
        reason="rank 1 has no slice of step 2_8",
    )
    assert verification.missing == (MissingRanks(STEP, (1,)),)
    assert [rank for rank, _, _ in found(verification)] == [0, 1, 2, 3]
    assert verify(plain(1), sealing=True).missing == ()
    assert [rank for rank, _, _ in found(verify(plain(1), sealing=True))] == [0, 2, 3]


def test_a_rank_whose_directory_is_refused_is_unreadable_also_where_slices_are_sealed():
    for sealing in (False, True):
        verification = verify(plain(1), sealing=sealing, denied=((1, Note("ckpt_dir1", "permission denied")),))
        (check,) = verification.wrong
        assert (check.rank, check.path, check.status) == (1, "ckpt_dir1", "unreadable")
        assert check.reason == "permission denied"


def test_a_rank_that_was_given_no_shard_misses_nothing():
    given = {rank: ParameterList(slice_file(rank).parameters) for rank in (0, 1, 2)}
    part = replace(WHOLE, expected={STEP: given}, places={STEP: RankPath(("r", "/x.ckpt"))})
    verification = verify(plain(2, 3), part=part)
    assert [(check.rank, check.path) for check in verification.wrong] == [(2, "r2/x.ckpt")]
    assert verification.missing == (MissingRanks(STEP, (2,)),)


def test_a_step_of_which_no_slice_is_left_has_no_places():
    verification = verify(plain(), part=replace(WHOLE, steps=(OLDER,)))
    assert {check.path for check in verification.wrong} == {""}
    assert verification.missing == (MissingRanks(OLDER, (0, 1, 2, 3)),)


def test_the_slice_beside_one_that_was_recovered_for_it_is_passed_over():
    loose = RankPath(("ckpt_dir", "/test-2_8.safetensors"))
    recovered = backed(
        replace(slice_file(3), place=loose), "b", run="", origin="recovered from rank 1 (x), by manifest"
    )
    others = [replace(slice_file(rank), place=loose) for rank in range(3)]
    verification = verify([*others, slice_file(3), recovered])
    assert [name for _, name, _ in found(verification)] == [path(rank, "test-2_8.safetensors") for rank in range(4)]
    assert verification.ok


def test_disagreements_name_their_step():
    (text,) = verify(plain(), contents(r0="a", r2="x", r1="b", r3="b")).disagreements
    assert text.startswith("step 2_8: ckpt_dir0/test-2_8.ckpt; ckpt_dir2/test-2_8.ckpt hold different contents")


def of_runs(**runs):
    """Return backed slices by the run, each rank's value by its letter."""
    return [
        backed(slice_file(rank, prefix=prefix), "ab"[rank % 2], run=prefix)
        for prefix, ranks in runs.items()
        for rank in ranks
    ]


def test_slices_of_another_run_are_judged_among_their_own_where_the_rank_has_one_of_the_main_run():
    """A rank without a slice of the step's main run has foreign ones only."""
    verification = verify(of_runs(test=(0, 1, 2), test_1=(0, 3)))
    assert found(verification) == [
        (0, path(0), "sound"),
        (0, path(0, "test_1-2_8.ckpt"), "sound"),
        (1, path(1), "sound"),
        (2, path(2), "sound"),
        (3, path(3, "test_1-2_8.ckpt"), "foreign"),
    ]


def test_while_sealing_slices_without_manifest_may_be_sound_beside_sealed_ones():
    slices = [slice_file(2), *(backed(slice_file(rank), "ab"[rank % 2], origin="sealed by vote") for rank in (1, 3))]
    for sealing, expected in ((True, "sound"), (False, "uncommitted")):
        judged = judge_slices(compared(slices, contents(r2="a")), sealing=sealing)
        assert {item.rank: verdict.status for item, verdict in judged.slices}[2] == expected
    assert judge_slices(compared(slices, contents(r2="a"))).slices[1][1].status == "sound"


@pytest.mark.parametrize(
    ("problem", "sealing", "noted"), [(None, False, True), (None, True, False), ("cut", False, False)]
)
def test_state_files_of_sound_slices_alone_are_noted(problem, sealing, noted):
    slices = [replace(slice_file(0), problem=problem), *plain(0)]
    known = Contents(states={path(0): "is missing"})
    assert verify(slices, known, sealing=sealing).states == ((Note(f"{path(0)}.state", "is missing"),) if noted else ())


def part_of(*checks, **changes):
    made = [SliceCheck(rank, step, f"x{rank}", "sound", "vote", "") for rank, step in checks]
    return Verification("/part", tuple(made), **changes)


def test_one_part_without_documents_is_the_verification_of_the_tree():
    only = part_of((0, STEP))
    assert join_verifications("/tree", [only]) is only
    note = Note("metadata.json", "is missing")
    joined = join_verifications("/tree", [only], (note,))
    assert (joined.root, joined.checks, joined.documents) == ("/tree", only.checks, (note,))


def test_parts_are_joined_newest_step_first_and_by_rank():
    first = part_of(
        (1, STEP), (0, OLDER), missing=(MissingRanks(STEP, (3,)),), disagreements=("a", "b"), states=(Note("x", "y"),)
    )
    second = part_of(
        (0, STEP), missing=(MissingRanks(OLDER, (2,)), MissingRanks(STEP, (1, 3))), disagreements=("b", "c")
    )
    joined = join_verifications("/tree", [first, second])
    assert [(check.rank, check.step) for check in joined.checks] == [(0, STEP), (1, STEP), (0, OLDER)]
    assert joined.missing == (MissingRanks(STEP, (1, 3)), MissingRanks(OLDER, (2,)))
    assert joined.disagreements == ("a", "b", "c")
    assert joined.states == (Note("x", "y"),)
