"""Shards of the optimizer: how many there are, and how many would leave copies on several hosts."""

from dataclasses import replace

import pytest

from ms_recover.model.axes import Axes
from ms_recover.model.inventory import Inventory, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.losses import Level
from ms_recover.planning.audit.shards import find_sharding
from ms_recover.planning.tree.facts import gather_facts

EMPTY = Inventory("/tree", (), (), ())


def state(name, shards, *, matrix=(4, 2), tensor_map=((0,),)):
    """Return the layout of an optimizer's state, of eight ranks cut over two of them."""
    return Layout(name, matrix, tensor_map, opt_shard_step=1 if shards else 0, opt_shard_size=shards)


def sharding(*layouts, **options):
    files = (StrategyFile(0, "strategy.ckpt", Strategy((0,), 1, layouts), "digest"),) if layouts else ()
    return find_sharding(gather_facts(replace(EMPTY, strategy_files=files), PlanOptions(world_size=8, **options)))


def counts(found):
    return None if found is None else (found.now, found.replicas)


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        ([state("m.w", 2)], (2, 4)),
        ([state("m.w", -1)], (4, 4)),
        ([state("m.w", -1, tensor_map=((),))], (8, 8)),
        ([state("m.w", 0)], None),
        ([state("accu_grads.w", 2)], None),
        ([state("m.count", 2, tensor_map=())], None),
        ([state("m.v", 2), state("m.w", -1), state("w", 0)], (4, 4)),
        ([state("m.w", -1), state("m.v", 2), state("w", 0)], (4, 4)),
    ],
)
def test_by_layouts_that_of_the_parameters_with_the_fewest_copies(layouts, expected):
    assert counts(sharding(*layouts)) == expected


@pytest.mark.parametrize(("shards", "expected"), [(0, None), (1, None), (2, (2, 4)), (3, (3, 4)), (-1, (4, 4))])
def test_by_the_axes(shards, expected):
    axes = Axes.parse("dp=4,tp=2")
    assert counts(sharding(axes=axes, optimizer_shards=shards)) == expected


def test_layouts_say_more_than_the_axes():
    assert counts(sharding(state("m.w", 2), axes=Axes.parse("dp=4,tp=2"), optimizer_shards=-1)) == (2, 4)
    assert sharding(state("w", 0), axes=Axes.parse("dp=4,tp=2"), optimizer_shards=-1) is None


def test_as_many_shards_are_chosen_by_the_layouts_that_say_how_many_there_are():
    """By the axes no two ranks hold the same, which layouts contradict."""
    found = sharding(state("m.w", -1), axes=Axes.parse("tp=8"), optimizer_shards=-1)
    assert (counts(found), found.choose(on("aabbccdd"))) == ((4, 4), 2)


def on(hosts):
    return Level.of_topology(Topology(("host",), (tuple(hosts),), "the test"), 0)


@pytest.mark.parametrize(
    ("hosts", "chosen"), [("aabbccdd", 2), ("aaaabbbb", 2), ("aaaaaaab", None), ("abababab", None), ("aaaaaabb", 1)]
)
@pytest.mark.parametrize("by", ["layouts", "axes"])
def test_the_most_shards_of_which_each_has_copies_on_two_hosts(by, hosts, chosen):
    """Ranks that are even hold one half of each weight, the others the other one; two shards leave 0 and 4, 2 and 6."""
    layouts = [state("m.w", -1), state("w", 0)] if by == "layouts" else ()
    options = {} if layouts else {"axes": Axes.parse("dp=4,tp=2"), "optimizer_shards": -1}
    assert sharding(*layouts, **options).choose(on(hosts)) == chosen


def test_no_more_shards_are_chosen_than_there_are():
    assert sharding(state("m.w", 2)).choose(on("aabbccdd")) == 1
