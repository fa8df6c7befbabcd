"""Judging a step: the first rule that applies decides."""

from dataclasses import replace

from ms_recover.model.contents import NOTHING_READ
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import Parts, compare_slices, judge_part, judge_step
from ms_recover.planning.judging.rules import RULES
from ms_recover.planning.tree.candidates import every_run, runs_of
from ms_recover.planning.tree.facts import gather_facts
from ms_recover.planning.tree.runs import Run
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, backed, contents


def judge(slices, known=NOTHING_READ, *, options=DEFAULT_PLAN, step=STEP, lists=PAIRS):
    compared = compare_slices(gather_facts(tree(slices, lists), options, known))
    return judge_step(compared, step, runs_of(compared.facts, step)[0])


def statuses(slices, known=NOTHING_READ, **how):
    return {path: one.status for path, one in judge(slices, known, **how).slices.items()}


def path(rank, name="test-2_8.ckpt"):
    return f"ckpt_dir{rank}/{name}"


def saved(*without, run="run"):
    return [backed(slice_file(rank), "ab"[rank % 2], run=run) for rank in range(4) if rank not in without]


def test_the_order_of_the_rules_is_fixed():
    assert [rule.name for rule in RULES] == [
        "unreadable",
        "another run",
        "damaged",
        "replaced",
        "uncommitted",
        "doubles",
        "dealt out",
        "dealt not cut",
        "cut off",
        "conflicting lists",
        "another layout",
        "unlike a manifest",
        "contents",
        "refuted layouts",
        "refuted word",
    ]


def test_a_slice_that_may_not_be_opened_is_unreadable_although_it_is_of_another_run():
    refused = replace(slice_file(0, prefix="other", problem="permission denied"), denied=True)
    assert statuses([*saved(0), refused])[refused.path] == "unreadable"


def test_a_damaged_slice_of_another_run_is_foreign():
    slices = [*saved(3), backed(slice_file(3, problem="cut"), "b", run="old")]
    assert statuses(slices)[path(3)] == "foreign"


def test_a_damaged_slice_without_manifest_is_damaged_and_not_only_uncommitted():
    assert statuses([slice_file(0, problem="cut"), *saved(0)])[path(0)] == "damaged"


def test_a_damaged_or_foreign_second_slice_makes_no_double():
    damaged, foreign = slice_file(0, prefix="test_1", problem="cut"), slice_file(0, prefix="other")
    found = statuses([slice_file(rank) for rank in range(4)] + [damaged, foreign])
    assert found[path(0)] == "sound"
    assert (found[damaged.path], found[foreign.path]) == ("damaged", "foreign")


def test_an_uncommitted_second_slice_makes_no_double():
    found = statuses([*saved(), slice_file(0, prefix="test_1")])
    assert (found[path(0)], found[path(0, "test_1-2_8.ckpt")]) == ("sound", "uncommitted")


def test_one_of_two_doubles_casts_no_ballot():
    slices = [*(slice_file(rank) for rank in range(4)), slice_file(0, prefix="test_1")]
    found = judge(slices, contents(r0="x", r1="b", r2="a", r3="b"))
    assert found.slices[path(0)].status == "ambiguous"
    assert found.slices[path(2)].status == "sound"
    assert not found.disagreements


def test_a_slice_of_another_layout_casts_no_ballot():
    lists = {rank: [0, 1, 2] for rank in range(3)}
    slices = [
        backed(slice_file(rank), "a", group=(0, 1, 2), world_size=3, strategy_digest="sst"[rank]) for rank in range(3)
    ]
    found = judge(slices, contents(r0="a", r1="a", r2="a"), lists=lists)
    assert [found.slices[path(rank)].status for rank in range(3)] == ["sound", "sound", "foreign"]


def test_replicas_of_conflicting_lists_are_reported_once_and_not_compared_by_contents():
    slices = [slice_file(0, shape=(2, 2)), *(slice_file(rank) for rank in (1, 2, 3))]
    found = judge(slices, contents(r0="a", r1="b", r2="x", r3="b"))
    assert list(found.disagreements) == [(0, 2)]
    assert "should hold the same slice" in found.disagreements[0, 2]


def test_slices_of_lost_ranks_are_not_judged():
    found = judge(saved(), options=PlanOptions(lost=frozenset((1,))))
    assert set(found.slices) == {path(rank) for rank in (0, 2, 3)}


def test_only_the_slices_of_the_step_are_judged():
    slices = [*saved(), *(backed(slice_file(rank, OLDER), "ab"[rank % 2]) for rank in range(4))]
    assert set(statuses(slices, step=OLDER)) == {path(rank, "test-1_8.ckpt") for rank in range(4)}


def test_a_slice_that_contradicts_its_manifest_condemns_no_replica_by_its_list():
    """Rank 0's manifest is of another size, so that the longer list in its header shows nothing about rank 2."""
    longer = ("a", "b", "moment1.a", "global_step", "more")
    odd = backed(slice_file(0, names=longer), "a", size=7)
    found = statuses([odd, *saved(0)])
    assert (found[path(0)], found[path(2)]) == ("damaged", "sound")


def test_each_part_of_a_tree_is_compared_once():
    parts = Parts(TreeFacts(tree([slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)], PAIRS)))
    (part,) = parts.every()
    assert part.facts.steps.keys() == {OLDER, STEP}
    for step in (OLDER, STEP):
        assert [one is part for one in parts.at(step)] == [True]
    assert part.all_read
    (unread,) = Parts(parts.facts, all_read=False).every()
    assert not unread.all_read


def test_a_part_is_judged_as_the_run_of_it_that_may_be_that_of_another_part():
    slices = [*saved(3), backed(slice_file(3), "b", run="old")]
    compared = compare_slices(gather_facts(tree(slices, PAIRS)))
    for run in every_run(compared.facts, STEP):
        assert judge_part(compared, STEP, run) == judge_step(compared, STEP, run)
    unnamed = Run()
    best, *_ = runs_of(compared.facts, STEP)
    assert judge_part(compared, STEP, unnamed) == judge_step(compared, STEP, best)


def test_a_strategy_file_that_slices_of_other_steps_contradict_is_refuted_at_a_step():
    layouts = tuple(Layout(name, (4,), ((),)) for name in NAMES[:3])
    files = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts), "s"),)
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    inventory = replace(tree(slices, {rank: [rank] for rank in range(4)}), strategy_files=files)
    compared = compare_slices(gather_facts(inventory, contents=contents(r0="a", r1="b", r2="c", r3="d")))
    run = runs_of(compared.facts, STEP)[0]
    assert list(judge_step(compared, OLDER, run).refuted) == ["ckpt_dir0/strategy.ckpt"]
    assert judge_step(compared, STEP, run).refuted == {}
