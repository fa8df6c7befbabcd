"""Plans for trees that were recovered, sealed or struck before: what is there already weighs no more than it should."""

from dataclasses import replace

from ms_recover.formats.manifest_json import parse_origin
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.options import PlanOptions
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.verification import judge_slices, make_verification
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.support.plans import make_plan

PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
TRIPLE = {rank: [0, 1, 2] for rank in range(3)}
RECOVERED = "recovered from rank 2 (ckpt_dir2/test-2_8.ckpt), by manifest"


def compared_slices(inventory, contents=NOTHING_READ):
    return compare_slices(gather_facts(inventory, contents=contents))


def digests(value):
    return Digests(f"file:{value}", (f"p:{value}",) * 4)


def backed(file, value, *, run="run", origin="saved", groups=PAIRS, **changes):
    name = file.path.rpartition("/")[2]
    group = tuple(groups[file.rank])
    told = digests(value) if len(file.parameters) == 4 else Digests(f"file:{value}", ("p",) * len(file.parameters))
    made = Manifest(
        run,
        file.rank,
        len(groups),
        file.step,
        8,
        name,
        file.size,
        told,
        file.parameters,
        group,
        provenance=parse_origin(origin),
    )
    return replace(file, manifest=replace(made, **changes))


def read(**values):
    return Contents({slice_file(int(name[1:])).path: digests(value) for name, value in values.items()})


def sealed_but(*ranks, step=STEP):
    """Return slices of four ranks, all sealed but some."""
    files = {rank: slice_file(rank, step) for rank in range(4)}
    return [
        file if rank in ranks else backed(file, "ab"[rank % 2], run="", origin="sealed by vote")
        for rank, file in files.items()
    ]


def test_a_slice_beside_a_recovered_one_does_not_make_it_ambiguous():
    slices = [slice_file(rank) for rank in (1, 2, 3)]
    slices += [backed(slice_file(0), "a", run="", origin=RECOVERED), slice_file(0, prefix="test_1", mtime=9)]
    plan = make_plan(tree(slices, PAIRS), contents=read(r0="a", r1="b", r2="a", r3="b"))
    assert plan.step == STEP
    assert not plan.actions
    assert plan.ranks[0].path == "ckpt_dir0/test-2_8.ckpt"


def test_a_slice_beside_a_damaged_saved_one_is_not_committed():
    slices = [backed(slice_file(rank, problem="cut"), "a", groups=TRIPLE) for rank in (0, 1)]
    slices.append(slice_file(0, prefix="test_1"))
    slices += [backed(slice_file(rank, OLDER), "o", groups=TRIPLE) for rank in range(3)]
    plan = make_plan(tree(slices, TRIPLE))
    assert plan.step == OLDER
    assert "not committed" in plan.rejected_steps[0].reason


def test_a_lone_slice_that_is_not_sealed_though_its_step_is_does_not_count():
    slices = [file for file in sealed_but(2) if file.rank != 0]
    assert not make_plan(tree(slices, PAIRS)).recoverable
    older = sealed_but(step=OLDER)
    plan = make_plan(tree([*slices, *older], PAIRS), contents=read(r2="x"))
    assert plan.step == OLDER
    assert "not sealed" in plan.rejected_steps[0].reason
    assert "seal again" in plan.rejected_steps[0].reason
    found = make_verification(compared_slices(tree(slices, PAIRS), contents=read(r2="x")))
    assert [(check.rank, check.status) for check in found.wrong] == [(0, "missing"), (2, "uncommitted")]


def test_it_counts_where_another_of_its_group_holds_the_same():
    plan = make_plan(tree(sealed_but(2), PAIRS), contents=read(r0="a", r2="a", r1="b", r3="b"))
    assert not plan.actions
    neither = make_plan(tree(sealed_but(0, 2), PAIRS), contents=read(r0="a", r2="a", r1="b", r3="b"))
    assert not neither.actions
    assert neither.ranks[2].evidence == "vote"


def test_before_it_was_read_it_has_the_benefit_of_the_doubt():
    slices = sealed_but(0, 2)
    assert make_plan(tree(slices, PAIRS)).step == STEP


def test_where_the_operator_settles_a_disagreement_it_counts():
    slices, known = sealed_but(0, 2), read(r0="x", r2="a", r1="b", r3="b")
    assert make_plan(tree(slices, PAIRS), contents=known).disagreements
    (action,) = make_plan(tree(slices, PAIRS), PlanOptions(lost=frozenset((0,))), contents=known).actions
    assert (action.rank, action.source_rank) == (0, 2)


def test_whoever_seals_vouches_for_it():
    compared = compared_slices(tree([file for file in sealed_but(2) if file.rank != 0], PAIRS), contents=read(r2="a"))
    judged = judge_slices(compared).slices
    assert {judgement.status for _, judgement in judged} == {"sound"}
    assert not make_verification(compared, sealing=True).wrong


def test_a_step_of_which_nothing_is_sealed_counts_as_before():
    slices = [*sealed_but(step=OLDER), *(slice_file(rank) for rank in (1, 2, 3))]
    assert [action.rank for action in make_plan(tree(slices, PAIRS)).actions] == [0]


def test_copies_do_not_outvote_a_layout():
    files = [backed(slice_file(rank), "a", groups=TRIPLE, strategy_digest="st"[rank]) for rank in (0, 1)]
    first = make_plan(tree(files, TRIPLE))
    assert [(action.rank, action.source_rank) for action in first.actions] == [(2, 0)]
    copy = backed(slice_file(2), "a", groups=TRIPLE, strategy_digest="s", origin=RECOVERED)
    assert not make_plan(tree([*files, copy], TRIPLE)).actions


def test_a_foreign_network_is_no_conflict_of_this_run():
    """Without other steps nothing but its run tells that rank 0's slice is none of these."""
    slices = [backed(slice_file(rank), "a", groups=TRIPLE) for rank in (1, 2)]
    slices.append(backed(slice_file(0, names=("x", "y")), "f", groups=TRIPLE, run="other"))
    plan = make_plan(tree(slices, TRIPLE))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 1)]
    assert "belongs to run other" in plan.ranks[0].reason


def test_a_run_with_fewer_slices_whose_peers_conflict_is_damaged():
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in range(4)]
    names = (NAMES, (*NAMES[:3], "other"))
    for rank in (0, 2):
        file = slice_file(rank, prefix="test_1", names=names[rank // 2])
        slices.append(backed(file, "f", run="other"))
    found = make_verification(compared_slices(tree(slices, PAIRS)))
    assert not found.disagreements
    assert [check.rank for check in found.checks if check.status == "sound"] == [0, 1, 2, 3]
    plan = make_plan(tree(slices, PAIRS))
    assert plan.run_id == "run"
    assert not plan.actions


def test_what_the_world_size_rests_on_does_not_depend_on_the_order():
    inventory = tree([slice_file(0), slice_file(1)], {rank: [rank, rank + 2] for rank in (0, 1)})
    turned = replace(inventory, group_files=inventory.group_files[::-1])
    assert make_plan(turned) == make_plan(inventory)


def test_an_older_slice_under_a_newer_name_is_found_even_twice_where_the_older_step_is_sealed():
    newer = [slice_file(rank) for rank in range(4)]
    known = read(r0="a", r2="a", r1="new", r3="new")
    plan = make_plan(tree([*newer, *sealed_but(step=OLDER)], PAIRS), contents=known)
    assert plan.step == OLDER
    assert "renamed" in plan.rejected_steps[0].reason


def test_what_lies_under_an_older_name_does_not_speak_against_a_manifest_of_other_bytes():
    newer = [slice_file(rank) for rank in range(4)]
    known = read(r0="new", r2="new", r1="more", r3="more")
    older = sealed_but(step=OLDER)
    known.digests[older[0].path] = digests("new")
    assert make_plan(tree([*newer, *older], PAIRS), contents=known).step == STEP


def test_a_foreign_network_and_a_slice_without_manifest_in_its_group_are_told_apart():
    lists = {rank: list(TRIPLE[rank]) for rank in range(3)}
    foreign = backed(slice_file(0, names=("x", "y")), "f", groups=TRIPLE, run="other", origin="sealed by vote")
    sealed = backed(slice_file(1), "a", groups=TRIPLE, run="", origin="sealed by vote")
    found = make_verification(compared_slices(tree([foreign, sealed, slice_file(2)], lists), contents=read(r2="a")))
    assert [check.rank for check in found.checks if check.status == "sound"] == [1, 2]
