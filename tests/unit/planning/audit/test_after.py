"""Which losses of a tree a plan is asked about, and what it says."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.after import Losable
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.choice import choose_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree


def losable(slices, groups, **options):
    def ask(ranks):
        raise AssertionError(ranks)

    return of_tree(tree(slices, groups), ask, **options)


def of_tree(inventory, ask=None, **options):
    return Losable(Parts(TreeFacts(inventory, PlanOptions(quick=True, **options))), ask)


def sound(ranks):
    return [slice_file(rank) for rank in range(ranks)]


def test_none_where_every_slice_is_sound():
    assert losable(sound(8), pairs(8)).most_lost(8) == 0


def test_where_holders_are_assumed_to_hold_the_same():
    assert losable(sound(8), pairs(8)).most_lost(8, assumed=True) == 3


@pytest.mark.parametrize(("states", "most"), [(["moment1.v"], 0), ([], 3)])
def test_where_a_stage_lists_no_states_that_another_one_lists(states, most):
    """The slice that is left of that stage is cut off; two that list the same are not."""
    lists = [["w", "moment1.w"]] * 2 + [["v", *states]] * 2
    slices = [slice_file(rank, names=("global_step", *names)) for rank, names in enumerate(lists)]
    files = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // 2,), 2, layouts), "s")
        for rank, name in ((0, "w"), (2, "v"))
        for layouts in [tuple(Layout(one, (2,), ((),)) for one in (name, f"moment1.{name}"))]
    )
    groups = {rank: [rank // 2 * 2, rank // 2 * 2 + 1] for rank in range(4)}
    assert of_tree(replace(tree(slices, groups), strategy_files=files)).most_lost(4) == most


def test_up_to_three_domains_of_a_small_tree_where_a_slice_is_damaged():
    damaged = [slice_file(7, problem="cut off")]
    assert losable([*sound(7), *damaged], pairs(8)).most_lost(8) == 3
    assert losable([*sound(7), *damaged], pairs(8)).most_lost(2) == 2


@pytest.mark.parametrize(("ranks", "most"), [(16, 3), (20, 2), (32, 1), (64, 1), (256, 0)])
def test_fewer_of_more_ranks(ranks, most):
    slices = [*sound(ranks - 1), slice_file(ranks - 1, problem="cut off")]
    assert losable(slices, pairs(ranks)).most_lost(ranks) == most


def test_where_no_list_names_some_rank():
    assert losable(sound(8), {rank: [rank % 4, rank % 4 + 4] for rank in range(8) if rank % 4}).most_lost(8) == 3


class Trees:
    """A tree of two steps of four ranks in pairs, at the newer one of which the slices of some ranks are gone."""

    def __init__(self, *gone, known=True):
        slices = [slice_file(rank) for rank in range(4) if rank not in gone]
        slices += [slice_file(rank, OLDER) for rank in range(4)]
        self.facts = TreeFacts(tree(slices, pairs(4), ranks=range(4)), PlanOptions(quick=True, world_size=4))
        self.known, self.asked = known, []

    def ask(self, ranks):
        self.asked.append(ranks)
        inventory, options = self.facts.without(ranks)
        return choose_step(Parts(TreeFacts(inventory, options))), self.known

    def after(self, *lost):
        """Return the step that is left after a loss, and why it is no newer one."""
        self.losable = Losable(Parts(self.facts), self.ask)
        self.steps = list(steps_of_tree(Parts(self.facts)))
        found, why = self.losable.after(frozenset(lost), self.steps)
        return found and found.step, why


def test_a_plan_without_the_files_of_some_ranks_says_what_is_left():
    assert Trees().after(0) == (STEP, "")
    assert Trees().after(0, 1) == (STEP, "")
    step, why = Trees(1).after(3)
    assert step == OLDER
    assert "nobody of its group [1, 3] has a sound slice" in why
    step, why = Trees().after(0, 2)
    assert step is None
    assert why.startswith("ranks 0, 2: no directory")


def test_a_loss_is_asked_about_once():
    trees = Trees()
    first = trees.after(0, 1)
    assert trees.losable.after(frozenset({0, 1}), trees.steps)[0].step == first[0]
    assert trees.asked == [frozenset({0, 1})]


def test_what_rests_on_slices_that_were_not_read_the_holders_must_show_as_well():
    """By a plan rank 0 may be lost; the holders of blocks at the step that it takes say otherwise."""
    trees = Trees(known=False)
    assert trees.after(0) == (STEP, "")
    (newer,) = trees.steps
    older = replace(newer, step=OLDER)
    lost, kept = (frozenset({0}),), (frozenset({0, 2}),)
    for now, step in ((lost, None), (kept, STEP)):
        steps = [replace(newer, sure=now), replace(older, sure=kept if now is lost else lost)]
        assert step_of(Losable(Parts(trees.facts), trees.ask).after(frozenset({0}), steps)) == step
        known = Losable(Parts(trees.facts), Trees().ask)
        assert step_of(known.after(frozenset({0}), steps)) == STEP


def step_of(found):
    return found[0] and found[0].step


def test_an_error_of_a_plan_says_why_nothing_is_left():
    def ask(ranks):
        raise ContradictionError("the lists contradict each other")

    assert of_tree(tree(sound(4), pairs(4)), ask).after(frozenset({0}), []) == (None, "the lists contradict each other")


def test_where_some_ranks_alone_are_to_be_recovered():
    assert losable(sound(8), pairs(8), ranks=frozenset({1})).most_lost(8) == 3


def test_where_an_older_step_has_a_damaged_slice():
    assert losable([*sound(8), slice_file(0, OLDER, problem="cut off")], pairs(8)).most_lost(8) == 3
