"""Rank-local parameters that manifests show without recording them."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.model.manifest import Digests, RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.rank_local import RESUME_CHOICE
from ms_recover.model.steps import Step
from ms_recover.planning.claims.seen_local import NOT_COMPARED, find_seen_local
from tests.support.examples import examples
from tests.support.inventories import slice_file, tree
from tests.support.plans import make_plan
from tests.unit.planning.test_contents import backed

NAMES = ("weight", "bank", "bn.moving_mean", "step")
OWN = frozenset(("bank",))


def saved(rank, number, own=OWN, ranks=2, run="run", value="", **changes):
    """Return the slice of a rank and step, whose manifest records nothing about rank-local parameters."""
    step = Step(number, 8)
    digests = tuple(f"{name} {number} {value}{rank if name in own else ''}" for name in NAMES)
    made = backed(slice_file(rank, step, names=NAMES), "a", run=run, pairs=True, world_size=ranks)
    group = tuple(range(ranks))
    manifest = replace(made.manifest, group=group, step=step, digests=Digests(f"file {digests}", digests))
    manifest = replace(manifest, cumulative_step=8 * number, **{"training": TrainingRecord(1), **changes})
    return replace(made, manifest=manifest)


def names_of(files, run="run"):
    found = {member[0]: one.names for member, one in find_seen_local(files).items()}
    return found.get(run, frozenset())


@given(
    ranks=st.sampled_from((2, 4)),
    steps=st.integers(2, 4),
    own=st.sets(st.sampled_from(NAMES[1:]), min_size=1),
    lost=st.sets(st.integers(1, 3)),
    data=st.data(),
)
@settings(max_examples=examples(100), deadline=None)
def test_whichever_newest_slices_are_lost_the_same_parameters_are_rank_local(ranks, steps, own, lost, data):
    files = [saved(rank, number, own, ranks) for rank in range(ranks) for number in range(1, steps + 1)]
    gone = {(rank, steps) for rank in lost}
    left = [file for file in files if (file.rank, file.step.epoch) not in gone]
    assert names_of(data.draw(st.permutations(left))) == own


@given(differing=st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=5), lost=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_nothing_is_that_was_equal_when_it_was_compared_last(differing, lost):
    files = [saved(rank, number, own) for rank in (0, 1) for number, own in enumerate(differing, 1)]
    found = names_of(files[:-1] if lost else files)
    compared = differing[:-1] if lost else differing
    assert found <= (compared[-1] if compared else frozenset())
    if not lost:
        assert found <= set().union(*differing[:-1])  # and not what differs for the first time
    if compared and compared[-1] == set(NAMES):
        assert not found  # such ranks are no replicas


def test_of_a_run_with_nothing_to_compare_the_one_before_it_is_looked_at():
    earlier = [saved(rank, number) for rank in (0, 1) for number in (1, 2, 3)]
    goes_on = TrainingRecord(2, resumed_from=RunStep("run", Step(2, 8)))
    later = saved(0, 3, run="later")
    later = replace(later, manifest=replace(later.manifest, training=goes_on))
    assert names_of([*earlier, later], "later") == OWN
    assert names_of([file for file in [*earlier, later] if file.step != Step(1, 8)], "later") == OWN
    assert names_of([*[file for file in earlier if file.step == Step(3, 8)], later], "later") == frozenset()


def test_what_was_recovered_is_no_witness():
    origin = "recovered from rank 0 (ckpt_dir0/test-2_8.ckpt), by manifest"
    provenance = backed(slice_file(1), "a", origin=origin).manifest.provenance
    files = [saved(rank, number, provenance=provenance) for rank in (0, 1) for number in (1, 2)]
    assert names_of(files) == frozenset()


BOTH = {0: [0, 1], 1: [0, 1]}


SEEN = (
    "bank: ranks 0, 1 differ at step {}_8 by their manifests; taken for rank-local without a record; "
    "if they are no rank's own, a device or its memory is faulty"
)


def planned(*slices, **options):
    return make_plan(tree(slices, BOTH), PlanOptions(**options))


def test_older_steps_name_the_lost_values_of_a_rank():
    plan = planned(saved(0, 1), saved(1, 1), saved(0, 2))
    (action,) = plan.actions
    assert (action.rank, action.borrowed) == (1, ("bank",))
    assert plan.warnings == (
        "rank 1: rank-local, lost: bank; the values are those of rank 0",
        SEEN.format(1),
        RESUME_CHOICE,
    )


def test_values_that_differ_at_each_step_are_no_disagreement():
    plan = planned(*(saved(rank, number) for rank in (0, 1) for number in (1, 2)))
    assert [rank.verdict for rank in plan.ranks] == ["keep", "keep"]
    assert (plan.disagreements, plan.warnings) == ((), (SEEN.format(2),))


def test_what_differs_for_the_first_time_is_one():
    slices = [saved(rank, number, OWN if number == 2 else ()) for rank in (0, 1) for number in (1, 2)]
    assert planned(*slices).disagreements


def test_where_no_step_has_two_ranks_to_compare_nothing_shows_what_was_a_ranks_own():
    plan = planned(saved(0, 1), saved(0, 2))
    (action,) = plan.actions
    assert (action.rank, action.borrowed) == (1, ())
    (warning,) = plan.warnings
    assert warning == (
        "rank 1: its values are those of rank 0, and nothing shows whether some were its own: no manifest records a "
        "comparison of the ranks, and no step has slices of two of them"
    )


def test_a_comparison_that_manifests_record_is_not_missed():
    compared = TrainingRecord(1, state_digest="ab" * 16)
    warnings = planned(*(saved(0, number, training=compared) for number in (1, 2))).warnings
    assert not any("shows whether some were its own" in one for one in warnings)


def test_equal_ranks_lend_without_a_word():
    plan = planned(saved(0, 1, ()), saved(1, 1, ()), saved(0, 2, ()))
    assert (plan.actions[0].borrowed, plan.warnings) == ((), ())


def test_of_a_rank_that_is_alone_nothing_is_asked():
    alone = saved(0, 1)
    alone = replace(alone, manifest=replace(alone.manifest, group=(0,)))
    assert find_seen_local([alone]) == {}


def test_where_one_rank_is_left_at_every_step_nothing_was_compared_unless_training_did():
    assert find_seen_local([saved(0, 1), saved(0, 2)]) == {("run", (0, 1)): NOT_COMPARED}
    assert not NOT_COMPARED.compared
    compared = TrainingRecord(started=1, state_digest="xxh3_128:0")
    assert find_seen_local([saved(0, 1, training=compared), saved(0, 2)]) == {}
    assert find_seen_local([saved(0, 1), saved(1, 2)]) == {("run", (0, 1)): NOT_COMPARED}
    assert find_seen_local([saved(0, 1, own=()), saved(1, 1, own=())]) == {}


def test_what_differs_at_every_step_was_compared():
    files = [saved(rank, number) for rank in (0, 1) for number in (1, 2)]
    (seen,) = find_seen_local(files).values()
    assert (seen.names, seen.step, seen.ranks, seen.compared) == (OWN, Step(2, 8), (0, 1), True)
    older = [replace(file, manifest=replace(file.manifest, training=None)) for file in files]
    assert set(find_seen_local(older).values()) == {seen}
