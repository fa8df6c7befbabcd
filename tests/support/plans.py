"""Plans of inventories made by hand."""

from ms_recover.model.contents import NOTHING_READ
from ms_recover.model.options import DEFAULT_PLAN
from ms_recover.planning.facts import gather_facts
from ms_recover.planning.planner import plan_facts


def make_plan(inventory, options=DEFAULT_PLAN, *, contents=NOTHING_READ):
    """Plan by what is known, without reading."""
    return plan_facts(gather_facts(inventory, options, contents)).plan
