"""Which manifests are witnesses of which step."""

from dataclasses import replace

from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.history.witnesses import find_moments
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.histories import course, inventory, orphan


def moments(slices, orphans=(), **options):
    tree = TreeFacts(inventory(slices, orphans=orphans), PlanOptions(**options))
    (facts,) = tree.every()
    return find_moments(facts, tree)


def witnesses(found):
    """Return the ranks with witnesses by step, and those with slices alone."""
    return {moment.step.step: (sorted(moment.witnesses), list(moment.bare)) for moment in found}


EVERY = list(range(8))


def test_manifests_of_slices_that_are_gone_are_witnesses_beside_those_that_are_there():
    slices = course(steps=(1, 2))
    there = [file for file in slices if file.step.step == 2 and file.rank < 5]
    gone = [orphan(file) for file in slices if file not in there]
    assert witnesses(moments(there, gone)) == {1: (EVERY, []), 2: (EVERY, [])}


def test_a_manifest_that_is_not_that_of_its_slice_is_no_witness():
    """The slices of the ranks 1, 2 and 3 have a manifest of another rank, of another step, and of another file."""
    odd = {1: {"rank": 2}, 2: {"step": Step(1, 2)}, 3: {"file": "other-1_1.ckpt"}}
    slices = [replace(file, manifest=replace(file.manifest, **odd.get(file.rank, {}))) for file in course(steps=(1,))]
    (moment,) = moments(slices)
    assert set(moment.witnesses) == set(EVERY) - odd.keys()


def test_a_manifest_without_the_digest_of_each_parameter_is_no_witness():
    def thin(file):
        digests = {0: file.manifest.digests.parameters[:-1], 1: ()}.get(file.rank, file.manifest.digests.parameters)
        return replace(
            file, manifest=replace(file.manifest, digests=replace(file.manifest.digests, parameters=digests))
        )

    slices = list(map(thin, course(steps=(1,))))
    assert set(moments(slices)[0].witnesses) == set(EVERY) - {0, 1}
    empty = [replace(file, manifest=replace(thin(file).manifest, parameters=())) for file in slices if file.rank == 1]
    assert 1 not in moments([*slices[2:], *empty])[0].witnesses


def test_a_step_of_which_nothing_is_known_is_none_of_the_history():
    slices = course(steps=(2,))
    odd = [orphan(file) for file in course(steps=(1,))]
    assert witnesses(moments(slices, odd)) == {1: (EVERY, []), 2: (EVERY, [])}
    odd = [replace(one, manifest=replace(one.manifest, rank=one.rank + 1)) for one in odd]
    assert witnesses(moments(slices, odd)) == {2: (EVERY, [])}


def test_ranks_with_a_slice_and_no_manifest_are_named():
    slices = [replace(file, manifest=None) if file.rank > 5 else file for file in course(steps=(1,))]
    assert witnesses(moments(slices)) == {1: (EVERY[:6], [6, 7])}
    gone = [orphan(file) for file in course(steps=(1,)) if file.rank == 7]
    assert witnesses(moments(slices, gone)) == {1: ([*EVERY[:6], 7], [6])}


def test_ranks_that_are_lost_or_are_none_of_the_job_are_no_witnesses():
    gone = [orphan(file) for file in course(steps=(1,))]
    beyond = [replace(gone[7], rank=8, manifest=replace(gone[7].manifest, rank=8))]
    assert witnesses(moments(course(steps=(2,)), [*gone, *beyond], lost=frozenset({3})))[1] == (
        [0, 1, 2, 4, 5, 6, 7],
        [],
    )


def test_of_two_runs_of_a_step_the_one_that_a_plan_takes_has_the_witnesses():
    """Run b is the newer one; of the rank 7 only run a has a manifest. It goes on from nothing of run a."""

    def of_run(run, started, step):
        return course(steps=(step,), run=run, training=TrainingRecord(started, None, 100))

    first, second, newer = of_run("a", 10, 1), of_run("b", 20, 1), of_run("b", 20, 2)
    second = [
        replace(
            file,
            prefix="test_1",
            place=replace(file.place, parts=("ckpt_dir", "/test_1-1_1.ckpt")),
            manifest=replace(file.manifest, file="test_1-1_1.ckpt"),
            mtime_ns=2,
        )
        for file in second[:7]
    ]
    for there, gone in (([*first, *second], ()), (newer, map(orphan, [*first, *second]))):
        found = {moment.step.step: moment.witnesses for moment in moments(there, tuple(gone))}
        assert {rank: one.manifest.run_id for rank, one in found[1].items()} == dict.fromkeys(range(7), "b")
