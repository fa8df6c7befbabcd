"""The parts of a tree, and what the options mean for each."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import UsageError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.tree.tree_facts import TreeFacts, check_steps
from tests.support.inventories import STEP, pairs, slice_file, tree
from tests.support.iterations import Job, write_job
from tests.unit.planning.test_contents import backed

SMALL, LARGE = Step.iteration(300), Step.iteration(100)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a tree of iterations: the newer one of 2 ranks, the older one of 4."""
    root = tmp_path_factory.mktemp("sizes") / "tree"
    write_job(root, Job(data_parallel=1, layers=1, adapter=False), [300])
    write_job(root, Job(layers=1, adapter=False), [100])
    return api.scan(root)


def facts(inventory, **options):
    return TreeFacts(inventory, PlanOptions(**options))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"world_size": 3}, r"given as 3, but the files that iteration_00000300/.* are of 2 ranks"),
        ({"lost": {2}}, r"rank 2 is declared lost, but the ranks are 0 to 1 by"),
        ({"lost": {4}, "world_size": 4}, r"rank 4 is declared lost, but the ranks are 0 to 3 by"),
        ({"lost": {4}, "step": LARGE}, r"rank 4 is declared lost, but the ranks are 0 to 3 by"),
        ({"ranks": {2}}, r"there is no rank 2: the ranks are 0 to 1 by"),
        ({"ranks": {4}, "world_size": 4}, r"there is no rank 4"),
        ({"step": Step(1, 8)}, r"1_8 is no step of .*, where it is the iteration alone: it has 300, 100"),
    ],
)
def test_options_that_fit_no_iteration_are_refused(saved, options, why):
    with pytest.raises(UsageError, match=why):
        facts(saved, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"lost": {1}},
        {"lost": {3}, "world_size": 4},
        {"ranks": {3}, "step": LARGE},
        {"ranks": {0, 1}, "world_size": 2},
    ],
)
def test_ranks_of_the_newest_iteration_of_the_given_size_or_of_the_given_step_are_ranks(saved, options):
    assert facts(saved, **options).world(LARGE).ranks == 4


def test_each_part_has_the_lost_ranks_and_those_to_recover_of_its_own_world(saved):
    made = facts(saved, world_size=4, lost=frozenset({0, 3}), ranks=frozenset({1, 3}))
    seen = {
        step: {(part.lost, part.options.ranks, part.world.ranks) for part in made.at(step)} for step in (SMALL, LARGE)
    }
    assert seen == {SMALL: {(frozenset({0}), frozenset({1}), 2)}, LARGE: {(frozenset({0, 3}), frozenset({1, 3}), 4)}}
    assert {part.options.ranks for part in facts(saved).every()} == {None}


def test_the_parts_of_a_step_are_those_of_its_files(saved):
    made = facts(saved)
    assert [(part.kind, part.world.ranks) for part in made.every()] == [
        ("model", 2),
        ("opt", 2),
        ("model", 4),
        ("opt", 4),
    ]
    assert [(part.kind, part.world.ranks) for part in made.at(LARGE)] == [("model", 4), ("opt", 4)]
    assert [part.kind for part in made.at(LARGE, ("opt",))] == ["opt"]
    assert made.at(Step.iteration(7)) == []
    assert [part.kind for part in facts(saved, step=SMALL).every()] == ["model", "opt"]
    assert [(step, made.world(step).ranks) for step in (SMALL, LARGE, Step.iteration(7))] == [
        (SMALL, 2),
        (LARGE, 4),
        (Step.iteration(7), 0),
    ]
    assert [one.step for one in made.saved] == [SMALL, LARGE]


def test_a_tree_without_iterations_is_one_part_at_every_step():
    made = facts(tree([slice_file(rank) for rank in range(4)], pairs(4)))
    assert [part.kind for part in made.every()] == [None]
    assert made.at(STEP, ("model",)) == made.at(None) == made.every()
    assert made.world(STEP).ranks == 4
    with pytest.raises(UsageError, match="there is no rank 4"):
        facts(made.inventory, ranks={4}).every()
    with pytest.raises(UsageError, match=r"8 is no step of /tree, where it is EPOCH_STEP: it has 2_8"):
        check_steps(made.inventory, PlanOptions(step=Step.iteration(8)))


def test_what_was_read_is_known_in_the_facts_made_after_it_alone():
    before = facts(tree([slice_file(0)], {}))
    known = Contents(problems={slice_file(0).path: "input/output error"})
    after = before.with_contents(known)
    assert [made.every()[0].at(STEP, 0)[0].problem for made in (before, after)] == [None, "input/output error"]
    assert (before.contents, after.contents) == (NOTHING_READ, known)


def test_the_manifests_of_lost_ranks_name_no_run_of_any_part(saved):
    slices = [
        replace(backed(file, "a", run="gone", training=TrainingRecord(100)), mtime_ns=1 << 62)
        if (file.step, file.rank) == (SMALL, 1)
        else file
        for file in saved.slices
    ]
    made = replace(saved, slices=tuple(slices))
    assert {part.lineage.last.run_id for part in facts(made).every()} == {"gone"}
    assert {part.lineage for part in facts(made, lost=frozenset({1})).every()} == {None}
