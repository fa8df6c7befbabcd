"""Plans of inventories made by hand."""

from ms_recover.model.contents import NOTHING_READ
from ms_recover.model.options import DEFAULT_PLAN
from ms_recover.planning.choice import choose_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.plan.planner import plan_choice
from ms_recover.planning.tree.tree_facts import TreeFacts


def make_planned(inventory, options=DEFAULT_PLAN, contents=NOTHING_READ):
    """Plan by what is known, without reading; return the plan with what it was made from."""
    tree = Parts(TreeFacts(inventory, options, contents), all_read=options.quick)
    return plan_choice(tree, choose_step(tree))


def make_plan(inventory, options=DEFAULT_PLAN, *, contents=NOTHING_READ):
    """Plan by what is known, without reading."""
    return make_planned(inventory, options, contents).plan
