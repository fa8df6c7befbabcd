"""Slices without redundancy that list the beginning of what another lists."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from tests.support.inventories import OLDER, pairs, slice_file, tree
from tests.support.plans import make_plan

CUT, ALIKE = Layout("w", (2, 2), ((0,),)), Layout("norm", (2, 2), ((),))
LAYOUTS = (CUT, replace(CUT, parameter="moment1.w"), ALIKE, replace(ALIKE, parameter="bias"))
DEALT = [("w", "norm"), ("w",), ("moment1.w", "bias"), ("moment1.w",)]
"""Of four ranks: tensor parallel 2, data parallel 2; the norm and the bias are dealt out to all four."""


def judged(lists, *, layouts=LAYOUTS, older=()):
    slices = [slice_file(rank, names=("global_step", *names)) for rank, names in enumerate(lists)]
    slices += [slice_file(rank, OLDER, names=("global_step", *names)) for rank, names in older]
    strategy = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 2, layouts), "s"),) if layouts else ()
    inventory = replace(tree(slices, pairs(4)), strategy_files=strategy)
    made = make_plan(inventory, PlanOptions(quick=True, step=slices[0].step))
    return [one.state for one in made.ranks]


def test_what_a_slice_lacks_lies_with_ranks_that_hold_the_same():
    assert judged(DEALT) == ["ok"] * 4


def test_where_nobody_has_what_they_lack_any_of_them_may_be_cut():
    assert judged([*DEALT[:3], ()]) == ["ok", "damaged", "ok", "damaged"]


@pytest.mark.parametrize(
    "changes", [{"layouts": ()}, {"older": [(1, ("w", "bias"))]}, {"layouts": (*LAYOUTS[:2], LAYOUTS[3])}]
)
def test_without_layouts_or_with_another_list_before_it_stays_damaged(changes):
    assert judged(DEALT, **changes)[1] == "damaged"
