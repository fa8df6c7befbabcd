"""Later reruns that a plan goes behind, and the slices of those that are given up."""

from dataclasses import replace

import pytest

from ms_recover.model.actions import FileState
from ms_recover.model.inventory import Inventory, OrphanManifest, RankPath, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import RankVerdict
from ms_recover.model.steps import Step
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from ms_recover.planning.tree.reruns import given_up_slices, later_reruns

OLD, NEW = Step(2, 6), Step(2, 2)
RANKS = 4


def place_of(step, again=""):
    return RankPath(("rank_", "/CKP_rank_", f"{again}-{step}.ckpt"))


def slices(step, ranks=range(RANKS), *, again="", mtime=1, trained=None):
    prefix = f"CKP{again}"
    return [SliceFile(rank, step, place_of(step, again), prefix, 9, mtime, global_step=trained) for rank in ranks]


def facts_of(*files, orphans=(), **options):
    held = tuple(one for group in files for one in group)
    tree = Inventory("/tree", tuple(range(RANKS)), held, orphans=tuple(orphans))
    return gather_facts(tree, PlanOptions(world_size=RANKS, **options))


def planned(facts, step):
    """Return a step as a plan takes it, its run, and the verdicts."""
    saved = next(one for one in facts.saved if one.step == step)
    verdicts = [RankVerdict(rank, "ok", "keep", "", place_of(step).of(rank)) for rank in range(RANKS)]
    return saved, runs_of(facts, step, saved)[0], verdicts


def names(facts, step):
    saved, run, _ = planned(facts, step)
    return [(one.step, one.reason.rpartition("; ")[2]) for one in later_reruns(facts, saved, run)]


def given_up(facts, step):
    saved, _, verdicts = planned(facts, step)
    return [(one.rank, one.path) for one in given_up_slices(facts, saved, verdicts)]


def test_a_rerun_that_was_written_later_may_be_newer_where_nothing_orders_it():
    both = (slices(OLD), slices(NEW, again="_1", mtime=2))
    assert names(facts_of(*both), OLD) == [(NEW, "--run CKP_1 chooses it")]
    assert names(facts_of(slices(OLD, mtime=2), slices(NEW, again="_1", mtime=1)), OLD) == []
    assert names(facts_of(*both), NEW) == []


def test_a_clock_that_stood_before_1970_changes_no_answer():
    both = (slices(OLD, mtime=-5), slices(NEW, again="_1", mtime=-4))
    assert names(facts_of(*both), OLD) == [(NEW, "--run CKP_1 chooses it")]


def test_of_several_reruns_each_is_named_once_by_its_newest_step():
    older = slices(Step(2, 1), again="_1", mtime=2)
    facts = facts_of(slices(OLD), slices(NEW, again="_1", mtime=3), older, slices(Step(1, 8), again="_2", mtime=4))
    assert names(facts, OLD) == [(NEW, "--run CKP_1 chooses it"), (Step(1, 8), "--run CKP_2 chooses it")]


def test_a_rerun_that_is_ordered_before_the_planned_step_is_no_question():
    assert names(facts_of(slices(OLD, trained=14), slices(NEW, again="_1", mtime=2, trained=16)), OLD) == []


def test_a_rerun_that_went_back_is_named():
    facts = facts_of(slices(OLD, trained=14), slices(NEW, again="_1", mtime=2, trained=12))
    saved, run, _ = planned(facts, OLD)
    (one,) = later_reruns(facts, saved, run)
    assert "as step 12 of the training, not 14: training seems to have gone back" in one.reason
    assert one.may_be_newer


def test_of_the_planned_run_the_step_that_was_written_last_is_named():
    facts = facts_of(slices(OLD), slices(Step(2, 1), mtime=2), slices(Step(1, 3), mtime=3))
    assert names(facts, OLD) == [(Step(1, 3), "--step 1_3 chooses it")]
    (found,) = later_reruns(facts, *planned(facts, OLD)[:2])
    assert (found.another_run, found.may_be_newer) == (True, True)


def world_of(ranks, *files, **options):
    tree = Inventory("/tree", tuple(range(ranks)), tuple(file for group in files for file in group))
    return gather_facts(tree, PlanOptions(world_size=ranks, **options))


@pytest.mark.parametrize(
    ("ranks", "having", "named"),
    [(4, [1], False), (4, [1, 2], True), (3, [1], False), (2, [1], True), (1, [0], True)],
)
def test_a_stray_slice_of_a_rerun_is_no_question_unless_it_may_make_a_step_whole(ranks, having, named):
    facts = world_of(ranks, slices(OLD, range(ranks)), slices(NEW, having, again="_1", mtime=2))
    assert names(facts, OLD) == [(NEW, "--run CKP_1 chooses it")] * named


@pytest.mark.parametrize(("having", "text"), [([1, 3], "2 ranks have it"), ([1], "rank 1 has it")])
@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (None, None, "and nothing states which of both was trained longer"),
        (14, 12, "as step 12 of the training, not 14: training seems to have gone back"),
    ],
)
def test_the_reason_names_the_ranks_of_a_rerun_and_what_is_known_of_its_training(before, after, reason, having, text):
    ranks = 4 if len(having) > 1 else 2
    facts = world_of(
        ranks, slices(OLD, range(ranks), trained=before), slices(NEW, having, again="_1", mtime=2, trained=after)
    )
    saved, run, _ = planned(facts, OLD)
    (rejected,) = later_reruns(facts, saved, run)
    assert rejected.reason == (
        f"{text} of the later run 'CKP_1', written after step 2_6, {reason}; --run CKP_1 chooses it"
    )
    assert (rejected.another_run, rejected.may_be_newer) == (True, True)


def test_where_only_one_of_both_is_counted_nothing_states_which_was_trained_longer():
    facts = facts_of(slices(Step(2, 8), again="_1", mtime=2), slices(OLD, trained=14), slices(Step(2, 1), again="_1"))
    counted, bare = (next(saved for saved in facts.saved if saved.step == step) for step in (OLD, Step(2, 8)))
    assert (counted.trained, bare.trained) == (14, None)
    facts = facts_of(slices(OLD, trained=14), slices(NEW, again="_1", mtime=2))
    saved, run, _ = planned(facts, OLD)
    (rejected,) = later_reruns(facts, saved, run)
    assert "nothing states which of both was trained longer" in rejected.reason


def test_what_was_written_at_the_same_time_was_not_written_later():
    assert names(facts_of(slices(OLD, mtime=2), slices(NEW, again="_1", mtime=2)), OLD) == []
    assert names(facts_of(slices(OLD, mtime=2), slices(NEW, mtime=2)), OLD) == []
    three = (slices(OLD), slices(Step(2, 1), mtime=3), slices(Step(1, 3), mtime=3))
    assert names(facts_of(*three), OLD) == [(Step(2, 1), "--step 2_1 chooses it")]


@pytest.mark.parametrize("options", [{"run": "CKP"}, {"newest": True}])
def test_where_the_operator_chooses_there_is_no_question(options):
    facts = facts_of(slices(OLD), slices(NEW, again="_1", mtime=2), **options)
    assert names(facts, OLD) == []


def test_slices_of_a_step_that_were_counted_are_ordered_whenever_they_were_written():
    facts = facts_of(slices(OLD, trained=14), slices(NEW, mtime=2, trained=10))
    assert names(facts, OLD) == []


def test_a_rerun_that_shares_the_planned_step_is_not_a_later_one():
    mixed = (slices(OLD, [0, 1]), slices(OLD, [2, 3], again="_1"), slices(NEW, again="_1", mtime=2))
    assert names(facts_of(*mixed), OLD) == [(NEW, "--step 2_2 chooses it")]


PARTLY = {"again": "_1", "mtime": 2, "trained": 16}


def test_slices_of_a_newer_rerun_that_some_ranks_lack_are_given_up():
    facts = facts_of(slices(OLD, trained=14), slices(NEW, [0, 2], **PARTLY))
    assert given_up(facts, OLD) == [(0, "rank_0/CKP_rank_0_1-2_2.ckpt"), (2, "rank_2/CKP_rank_2_1-2_2.ckpt")]


def test_a_manifest_without_its_slice_goes_with_them():
    orphan = OrphanManifest(rank=1, step=NEW, place=place_of(NEW, "_1"), prefix="CKP_1")
    facts = facts_of(slices(OLD, trained=14), slices(NEW, [0], **PARTLY), orphans=[orphan])
    assert given_up(facts, OLD) == [(0, "rank_0/CKP_rank_0_1-2_2.ckpt"), (1, "rank_1/CKP_rank_1_1-2_2.ckpt")]


@pytest.mark.parametrize(
    "later",
    [
        slices(NEW, **PARTLY),  # every rank has it: the next names are alike
        slices(NEW, [0], again="_1", mtime=2, trained=12),  # older than the planned step
        slices(Step(2, 8), [0], mtime=2, trained=16),  # of the same run: its prefix is there on all ranks
    ],
)
def test_others_stay(later):
    assert given_up(facts_of(slices(OLD, trained=14), later), OLD) == []


def test_what_an_experiment_beside_left_is_not_given_up():
    beside = [
        replace(
            slices(NEW, [0], mtime=2, trained=20)[0], prefix=prefix, place=RankPath(("rank_", f"/{prefix}-2_2.ckpt"))
        )
        for prefix in ("other", "other_7")
    ]
    facts = facts_of(slices(OLD, trained=14), slices(NEW, [2], **PARTLY), beside)
    assert given_up(facts, OLD) == [(2, "rank_2/CKP_rank_2_1-2_2.ckpt")]


def test_the_start_that_saved_the_planned_step_is_not_given_up():
    facts = facts_of(slices(OLD, [0, 1], again="_1", trained=14), slices(NEW, [0], again="_1", trained=16))
    assert given_up(facts, OLD) == []


def test_the_reason_names_the_ranks_that_have_what_is_given_up():
    for having, text in (([1], "rank 1 alone has"), ([0, 2], "only ranks 0, 2 have")):
        facts = facts_of(slices(OLD, trained=14), slices(NEW, having, **PARTLY))
        saved, _, verdicts = planned(facts, OLD)
        given = given_up_slices(facts, saved, verdicts)
        assert {slice_.reason.partition(" slices of the rerun 'CKP_1': ")[0] for slice_ in given} == {text}
        assert [slice_.state for slice_ in given] == [FileState(9, 2)] * len(having)


def test_nothing_is_given_up_for_some_ranks_alone_or_in_a_tree_that_mindformers_did_not_write():
    both = slices(OLD, trained=14), slices(NEW, [0], **PARTLY)
    assert given_up(facts_of(*both, ranks=frozenset({0})), OLD) == []
    facts = facts_of(*both)
    saved, _, verdicts = planned(facts, OLD)
    assert given_up_slices(facts, saved, [replace(one, path="ckpt_dir0/test-2_6.ckpt") for one in verdicts]) == ()
