"""Which ranks hold the same of which parameters, by layouts, by rank lists and by the values themselves."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import DEFAULT_PLAN
from ms_recover.model.slices import ParameterList
from ms_recover.model.strategy import Layout
from ms_recover.planning.history.make_history import make_tree_history
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.histories import MATRIX, NAMES, STRATEGY, course, flip, history, inventory, value


def relisted(slices, names_of):
    """Return slices that list other names, or in another order, by `names_of` of each slice."""

    def of(file):
        digests = dict(zip((one.name for one in file.parameters), file.manifest.digests.parameters, strict=True))
        listed = {one.name: one for one in file.parameters}
        names = names_of(file)
        parameters = ParameterList(listed[name] for name in names)
        stated = Digests("|".join(digests[name] for name in names), tuple(digests[name] for name in names))
        return replace(
            file, parameters=parameters, manifest=replace(file.manifest, parameters=parameters, digests=stated)
        )

    return [of(file) for file in slices]


def with_strategy(slices, strategy, digest=""):
    """Return the history beside a strategy file with a digest."""
    made = replace(inventory(slices), strategy_files=(StrategyFile(0, "strategy/0.ckpt", strategy, digest),))
    return make_tree_history(TreeFacts(made, DEFAULT_PLAN))


@pytest.mark.parametrize("strategy", [STRATEGY, None])
def test_the_order_in_which_slices_list_parameters_says_nothing(strategy):
    def stopped(rank, step, name):
        step = replace(step, step=min(step.step, 12)) if name == "rate" else step
        return flip(6, 9, "norm")(rank, step, name)

    slices = course(stopped)
    turned = relisted(slices, lambda file: NAMES if file.step.step % 2 else NAMES[::-1])
    found = history(turned, strategy=strategy)
    assert [(one.parameter, one.outvoted) for one in found.disagreements] == [("norm", (6,))]
    assert [(one.parameter, one.since.step) for one in found.stopped] == [("rate", 12)]
    assert found == history(slices, strategy=strategy)


@pytest.mark.parametrize("strategy", [STRATEGY, None])
def test_ranks_that_do_not_list_a_parameter_have_no_vote_on_it(strategy):
    slices = relisted(course(flip(6, 9, "norm")), lambda file: NAMES if file.rank > 3 else ("column", "rate"))
    (one,) = history(slices, strategy=strategy).disagreements
    assert (one.parameter, one.outvoted, one.ranks) == ("norm", (6,), (4, 5, 6, 7))


def test_what_slices_list_at_some_steps_is_compared_at_these():
    slices = relisted(
        course(flip(6, 9, "norm")), lambda file: [name for name in NAMES if name != "norm" or file.step.step % 2]
    )
    (one,) = history(slices).disagreements
    assert (one.parameter, one.first.step, one.last.step, one.steps, one.outvoted) == ("norm", 9, 19, 6, (6,))


def swapped(*names):
    """Return values by which rank lists hold their own of some parameters, as no layout here has it."""
    return lambda rank, step, name: f"{name}.{step}.{rank % 4}" if name in names else value(rank, step, name)


def test_a_strategy_file_that_few_values_contradict_is_used():
    """The norm is one block over all ranks, its moment two: one in three differs, or two do."""
    few, many = history(course(swapped("norm"))), history(course(swapped("moments.norm")))
    assert [(one.parameter, one.source) for one in few.disagreements] == [("norm", "strategy/0.ckpt")]
    assert few.notes == ()
    assert many.disagreements == ()
    assert ["at step 1_1 2 of 3 parameters differ" in note for note in many.notes] == [True]


@pytest.mark.parametrize("named", [(0,), (7,), range(8), ()])
def test_a_strategy_file_that_manifests_name_is_used_whatever_values_show(named):
    slices = [
        replace(file, manifest=replace(file.manifest, strategy_digest="mine" if file.rank in named else None))
        for file in course(swapped("norm", "moments.norm"))
    ]
    assert bool(with_strategy(slices, STRATEGY, "mine").disagreements) == bool(named)
    assert with_strategy(slices, STRATEGY, "another").disagreements == ()


def test_layouts_of_parameters_that_no_slice_lists_say_nothing_for_a_strategy_file():
    more = tuple(Layout(f"other{number}", MATRIX, ((),)) for number in range(9))
    found = with_strategy(course(swapped("norm", "moments.norm")), replace(STRATEGY, layouts=STRATEGY.layouts + more))
    assert found.disagreements == ()
    assert "3 of 3 parameters differ" in found.notes[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_no_list_joins_share_what_changed_alike(ranks):
    groups = {rank: [rank] for rank in range(ranks)}
    found = history(course(flip(1, 6, "norm"), ranks=ranks, groups=groups), groups=groups, strategy=None)
    assert [(one.parameter, one.ranks, one.source) for one in found.disagreements] == [
        ("norm", tuple(range(ranks)), "equal values before")
    ]


def test_ranks_whose_values_never_changed_alike_share_nothing():
    groups = {rank: [rank] for rank in range(2)}
    constant = lambda rank, step, name: name if name == "norm" else f"{name}.{step}.{rank}"  # noqa: E731
    found = history(course(constant, ranks=2, groups=groups), groups=groups, strategy=None)
    assert (found.disagreements, found.alone) == ((), (0, 1))
