"""Random losses: what a plan prints of regions without a source is, block by block, what its JSON lists one by one."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.formats.plan_json import plan_to_json
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.texts import MOST_SHOWN
from ms_recover.reporting.pieces import MOST_BLOCKS, lost_blocks, missing_lines, region_text
from ms_recover.reporting.plan_text import plan_text
from tests.support.examples import examples

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
TREES = ("dp2_mp4", "dp2_mp2_pp2", "dp4_mp2_opt2", "dp4_mp2_optfull")
RANKS = 8
ROW = re.compile(r"(?P<ranks>[0-9][0-9, -]*?)  +(?P<region>\[[0-9:, ]*\]|all of it)  +(?P<count>[0-9,]+) parameters?: ")


@functools.cache
def scanned(tree: str) -> Inventory:
    return api.scan(FIXTURES / tree)


@functools.cache
def planned(tree: str, lost: frozenset[int]) -> Plan:
    """Plan a tree from which the slices of some ranks are gone; strategy files stay."""
    whole = scanned(tree)
    left = replace(whole, slices=tuple(file for file in whole.slices if file.rank not in lost))
    return api.plan(left, PlanOptions(quick=True, world_size=RANKS))


losses = st.frozensets(st.integers(0, RANKS - 1), min_size=1, max_size=RANKS - 1)
laws = settings(max_examples=examples(40))


@laws
@given(st.sampled_from(TREES), losses)
@example("dp4_mp2_optfull", frozenset({3}))
@example("dp2_mp4", frozenset({0, 1, 4, 5}))
def test_blocks_name_exactly_what_the_full_list_names(tree, lost):
    plan = planned(tree, lost)
    listed = [
        (rank["rank"], gone["parameter"], tuple(map(tuple, gone["region"])), gone["bytes"])
        for rank in plan_to_json(plan)["ranks"]
        for gone in rank.get("missing", ())
    ]
    blocks = lost_blocks(plan.ranks)
    named = [(rank, name, one.region) for one in blocks for rank in one.ranks for name in one.parameters]
    assert sorted(named) == sorted((rank, name, region) for rank, name, region, _ in listed)
    assert sum(len(one.ranks) * one.bytes for one in blocks) == sum(size for *_, size in listed)
    rows = [found for line in missing_lines(plan, None) if (found := ROW.match(line.strip()))]
    shown = [(numbers(row["ranks"]), row["region"], int(row["count"].replace(",", ""))) for row in rows]
    assert shown == [(one.ranks, region_text(one.region), len(one.parameters)) for one in blocks[:MOST_BLOCKS]]
    left_out = len(blocks) - MOST_BLOCKS
    assert left_out <= 0 or f"and {left_out:,} more: see --json" in "".join(missing_lines(plan, None))


def numbers(text: str) -> tuple[int, ...]:
    ends = [run.split("-") for run in text.split(", ")]
    return tuple(rank for run in ends for rank in range(int(run[0]), int(run[-1]) + 1))


@laws
@given(st.sampled_from(TREES), losses)
def test_no_row_gives_a_longer_reason_than_can_be_read(tree, lost):
    plan = planned(tree, lost)
    text = plan_text(plan, None)
    for row in text.splitlines():
        why = row.rsplit("  ", 1)[-1]
        assert len(why) <= MOST_SHOWN or row.startswith((plan.root, plan.answer, "HINT", "WARNING")), row
    reasons = {one.reason for one in plan.ranks if one.verdict == "unrecoverable"}
    for reason in reasons:
        assert text.count(reason[:60]) <= len(lost) + 2  # its row of each rank, and once for the steps


@pytest.mark.parametrize(
    ("tree", "lost"),
    [("dp2_mp4", {0, 4}), ("dp2_mp2_pp2", {1, 3}), ("dp4_mp2_opt2", set(range(7))), ("dp4_mp2_optfull", {0, 1, 2})],
)
def test_a_toy_model_takes_a_few_lines(tree, lost):
    """Where a rank's whole block is gone, one line stands for all parameters that are cut alike."""
    plan = planned(tree, frozenset(lost))
    listed = sum(len(one.missing) for one in plan.ranks)
    assert listed > 30
    assert len(missing_lines(plan, None)) < listed / 4
