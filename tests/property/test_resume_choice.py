"""A rank that resumes has the candidates of a plan, and takes the step that a plan takes where it needs as much.

It needs less where only its own slice is looked at, which is why all ranks agree on a step; a resume on other ranks
needs every region of every parameter, as a reshard does.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.reshard import ReshardOptions
from ms_recover.model.steps import Step
from ms_recover.planning.choice import candidates_of, choose
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.training.own_steps import OwnSteps
from ms_recover.training.search import Search
from ms_recover.training.tree_view import SliceTree, TreeView
from tests.property.test_recovery import MEMORY
from tests.support.examples import examples
from tests.support.run_trees import random_options, random_tree, strike


@settings(max_examples=examples(60))
@given(st.integers(0, (1 << 32) - 1))
def test_a_rank_that_resumes_has_the_candidates_of_a_plan(seed: int) -> None:
    source = Random(seed)
    tree = replace(random_tree(source), iterations=False)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = tree.write(Path(folder), source)
        flipped = strike(tree, root, source)
        given = random_options(tree, source)
        options = PlanOptions(run=given.run, newest=given.newest, world_size=tree.ranks, quick=True)
        inventory = api.scan(root)
        assume(inventory.steps)
        try:
            plan = api.plan(inventory, options)
        except MsRecoverError:  # no run of that name
            return
        event("taken" if plan.recoverable else "disputed" if plan.disagreements else "none")
        order = {
            one.step: one.reason if isinstance(one, RejectedStep) else None
            for one in candidates_of(TreeFacts(inventory, options))
        }
        search, there = Search(str(root), ScanOptions(), options, "refuse"), SliceTree(inventory=inventory)
        ranks = [OwnSteps.judged(rank, search, there, ()).steps for rank in range(tree.ranks)]
        for steps in ranks:
            assert steps.withdrawn == {step: why for step, why in order.items() if why is not None}
            assert list(steps.assessments) == [step for step, why in order.items() if why is None]
        common = max(
            set.intersection(*({steps.place(step) for step in steps.available} for steps in ranks)), default=None
        )
        if plan.recoverable:
            assert common is not None
            assert common[1] == plan.step
        elif not plan.disagreements:
            assert common is None
        if not flipped:  # what a manifest describes is read when it is loaded
            _check_other_ranks(inventory, replace(options, quick=False), list(order))


def _check_other_ranks(inventory: Inventory, options: PlanOptions, order: list[Step]) -> None:
    judged = TreeView.of(SliceTree(inventory=inventory), options, ())
    made = choose(judged.candidates(None), judged.judge, lambda rejected: None)
    try:
        plan = api.plan_reshard(inventory, "/nowhere", ReshardOptions(full=True), options)
    except MsRecoverError:
        assert not made.found
        return
    assert made.found == plan.complete
    if made.found:
        assert made.shown.step == plan.step
        assert made.rejected == plan.rejected_steps
    only = [one.step for one in judged.candidates(order[-1]) if isinstance(one, RejectedStep)]
    assert set(order[:-1]) <= set(only)
