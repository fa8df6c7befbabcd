"""Which steps may be taken, newest first, and why the others are passed over: by the facts alone."""

from dataclasses import replace
from random import Random

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.inventory import MetaFile, RankPath, UnhealthySlice
from ms_recover.model.manifest import RunStep
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.planning.choice import candidates_of
from ms_recover.planning.tree.candidates import (
    Candidate,
    candidate_at,
    every_run,
    find_candidates,
    refuse_experiments,
    runs_alike,
    runs_of,
    saved_as,
    text_of_others,
)
from ms_recover.planning.tree.runs import Run
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.support.iterations import Job, write_job
from tests.support.run_trees import HOUR, RunTree, SavedRun
from tests.unit.planning.tree.test_lineage import ABANDONED, GROUPS, PRESENT, both


def found(inventory, only=None, **options):
    return list(find_candidates(TreeFacts(inventory, PlanOptions(**options)), only))


def of(*slices):
    return tree([file for pair in slices for file in pair], GROUPS)


def test_steps_come_newest_first_each_with_the_runs_that_saved_it():
    inventory = tree([slice_file(rank, step) for rank in range(2) for step in (OLDER, STEP)], pairs(2))
    assert found(inventory) == [Candidate(step=step, runs=(Run(base="test"),)) for step in (STEP, OLDER)]


def test_steps_of_a_run_come_before_those_that_it_goes_on_from():
    before = both("2_6", "old", 100)
    anew = both("2_4", "new", 200, RunStep("old", Step(2, 6), 100), prefix="test_1")
    assert [(one.step, one.runs[0].run_id) for one in found(of(before, anew))] == [
        (Step(2, 4), "new"),
        (Step(2, 6), "old"),
    ]


def test_steps_of_an_older_run_are_passed_over_between_the_others():
    newest, *rest = found(of(*ABANDONED, *PRESENT))
    assert (newest.step, newest.another_run) == (Step(3, 4), True)
    assert [(one.step, one.runs[0].run_id) for one in rest] == [(Step(2, 2), "new"), (Step(1, 8), "new")]
    assert [one.step for one in found(of(*ABANDONED, *PRESENT), run="old") if isinstance(one, Candidate)] == [
        Step(3, 4),
        Step(1, 8),
    ]


def test_what_a_run_saved_after_another_one_went_on_from_it_was_given_up():
    later = both("3_2", "new", 200, RunStep("old", Step(2, 8), 100), prefix="test_1")
    passed_over, *_ = found(of(both("2_8", "old", 100), both("3_4", "old", 100), later))
    assert passed_over == RejectedStep(
        Step(3, 4),
        "its slices are of run old, started 1970-01-01 00:00:00 UTC, and were given up when run new, started "
        "1970-01-01 00:00:00 UTC, went on from step 2_8; --run old chooses it, or recover_train(run='old'), or "
        "MS_RECOVER_RUN=old in the environment",
        another_run=True,
    )


def test_unhealthy_steps_are_passed_over_unless_one_is_named():
    inventory = tree([slice_file(rank, step) for rank in range(2) for step in (OLDER, STEP)], pairs(2))
    sick = UnhealthySlice(prefix="test", step=STEP, path="health_ckpts.json")
    inventory = replace(inventory, unhealthy=(sick,))
    assert found(inventory)[0] == RejectedStep(STEP, "marked unhealthy in health_ckpts.json")
    assert [one.step for one in found(inventory, step=STEP) if isinstance(one, Candidate)] == [STEP]


def test_with_one_step_alone_every_other_is_passed_over_and_what_speaks_against_it_counts():
    newest, chosen, oldest = found(of(*ABANDONED, *PRESENT), Step(2, 2))
    assert (newest, oldest) == tuple(RejectedStep(step, "step 2_2 was chosen") for step in (Step(3, 4), Step(1, 8)))
    assert isinstance(chosen, Candidate)
    assert [isinstance(one, Candidate) for one in found(of(*ABANDONED, *PRESENT), Step(3, 4))] == [False] * 3


def test_iterations_of_another_number_of_ranks_are_passed_over(tmp_path):
    root = write_job(tmp_path / "tree", Job(data_parallel=1, adapter=False), [300])
    write_job(tmp_path / "tree", Job(adapter=False), [100])
    newest, older = found(api.scan(root), world_size=4)
    assert newest == RejectedStep(
        Step.iteration(300),
        "the files that iteration_00000300/metadata.json names are of 2 ranks, not of 4",
        another_run=True,
    )
    assert isinstance(older, Candidate)


def test_an_iteration_is_of_the_run_that_one_of_its_parts_names(tmp_path):
    runs = (SavedRun(name="A", started=HOUR, steps=(1,)), SavedRun(name="B", started=2 * HOUR, steps=(2,)))
    made = RunTree(iterations=True, model_parallel=1, adapter=False, runs=runs)
    root = made.write(tmp_path, Random(0))
    for path in root.glob(f"iteration_00000002/*-model-*{MANIFEST_SUFFIX}"):
        path.unlink()
    newest, older = found(api.scan(root))
    assert (newest.step, newest.runs[0].run_id) == (Step.iteration(2), "B")
    assert older.another_run


def counted(rank, step, trained, **changes):
    return replace(slice_file(rank, step, **changes), global_step=trained)


def test_a_name_that_two_runs_gave_to_different_steps_is_two_candidates_each_of_its_own_slices():
    place = RankPath(("ckpt_dir", "/test_rank_", f"-{STEP}.ckpt"))
    first = [replace(counted(rank, STEP, 10), place=place) for rank in range(2)]
    again = [counted(rank, STEP, 16, prefix="test_1") for rank in range(2)]
    inventory = tree([*first, *again], pairs(2))
    newest, older = found(inventory)
    assert [[run.trained for run in candidate.runs] for candidate in (newest, older)] == [[16], [10]]
    for candidate, own, other in ((newest, again, first), (older, first, again)):
        (run,) = candidate.runs
        assert [run.why_foreign(file) for file in own] == [None, None]
        assert all(run.why_foreign(file) for file in other)
    (facts,) = TreeFacts(inventory).at(STEP)
    both_times = runs_of(facts, STEP)
    assert both_times == (*newest.runs, *older.runs)
    assert [saved_as(facts, STEP, run).trained for run in both_times] == [16, 10]
    assert candidate_at(TreeFacts(inventory), STEP) == Candidate(step=STEP, runs=both_times)


def test_runs_outside_of_the_lineage_come_after_those_in_it():
    (facts,) = TreeFacts(of(both("1_8", "a", 100), both("1_8", "b", 200, prefix="test_1"))).at(Step(1, 8))
    assert [run.run_id for run in runs_of(facts, Step(1, 8))] == ["b"]
    assert [run.run_id for run in every_run(facts, Step(1, 8))] == ["b", "a"]


def with_meta(inventory, prefix, step=STEP):
    places = RankPath(("ckpt_dir", "/meta.json"))
    metas = [
        MetaFile(rank=rank, path=places.of(rank), place=places, step=step, file="any", prefix=prefix)
        for rank in inventory.ranks
    ]
    return replace(inventory, meta_files=tuple(metas))


RERUNS = [slice_file(rank, prefix=prefix, mtime=mtime) for rank in range(2) for prefix, mtime in (("a", 9), ("a_1", 5))]


@pytest.mark.parametrize(
    ("named", "options", "prefixes"),
    [
        ("a_1", {}, ["a_1"]),
        ("a", {}, ["a"]),
        ("a_2", {}, [None]),
        ("a_1", {"newest": True}, ["a", "a_1"]),
        ("a_1", {"run": "a"}, ["a"]),
    ],
)
def test_of_reruns_side_by_side_the_named_one_is_taken(named, options, prefixes):
    """As the operator says, else as meta.json do."""
    (candidate,) = found(with_meta(tree(RERUNS, pairs(2)), named), **options)
    assert [run.prefix for run in candidate.runs] == prefixes


def test_a_run_that_every_meta_json_went_back_behind_is_passed_over_unless_it_was_chosen():
    late = Step(3, 8)
    old, new = (
        [slice_file(rank, late, prefix="a") for rank in range(2)],
        [slice_file(0, prefix="a_1"), slice_file(1, prefix="a_1")],
    )
    inventory = with_meta(tree([*old, *new], pairs(2)), "a_1")
    passed, taken = found(inventory)
    assert (passed.step, passed.another_run, passed.another_experiment) == (late, True, False)
    assert "meta.json names the later run 'a_1'" in passed.reason
    assert isinstance(taken, Candidate)
    assert isinstance(found(inventory, run="a")[0], Candidate)
    assert isinstance(found(tree([*old, *new], pairs(2)))[0], Candidate)


@pytest.mark.parametrize(
    ("names", "step", "refused"),
    [
        (("one", "two"), None, "slices of several experiments, 'one', 'two'"),
        (("one", "two"), STEP, "step 2_8 of several experiments, 'one', 'two'"),
        (("one", "two"), OLDER, None),
        (("one", "one"), None, None),
        ((None, None), None, None),
    ],
)
def test_several_experiments_are_refused_where_nothing_chooses_one(names, step, refused):
    first, second = names
    slices = [
        *experiment("1_8", "a", 100, first),
        *experiment("2_8", "a", 100, first),
        *experiment("2_8", "b", 200, second, prefix="test_1"),
    ]
    inventory = tree(slices, GROUPS)
    facts = TreeFacts(inventory, PlanOptions(step=step))
    if refused is None:
        refuse_experiments(facts)
        assert step is not None or text_of_others(facts) is None
    else:
        with pytest.raises(UsageError, match=rf"has {refused}: name one, with options=PlanOptions\(run='one'\)"):
            refuse_experiments(facts)
        assert "passed over are those of 'one' (up to step 2_8); --run takes" in text_of_others(facts)
    for chosen in ("a", first) if first else ():
        refuse_experiments(TreeFacts(inventory, PlanOptions(step=step, run=chosen)))


def experiment(text, run, started, base, **changes):
    return [
        replace(file, manifest=replace(file.manifest, training=replace(file.manifest.training, base_prefix=base)))
        for file in both(text, run, started, **changes)
    ]


def test_steps_of_another_experiment_alone_are_passed_over_as_such():
    inventory = tree([*experiment("3_8", "a", 100, "one"), *experiment("2_8", "b", 200, "two", prefix="b")], GROUPS)
    passed, taken = found(inventory)
    assert (passed.step, passed.another_run, passed.another_experiment) == (Step(3, 8), True, True)
    assert (taken.step, taken.runs[0].run_id) == (STEP, "b")


def test_a_tree_without_slices_has_no_candidates():
    with pytest.raises(MissingInputError, match="no slice"):
        found(tree([], pairs(2)))
    inventory = tree([slice_file(0)], pairs(2))
    with pytest.raises(MissingInputError, match="no slice of step 1_8; it has 2_8"):
        found(inventory, step=OLDER)


def test_the_run_of_one_part_is_looked_for_in_another():
    facts = TreeFacts(of(both("1_8", "a", 100), both("1_8", "b", 200, prefix="test_1"))).at(Step(1, 8))[0]
    (own,) = runs_of(facts, Step(1, 8))
    assert runs_alike(facts, Step(1, 8), own) == (own,)
    assert runs_alike(facts, Step(1, 8), Run(run_id="b")) == (own,)
    assert runs_alike(facts, Step(1, 8), Run(run_id="c")) == (Run(run_id="c"),)


def test_an_iteration_of_which_one_part_alone_has_manifests_is_not_known_to_be_clean(tmp_path):
    runs = (SavedRun(name="A", started=HOUR, steps=(1, 2)),)
    root = RunTree(iterations=True, model_parallel=1, adapter=False, runs=runs).write(tmp_path, Random(0))
    assert isinstance(next(candidates_of(TreeFacts(api.scan(root), PlanOptions(clean=True)))), Candidate)
    for path in root.glob(f"iteration_00000002/*-model-*{MANIFEST_SUFFIX}"):
        path.unlink()
    newest, older = candidates_of(TreeFacts(api.scan(root), PlanOptions(clean=True)))
    assert newest.reason.startswith("not known to be clean")
    assert older.step == Step.iteration(1)
