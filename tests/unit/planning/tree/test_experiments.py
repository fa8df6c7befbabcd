"""Several experiments in one folder: which one is gone on with, and that no step of another is a candidate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.inventory import OrphanManifest
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.planning.tree.candidates import find_candidates
from ms_recover.planning.tree.experiments import TakenExperiments, other_experiments, take_experiments
from ms_recover.planning.tree.lineage import find_lineage, find_run_records, merge_run_records
from ms_recover.planning.tree.prefixes import find_experiments
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import slice_file, tree
from tests.support.plans import make_plan
from tests.unit.planning.test_contents import backed

GROUPS = {rank: [rank] for rank in range(2)}
NEVER = "no manifest at all"


def saved(text, run, started=None, *, prefix="lr_0.01", base=None, resumed_from=None, mtime=1):
    """Return the slices of two ranks at a step, of a run whose manifests may state its experiment."""
    files = []
    for rank in range(2):
        file = slice_file(rank, Step.parse(text), prefix=prefix, mtime=mtime)
        training = TrainingRecord(started, resumed_from, base_prefix=base)
        known = run is not NEVER
        files.append(
            backed(file, f"{run}{rank}", run=run, group=(rank,), world_size=2, training=training) if known else file
        )
    return files


def inventory(*slices):
    return tree([file for pair in slices for file in pair], GROUPS)


def plan(*slices, **options):
    return make_plan(inventory(*slices), PlanOptions(**options))


def steps(*slices, **options):
    """Return the steps that are candidates, as the text of each, and those that are passed over."""
    facts = TreeFacts(inventory(*slices), PlanOptions(**options))
    found = list(find_candidates(facts))
    passed = {str(one.step): one.reason for one in found if isinstance(one, RejectedStep)}
    return [str(one.step) for one in found if not isinstance(one, RejectedStep)], passed


def names(*prefixes, rank=0):
    """Return the experiments of slices without manifests, by their prefixes."""
    found = find_experiments([slice_file(rank, prefix=prefix) for prefix in prefixes])
    return [found.of_name(prefix) for prefix in prefixes]


FIRST = saved("1_4", "a", 100, base="lr_0.01")
SECOND = saved("2_4", "b", 200, prefix="lr_0.5", base="lr_0.5")


def test_a_program_goes_on_with_its_own_experiment():
    found, passed = steps(FIRST, SECOND, experiments=("lr_0.01",))
    assert found == ["1_4"]
    assert passed == {
        "2_4": "its slices are of the experiment 'lr_0.5', and the prefix of this program is 'lr_0.01'; "
        "run='lr_0.5' takes it"
    }


def test_a_program_whose_experiment_is_not_there_has_no_candidate():
    found, passed = steps(FIRST, SECOND, experiments=("lr_0.1",))
    assert (found, set(passed)) == ([], {"1_4", "2_4"})


def test_a_program_with_several_savers_goes_on_with_the_one_that_was_started_last():
    assert steps(FIRST, SECOND, experiments=("lr_0.01", "lr_0.5"))[0] == ["2_4"]


def test_the_run_that_is_named_wins_over_the_prefix_of_the_program():
    assert steps(FIRST, SECOND, experiments=("lr_0.01",), run="b")[0] == ["2_4"]
    assert steps(FIRST, SECOND, experiments=("lr_0.01",), run="lr_0.5")[0] == ["2_4"]


def test_an_experiment_is_chosen_by_its_prefix():
    assert plan(FIRST, SECOND, run="lr_0.01").step == Step(1, 4)
    assert plan(FIRST, SECOND, run="lr_0.5").step == Step(2, 4)
    with pytest.raises(UsageError, match=r"no run 'lr' here; .*lr_0\.5 \(an experiment\)"):
        plan(FIRST, SECOND, run="lr")


def test_a_run_of_another_experiment_that_this_one_was_begun_from_is_of_its_lineage():
    later = saved("1_6", "b", 200, prefix="tune", base="tune", resumed_from=RunStep("a", Step(1, 4), 100))
    beside = saved("1_5", "a", 100, base="lr_0.01")
    assert steps(FIRST, beside, later)[0] == ["1_6", "1_4"]
    assert steps(FIRST, beside, later, experiments=("lr_0.01",))[0] == ["1_5", "1_4"]


def test_a_run_that_was_resumed_by_hand_goes_on_from_no_other_experiment():
    by_hand = [
        replace(
            file,
            manifest=replace(file.manifest, cumulative_step=2, training=replace(file.manifest.training, epoch_steps=8)),
        )
        for file in saved("3_2", "c", 300, prefix="tune", base="tune")
    ]
    assert steps(FIRST, by_hand)[0] == ["3_2"]


def test_a_number_is_part_of_the_prefix_unless_it_is_known_to_count_starts():
    assert names("resnet", "resnet_50") == ["resnet", "resnet"]
    assert names("resnet_50") == ["resnet_50"]
    assert names("resnet_18", "resnet_50") == ["resnet_18", "resnet_50"]
    files = [slice_file(rank, prefix=f"resnet_{rank + 1}") for rank in range(2)]
    assert {find_experiments(files).of(file) for file in files} == {"resnet"}


def test_manifests_state_the_experiment_whatever_the_name():
    beside = saved("1_2", "a", 100, prefix="resnet", base="resnet")
    files = [*beside, *saved("1_4", "b", 200, prefix="resnet_50", base="resnet_50")]
    assert find_experiments(files).of_name("resnet_50") == "resnet_50"
    orphan = OrphanManifest(
        rank=0, step=Step(1, 4), place=files[0].place, prefix="resnet_1", manifest=files[0].manifest
    )
    assert find_experiments([orphan]).of(orphan) == "resnet"


def test_what_other_manifests_state_decides_for_names_that_none_states():
    again = saved("1_6", "c", 300, prefix="resnet_50_1", base="resnet_50")
    old = saved("1_4", "b", 200, prefix="resnet_50")
    beside = saved("1_2", "a", 100, prefix="resnet_1", base="resnet")
    bare = saved("1_3", NEVER, prefix="resnet_2")
    found = find_experiments([*again, *old, *beside, *bare])
    assert {found.of(file) for file in old} == {"resnet_50"}
    assert {found.of(file) for file in bare} == {"resnet"}


def test_a_manifest_of_before_that_was_resumed_counts_its_start():
    old = saved("1_4", "b", 200, prefix="resnet_3", resumed_from=RunStep("a", Step(1, 2), 100))
    assert find_experiments(old).of_name("resnet_3") == "resnet"
    first = saved("1_4", "b", 200, prefix="resnet_50")
    assert find_experiments(first).of_name("resnet_50") == "resnet_50"


def test_a_manifest_of_before_is_of_the_experiment_that_has_its_prefix_where_that_is_given():
    first = saved("1_2", "a", 100, prefix="lr_1")
    old = saved("1_4", "b", 200, prefix="lr_2", resumed_from=RunStep("a", Step(1, 2), 100))
    assert steps(first, old, experiments=("lr_2",))[0] == ["1_4", "1_2"]
    assert steps(first, old, experiments=("lr_1",))[0] == ["1_2"]
    assert steps(old, run="lr_2")[0] == steps(old, run="lr")[0] == ["1_4"]


def test_manifests_of_before_are_read_as_they_were():
    old, new = saved("1_4", "a", 100, prefix="x"), saved("1_6", "b", 200, prefix="x_1")
    assert steps(old, new)[0] == ["1_6"]
    assert steps(old, new, experiments=("x",))[0] == ["1_6"]


def test_without_a_start_the_experiment_that_was_written_last_is_taken():
    one, two = (
        saved("1_4", "a", base="one", prefix="one", mtime=5),
        saved("2_4", "b", base="two", prefix="two", mtime=3),
    )
    found, passed = steps(one, two)
    assert found == ["1_4"]
    assert passed["2_4"] == "its slices are of the experiment 'two', and 'one' was written last; --run two takes it"


def test_another_programs_slices_that_were_written_last_are_another_experiment():
    stock = saved("1_2", NEVER, prefix="CKP", mtime=9)
    assert steps(FIRST, stock)[0] == ["1_2"]
    assert steps(FIRST, stock, experiments=("lr_0.01",))[0] == ["1_4"]
    assert steps(FIRST, stock, run="lr_0.01")[0] == ["1_4"]


def test_ranks_know_the_experiments_together():
    first, second = find_run_records(FIRST), find_run_records(saved("1_4", "a", 100, prefix="lr_0.01"))
    (joined,) = merge_run_records([*second, *first])
    assert (joined.base_prefix, joined.bases) == ("lr_0.01", ())
    assert second[0].bases == ("lr_0.01",)


def test_the_number_of_ranks_is_that_of_the_experiment():
    large = [
        backed(
            file, "large", run="a", group=(file.rank,), world_size=4, training=TrainingRecord(100, base_prefix="large")
        )
        for file in (slice_file(rank, Step(3, 8), prefix="large") for rank in range(4))
    ]
    held = tree([*large, *SECOND], {rank: [rank] for rank in range(4)})
    assert make_plan(held).world_size == 2
    assert make_plan(held, PlanOptions(run="large")).world_size == 4
    own = PlanOptions(experiments=("lr_0.5",), world_size=2)
    found = list(find_candidates(TreeFacts(held, own)))
    assert [str(one.step) for one in found if not isinstance(one, RejectedStep)] == ["2_4"]


def taken(*slices, **options):
    files = [file for pair in slices for file in pair]
    found = take_experiments(find_run_records(files), files, find_experiments(files), PlanOptions(**options))
    return found.taken, found.by


NAMELESS = saved("1_4", "a", 100, prefix="lr_0.01"), saved("2_4", "b", 200, prefix="lr_0.5")
TIMED = saved("1_4", "a", base="lr_0.01", mtime=5), saved("2_4", "b", prefix="lr_0.5", base="lr_0.5", mtime=9)


@pytest.mark.parametrize(
    ("slices", "options", "expected"),
    [
        (NAMELESS, {}, ((), "")),
        ((FIRST, SECOND), {}, (("lr_0.5",), "start")),
        ((FIRST, SECOND), {"step": Step(1, 4)}, (("lr_0.01",), "start")),
        ((FIRST, SECOND), {"step": Step(2, 4)}, (("lr_0.5",), "start")),
        (TIMED, {}, (("lr_0.5",), "time")),
        (TIMED, {"step": Step(1, 4)}, (("lr_0.01",), "time")),
        (TIMED, {"step": Step(3, 4)}, ((), "time")),
        ((FIRST, SECOND), {"run": "lr_0.01"}, (("lr_0.01",), "operator")),
        ((FIRST, SECOND), {"run": "a"}, ((), "")),
        ((FIRST, SECOND), {"experiments": ("x",)}, (("x",), "program")),
    ],
)
def test_the_experiments_that_are_considered_and_what_names_them(slices, options, expected):
    assert taken(*slices, **options) == expected


def test_other_experiments_are_those_that_have_no_part_in_the_lineage():
    tuned = saved("3_2", "c", 300, prefix="tune", base="tune", resumed_from=RunStep("a", Step(1, 4), 100))
    files = [*FIRST, *SECOND, *tuned, *saved("2_2", "b", 200, prefix="lr_0.5", base="lr_0.5")]
    own = TakenExperiments(taken=("tune",), by="start")
    lineage = find_lineage(find_run_records(files))
    assert other_experiments(own, lineage, files) == {"lr_0.5": Step(2, 4)}
    assert other_experiments(own, None, files) == {"lr_0.01": Step(1, 4), "lr_0.5": Step(2, 4)}
    beside = own.text_of({"lr_0.5": Step(2, 4)})
    assert "'tune' was started last: passed over are those of 'lr_0.5' (up to step 2_4)" in beside
    assert own.text_of({}) is replace(own, by="operator").text_of({"lr_0.5": Step(2, 4)}) is None
