from dataclasses import replace

import pytest

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.model.inventory import GroupFile, Inventory, Note, RankPath, SeenEvidence, StrategyFile, UnhealthySlice
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import GroupWrite
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.choice import assess_step
from ms_recover.planning.plan.planner import (
    hints_for,
    judge_every_step,
    judge_step_of,
    number_groups,
    plan_for_rank,
    plan_strategy_files,
)
from ms_recover.planning.tree.candidates import runs_of
from tests.support.inventories import NAMES, OLDER, STEP, group_file, pairs, slice_file, tree
from tests.support.plans import make_plan, make_planned
from tests.unit.planning.test_contents import backed


def whole(ranks=8, steps=(STEP,), without=()):
    return [slice_file(r, s) for r in range(ranks) for s in steps if r not in without and (r, s) not in without]


def lists(ranks=8, without=()):
    return {rank: members for rank, members in pairs(ranks).items() if rank not in without}


def test_nothing_lost_means_nothing_to_do():
    plan = make_plan(tree(whole(), lists()))
    assert plan.recoverable
    assert plan.step == STEP
    assert plan.actions == ()
    assert {rank.verdict for rank in plan.ranks} == {"keep"}
    assert plan.world_size == 8


@pytest.mark.parametrize("gone", range(8))
def test_each_lost_rank_is_copied_from_its_peer(gone):
    plan = make_plan(tree(whole(without=[gone]), lists(without=[gone])))
    (action,) = plan.actions
    assert (action.rank, action.source_rank) == (gone, (gone + 4) % 8)
    assert action.source == f"ckpt_dir{(gone + 4) % 8}/test-2_8.ckpt"
    assert action.target == f"ckpt_dir{gone}/test-2_8.ckpt"
    assert plan.world_size == 8
    assert [(write.rank, write.restore_ranks) for write in plan.group_files] == [(gone, tuple(pairs(8)[gone]))]
    assert plan.group_files[0].target == f"ckpt_dir{gone}/group_info.pb"


def test_a_rank_alone_in_its_group_makes_the_step_unrecoverable_and_is_named():
    alone = {rank: [rank] for rank in range(4)}
    plan = make_plan(tree(whole(4, without=[2]), alone))
    assert not plan.recoverable
    assert plan.step is None
    assert plan.actions == ()
    assert plan.ranks[2].verdict == "unrecoverable"
    assert "[2]" in plan.ranks[2].reason
    assert "rank 2" in plan.rejected_steps[0].reason


def test_falls_back_to_the_older_step_and_says_why():
    slices = whole(steps=(OLDER, STEP), without=[(0, STEP), (4, STEP)])
    plan = make_plan(tree(slices, lists()))
    assert plan.step == OLDER
    assert plan.actions == ()
    (rejected,) = plan.rejected_steps
    assert rejected.step == STEP
    assert rejected.reason.startswith("ranks 0, 4: no slice of step 2_8; ")


def test_prefers_the_newest_step_over_a_complete_older_one():
    slices = whole(steps=(OLDER, STEP), without=[(0, STEP)])
    plan = make_plan(tree(slices, lists()))
    assert plan.step == STEP
    assert [action.rank for action in plan.actions] == [0]
    assert plan.group_files == ()  # its rank list was not lost


def test_newest_is_by_number_not_by_text():
    slices = whole(steps=(Step(9, 8), Step(10, 8)))
    assert make_plan(tree(slices, lists())).step == Step(10, 8)


def test_one_survivor_serves_several_and_sources_are_spread_evenly():
    members = {rank: list(range(8)) for rank in (5, 6, 7)}
    plan = make_plan(tree([slice_file(rank) for rank in (5, 6, 7)], members))
    assert [action.rank for action in plan.actions] == [0, 1, 2, 3, 4]
    assert [action.source_rank for action in plan.actions] == [5, 6, 7, 5, 6]


def test_same_input_same_plan_whatever_the_order():
    slices, groups = whole(without=[1, 2]), lists(without=[1])
    one = tree(slices, groups)
    other = Inventory(one.root, one.ranks, tuple(reversed(one.slices)), tuple(reversed(one.group_files)))
    assert make_plan(one) == make_plan(other)


def test_damaged_slices_are_replaced_under_their_own_name():
    slices = whole(without=[3]) + [slice_file(3, problem="cut", prefix="test_1", size=50, mtime=7)]
    (action,) = make_plan(tree(slices, lists())).actions
    assert action.target == "ckpt_dir3/test_1-2_8.ckpt"
    assert action.replaces is not None
    assert (action.replaces.bytes, action.replaces.mtime_ns) == (50, 7)
    assert make_plan(tree(slices, lists())).ranks[3].state == "damaged"


def test_damaged_source_is_no_source():
    slices = whole(without=[3, 7]) + [slice_file(7, problem="cut")]
    plan = make_plan(tree(slices, lists(without=[3])))
    assert not plan.recoverable
    assert {rank.rank for rank in plan.ranks if rank.verdict == "unrecoverable"} == {3, 7}
    assert "rank 7 damaged" in plan.ranks[3].reason


def test_lost_ranks_count_as_gone_whatever_lies_there():
    plan = make_plan(tree(whole(), lists()), PlanOptions(lost=frozenset((0, 5))))
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 4), (5, 1)]
    assert plan.ranks[0].state == "lost"
    assert plan.actions[0].replaces is not None
    assert not make_plan(tree(whole(), lists()), PlanOptions(lost=frozenset((0, 4)))).recoverable


def test_rerun_suffixes_name_the_same_step():
    slices = whole(without=[0, 4]) + [slice_file(4, prefix="test_2")]
    (action,) = make_plan(tree(slices, lists())).actions
    assert (action.rank, action.source) == (0, "ckpt_dir4/test_2-2_8.ckpt")


def test_two_slices_for_one_step_are_ambiguous_without_newest():
    slices = [*whole(), slice_file(0, prefix="test_1", mtime=9)]
    plan = make_plan(tree(slices, lists()))
    assert not plan.recoverable
    assert "--newest" in plan.ranks[0].reason
    assert any("test_1-2_8" in note.reason for note in plan.notes)


def test_newest_chooses_one_run_for_all_ranks_and_never_rank_by_rank():
    slices = [*whole(), slice_file(0, prefix="test_1", mtime=9)]
    chosen = make_plan(tree(slices, lists()), PlanOptions(newest=True))
    assert chosen.recoverable
    assert not chosen.actions
    assert {rank.path for rank in chosen.ranks} == {f"ckpt_dir{rank}/test-2_8.ckpt" for rank in range(8)}
    assert "rank 0 has slices with the prefix 'test_1' as well, written after those" in chosen.warnings[0]
    rerun = [slice_file(rank, prefix="test_1", mtime=9) for rank in range(4)]
    newest = make_plan(tree([*whole(), *rerun], lists()), PlanOptions(newest=True))
    assert {rank.path for rank in newest.ranks} == {f"ckpt_dir{rank}/test-2_8.ckpt" for rank in range(8)}
    assert newest.warnings[0].endswith("--run test_1 takes it")
    completed = make_plan(tree([*whole(), *rerun], lists()), PlanOptions(run="test_1"))
    assert {rank.path for rank in completed.ranks} == {f"ckpt_dir{rank}/test_1-2_8.ckpt" for rank in range(8)}
    rerun = [slice_file(rank, prefix="test_1", mtime=9) for rank in range(8)]
    newest = make_plan(tree([*whole(), *rerun], lists()), PlanOptions(newest=True))
    assert {rank.path for rank in newest.ranks} == {f"ckpt_dir{rank}/test_1-2_8.ckpt" for rank in range(8)}


def test_an_ambiguous_slice_is_no_source():
    slices = [*whole(without=[4]), slice_file(0, prefix="test_1", mtime=9)]
    assert make_plan(tree(slices, lists())).ranks[4].verdict == "unrecoverable"
    (action,) = make_plan(tree(slices, lists()), PlanOptions(newest=True)).actions
    assert action.source == "ckpt_dir0/test-2_8.ckpt"


def test_a_damaged_and_a_sound_slice_for_one_step_are_not_ambiguous():
    slices = [*whole(), slice_file(0, prefix="test_1", problem="cut")]
    plan = make_plan(tree(slices, lists()))
    assert plan.ranks[0].path == "ckpt_dir0/test-2_8.ckpt"
    assert plan.actions == ()


def test_a_requested_step_is_the_only_one_considered():
    slices = whole(steps=(OLDER, STEP), without=[(0, STEP), (4, STEP)])
    assert make_plan(tree(slices, lists()), PlanOptions(step=OLDER)).step == OLDER
    assert not make_plan(tree(slices, lists()), PlanOptions(step=STEP)).recoverable
    with pytest.raises(MissingInputError, match="9_9"):
        make_plan(tree(slices, lists()), PlanOptions(step=Step(9, 9)))


def test_trailing_ranks_are_known_from_lists_given_size_or_not_at_all():
    slices = whole(4)
    inventory = tree(slices, {rank: [rank, rank + 4] for rank in range(4)})
    plan = make_plan(inventory)
    assert plan.world_size == 8
    assert [action.rank for action in plan.actions] == [4, 5, 6, 7]
    alone = tree(slices, {rank: [rank] for rank in range(4)})
    assert make_plan(alone).world_size == 4
    grown = make_plan(alone, PlanOptions(world_size=5))
    assert grown.ranks[4].verdict == "unrecoverable"
    assert "no group_info.pb" in grown.ranks[4].reason


def test_impossible_world_sizes_and_lost_ranks_are_refused():
    with pytest.raises(UsageError, match="rank 7"):
        make_plan(tree(whole(), lists()), PlanOptions(world_size=4))
    assert make_plan(tree(whole(4), {0: [0, 7]}), PlanOptions(world_size=6)).world_size == 6
    with pytest.raises(UsageError, match="rank 8"):
        make_plan(tree(whole(), lists()), PlanOptions(lost=frozenset((8,))))


def test_a_group_that_a_manifest_states_is_asked_within_the_world_alone():
    stated = backed(slice_file(1), "a", group=(0, 1, 7), world_size=8)
    made = make_plan(tree([stated], {}), PlanOptions(world_size=7))
    assert "nobody of its group [0-1, 7] has a sound slice (rank 1 damaged, rank 0 missing)" in made.ranks[0].reason


def test_no_rank_list_is_written_where_they_lie_elsewhere():
    files = tuple(group_file(rank, members, outside=True) for rank, members in lists().items())
    inventory = Inventory("/tree", tuple(range(1, 8)), tuple(whole(without=[0])), files)
    plan = make_plan(inventory)
    assert len(plan.actions) == 1
    assert plan.group_files == ()


def test_a_malformed_rank_list_is_noted_and_written_again_on_recovery():
    place = RankPath(("ckpt_dir", "/group_info.pb"))
    good = tree(whole(without=[0]), lists(without=[0]))
    bad = GroupFile(0, place.of(0), place, None, "is empty")
    inventory = Inventory(good.root, (0, *good.ranks), good.slices, (bad, *good.group_files))
    plan = make_plan(inventory)
    assert [write.rank for write in plan.group_files] == [0]
    assert ("ckpt_dir0/group_info.pb", "is empty") in [(note.path, note.reason) for note in plan.notes]


def test_no_slices_at_all():
    with pytest.raises(MissingInputError, match="no slice"):
        make_plan(tree([], lists()))


def test_a_slice_cut_at_a_record_boundary_is_damaged_by_what_its_peer_lists():
    slices = whole(without=[0]) + [slice_file(0, names=NAMES[:2])]
    plan = make_plan(tree(slices, lists()))
    assert plan.ranks[0].state == "damaged"
    assert "moment1.a" in plan.ranks[0].reason
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(0, 4)]


def test_steps_that_were_given_up_are_newer_ones_of_the_same_run():
    slices = whole(steps=(OLDER, STEP, Step(3, 8)), without=[(0, STEP), (4, STEP), (1, Step(3, 8)), (5, Step(3, 8))])
    plan = make_plan(tree(slices, lists()))
    assert plan.step == OLDER
    assert [one.step for one in plan.given_up] == [Step(3, 8), STEP]
    assert plan.given_up == plan.rejected_steps
    assert plan.warnings == ()


def test_a_step_that_an_older_run_alone_saved_is_passed_over_with_a_warning_and_not_given_up():
    newer = Step(3, 8)
    slices = [*whole(), *(slice_file(rank, newer, prefix="old", mtime=0) for rank in range(8))]
    plan = make_plan(tree(slices, lists()))
    assert plan.step == STEP
    assert [(one.step, one.another_run) for one in plan.rejected_steps] == [(newer, True)]
    assert plan.given_up == ()
    (warning,) = plan.warnings
    assert f"step {newer} is passed over" in warning
    assert "older run" in warning


def test_an_older_runs_step_is_planned_without_warning_when_the_operator_names_it():
    newer = Step(3, 8)
    slices = [*whole(), *(slice_file(rank, newer, prefix="old", mtime=0) for rank in range(8))]
    plan = make_plan(tree(slices, lists()), PlanOptions(step=newer))
    assert (plan.step, plan.rejected_steps, plan.warnings) == (newer, (), ())


def test_where_every_rank_is_declared_lost_no_step_is_recoverable():
    plan = make_plan(tree(whole(), lists()), PlanOptions(lost=frozenset(range(8))))
    assert not plan.recoverable
    assert {rank.state for rank in plan.ranks} == {"lost"}


def test_a_world_that_only_files_and_lists_bound_is_guessed():
    plan = make_plan(tree(whole(), lists()))
    assert plan.world_size_guessed
    assert not make_plan(tree(whole(), lists()), PlanOptions(world_size=8)).world_size_guessed


def test_a_world_that_manifests_state_is_not_guessed():
    members = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in (0, 1, 2)]
    plan = make_plan(tree(slices, members))
    assert (plan.world_size, plan.world_size_guessed) == (4, False)
    assert plan.world_size_from == f"the manifests of step {STEP}"


def test_the_step_of_a_run_that_a_later_one_followed_is_warned_of():
    members = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
    old = [backed(slice_file(rank, STEP, mtime=1), "ab"[rank % 2], run="old") for rank in range(4)]
    new = [backed(slice_file(rank, OLDER, mtime=2), "ab"[rank % 2], run="new") for rank in range(4)]
    plan = make_plan(tree([*old, *new], members))
    assert (plan.step, plan.run_id) == (STEP, "old")
    (warning,) = plan.warnings
    assert "run new was written later" in warning
    settled = make_plan(tree([*old, *new], members), PlanOptions(step=OLDER))
    assert (settled.run_id, settled.warnings) == ("new", ())


def test_only_the_ranks_that_are_asked_for_need_a_slice():
    alone = {rank: [rank] for rank in range(4)}
    inventory = tree(whole(4, without=[2]), alone)
    assert make_plan(inventory, PlanOptions(ranks=frozenset((0, 1)))).step == STEP
    assert make_plan(inventory, PlanOptions(ranks=frozenset((2,)))).step is None
    with pytest.raises(UsageError, match="rank 9"):
        make_plan(inventory, PlanOptions(ranks=frozenset((9,))))


def test_layouts_that_contradict_the_lists_are_noted_with_what_is_done_about_it():
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
    files = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts)),)
    inventory = replace(tree(whole(4), {rank: [0, 1, 2, 3] for rank in range(4)}), strategy_files=files)
    (note,) = (note for note in make_plan(inventory).notes if note.path == files[0].path)
    assert note.reason.endswith("only ranks which both call the same lend each other slices")


@pytest.mark.parametrize("stated", ["lists", "strategy", "nothing", "malformed list"])
def test_rank_lists_and_strategy_files_are_asked_for_where_a_lost_rank_has_no_source_and_none_can_be_used(stated):
    alone = {rank: [rank] for rank in range(1, 4)}
    inventory = tree(whole(4, without=[0]), alone if stated == "lists" else {}, ranks=range(4))
    if stated == "strategy":
        layouts = tuple(Layout(name, (4,), ((0,),)) for name in NAMES)
        files = (StrategyFile(1, "ckpt_dir1/strategy.ckpt", Strategy((0,), 1, layouts)),)
        inventory = replace(inventory, strategy_files=files)
    if stated == "malformed list":
        inventory = replace(inventory, group_files=(replace(group_file(1, [1]), info=None, problem="cut off"),))
    plan = make_plan(inventory)
    assert not plan.recoverable
    asked = [hint for hint in plan.hints if hint.startswith("no usable rank list or strategy file")]
    assert len(asked) == (stated in ("nothing", "malformed list"))


def test_the_plan_for_one_rank_has_its_action_alone():
    planned = make_planned(tree(whole(without=[0, 1]), lists()))
    assessment = assess_step(planned.compared, STEP, runs_of(planned.facts, STEP)[0])
    assert [action.rank for action in assessment.actions] == [0, 1]
    one = plan_for_rank(planned.compared, assessment, 1)
    assert ([action.rank for action in one.actions], one.set_aside, one.step) == ([1], (), STEP)


def test_every_step_is_judged_by_what_is_known():
    slices = whole(steps=(OLDER, STEP), without=[(0, STEP), (4, STEP)])
    planned = make_planned(tree(slices, lists()))
    newest, older = judge_every_step(planned, 2)
    assert (newest.step, newest.recoverable, older.step, older.recoverable) == (STEP, False, OLDER, True)
    assert [judged.step for judged in judge_every_step(planned, 1)] == [STEP]
    assert judge_step_of(planned, OLDER) == older


def test_groups_are_numbered_by_lists_else_by_layouts():
    assert number_groups(make_planned(tree(whole(4), lists(4)))) == (0, 1, 0, 1)
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
    files = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts)),)
    by_layouts = make_planned(replace(tree(whole(4), {}), strategy_files=files), PlanOptions(world_size=4))
    assert number_groups(by_layouts) == (0, 1, 0, 1)
    assert number_groups(make_planned(tree(whole(4), {0: [0, 1], 1: [0, 1]}))) == (0, 0, 1, 2)


def test_an_unhealthy_step_that_the_operator_names_is_taken_with_a_warning():
    sick = UnhealthySlice(prefix="test", step=STEP, path="health_ckpts.json")
    plan = make_plan(replace(tree(whole(), lists()), unhealthy=(sick,)), PlanOptions(step=STEP))
    assert plan.warnings == (f"step {STEP} is marked unhealthy in health_ckpts.json",)
    assert make_plan(tree(whole(), lists()), PlanOptions(step=STEP)).warnings == ()


def test_a_malformed_rank_list_of_a_rank_that_is_alone_is_not_written_again():
    place = RankPath(("ckpt_dir", "/group_info.pb"))
    bad = GroupFile(0, place.of(0), place, None, "is empty")
    inventory = tree(whole(4), {rank: [rank] for rank in (1, 2, 3)})
    assert make_plan(replace(inventory, group_files=(bad, *inventory.group_files))).group_files == ()


@pytest.mark.parametrize(
    ("lender", "lists_in", "target"),
    [
        ("ckpt_dir1/strategy.ckpt", "ckpt_dir0", "ckpt_dir0/strategy.ckpt"),
        ("ckpt_dir1/ckpt_strategy_rank_1.ckpt", "ckpt_dir0", "ckpt_dir0/ckpt_strategy_rank_0.ckpt"),
        ("strategy/ckpt_strategy_rank_1.ckpt", "ckpt_dir0", "strategy/ckpt_strategy_rank_0.ckpt"),
        ("strategy/ckpt_strategy_rank_1.ckpt", "", "strategy/ckpt_strategy_rank_0.ckpt"),
        ("ckpt_dir1/strategy.ckpt", "", None),
        ("strategy/layout.ckpt", "ckpt_dir0", None),
    ],
)
def test_a_strategy_file_comes_back_beside_the_slice_or_in_the_folder_of_all(lender, lists_in, target):
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
    files = (StrategyFile(1, lender, Strategy((0,), 1, layouts), "s"),)
    planned = make_planned(replace(tree(whole(4), {}), strategy_files=files), PlanOptions(world_size=4))
    path = f"{lists_in}/group_info.pb" if lists_in else "group_info.pb"
    writes = plan_strategy_files(planned.facts, (), (GroupWrite(0, path, (0, 2)),))
    assert [(write.rank, write.target, write.source_rank) for write in writes] == (
        [(0, target, 1)] if target is not None else []
    )


@pytest.mark.parametrize(("count", "files"), [(1, "lists/a.pb"), (3, "3 files such as lists/a.pb")])
def test_evidence_that_was_seen_and_not_used_is_named_with_its_option(count, files):
    seen = SeenEvidence(option="--group-info 'lists/a.pb'", example="lists/a.pb", count=count)
    planned = make_planned(replace(tree(whole(4), {}), seen=(seen,)), PlanOptions(world_size=4))
    assert hints_for(planned.facts) == (f"{files} may state which ranks hold the same: add --group-info 'lists/a.pb'",)


def test_a_strategy_file_that_cannot_be_read_is_not_replaced():
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
    files = (StrategyFile(1, "ckpt_dir1/strategy.ckpt", Strategy((0,), 1, layouts), "s"),)
    inventory = replace(tree(whole(4), {}), strategy_files=files, notes=(Note("ckpt_dir0/strategy.ckpt", "cut off"),))
    facts = make_planned(inventory, PlanOptions(world_size=4)).facts
    lists_of = [GroupWrite(rank, f"ckpt_dir{rank}/group_info.pb", (0, 2)) for rank in (0, 2)]
    assert [write.rank for write in plan_strategy_files(facts, (), lists_of)] == [2]
