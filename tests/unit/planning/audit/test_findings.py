"""What an audit finds wrong, and what it proposes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ms_recover.model.axes import Axes
from ms_recover.model.inventory import Inventory, StrategyFile
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.blocks import BlockKind, HeldBlock
from ms_recover.planning.audit.findings import Case, find_findings
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.verbs.audit import audit, audit_claims
from tests.support.inventories import NAMES, pairs, slice_file, tree
from tests.unit.planning.test_contents import backed

SLICES = [slice_file(rank) for rank in range(4)]
LARGE = NAMES[:3]
HALVES = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
QUARTERS = tuple(Layout(name, (4,), ((0,),)) for name in NAMES)
SHARDS = tuple(Layout(name, (4,), ((),), opt_shard_step=1, opt_shard_size=-1) for name in NAMES)


def hosts(ranks, size):
    return Topology(("host",), (tuple(f"host{rank // size}" for rank in range(ranks)),), "the test")


def found(made):
    return [(one.kind, f"{one.text}: {one.mend}") for one in made.findings]


def before(axes, shards=0, size=None):
    """Return the findings about axes before the first checkpoint, on hosts of so many ranks."""
    options = PlanOptions(axes=Axes.parse(axes), optimizer_shards=shards)
    return found(audit_claims(Inventory("/tree", (), (), ()), options, hosts(8, size) if size else None))


def of_tree(slices=SLICES, lists=None, layouts=(), files=range(4), topology=True, axes=None):
    """Return the findings about slices with rank lists and strategy files on some ranks, on hosts of two ranks."""
    strategies = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((0,), 1, tuple(layouts)), "digest")
        for rank in (files if layouts else ())
    )
    inventory = replace(tree(slices, lists or {}), strategy_files=strategies)
    options = PlanOptions(quick=True, axes=Axes.parse(axes) if axes else None)
    return found(audit(inventory, options, hosts(4, 2) if topology else None))


@pytest.mark.parametrize(
    ("shards", "size", "words"),
    [
        (0, 2, ()),
        (2, 2, ()),
        (
            4,
            2,
            ("cut into 4 shards over 4 replicas", "one copy of each shard", "4 of 4 hosts", "shard_size=2: 2 copies"),
        ),
        (
            -1,
            4,
            ("cut into 4 shards over 4 replicas", "one copy of each shard", "2 of 2 hosts", "shard_size=2: 2 copies"),
        ),
        (3, 4, ("cut into 3 shards", "nothing says which ranks hold the same", "shard_size=2: 2 copies")),
        (-1, 8, ("1 of 1 hosts", "optimizer_weight_shard_size=2, and a placement that keeps the copies")),
    ],
)
def test_shards_of_the_optimizer_that_one_host_alone_holds(shards, size, words):
    """Of four replicas; each host has so many neighbouring ranks."""
    made = before("dp=4,mp=2", shards, size)
    assert [kind for kind, _ in made] == (["optimizer"] if words else [])
    assert all(word in text for _, text in made for word in words)


def test_without_shards_there_are_as_many_copies_as_replicas():
    """Two replicas, each a host: fewer shards than two are none."""
    ((kind, text),) = before("dp=2,mp=4", -1, 4)
    assert (kind, text.partition(": ")[2]) == ("optimizer", "enable_parallel_optimizer=False: no shards, and 2 copies")


def test_fewer_shards_do_not_mend_a_placement():
    """Two copies of each shard lie on one host: of shards over four replicas, the ranks 0 and 4, and 2 and 6."""
    assert "optimizer" not in [kind for kind, _ in before("dp=4,mp=2", 2, 8)]


def case(*holders, layouts=(), dealt=False, sharding=None):
    """Return the findings about the blocks of a sound tree of four ranks, of each that so many ranks hold."""
    strategies = (StrategyFile(0, "strategy.ckpt", Strategy((0,), 1, tuple(layouts)), "s"),) if layouts else ()
    parts = Parts(
        TreeFacts(
            replace(tree(SLICES, {} if layouts else pairs(4)), strategy_files=strategies), PlanOptions(quick=True)
        )
    )
    kind = BlockKind(stage=0, names=NAMES[:1], cut="", source="the test")
    blocks = tuple(HeldBlock(kind=kind, holders=ranks, bytes=8) for ranks in holders)
    held = replace(next(steps_of_tree(parts)), blocks=blocks)
    made = find_findings(
        Case(facts=parts.facts.every()[0], held=held, dealt=dealt, topology=hosts(4, 2), sharding=sharding)
    )
    return [(one.kind, f"{one.text}: {one.mend}") for one in made]


def test_blocks_that_were_dealt_out_are_counted():
    ((kind, text),) = case((0,), (1, 3), (2,), (3,), dealt=True)
    assert (kind, "and 3 blocks have a single copy: " in text) == ("redundancy", True)


@pytest.mark.parametrize(
    ("layouts", "shards", "words"),
    [
        (QUARTERS, 0, "there are no replicas of it"),
        (HALVES, 0, "or save with remove_redundancy=False: of CheckpointConfig in MindSpore, of CheckpointMonitor"),
        (QUARTERS, 2, "where that dealt them out"),
    ],
    ids=["no replicas", "replicas that lack it", "shards"],
)
def test_what_takes_the_copies_of_a_block_away(layouts, shards, words):
    """The two shards of the optimizer have copies on two hosts, and are not what is wrong."""
    sharding = SimpleNamespace(now=2, replicas=4, choose=lambda level: None) if shards else None
    ((kind, text),) = case((0,), (1, 3), layouts=layouts, sharding=sharding)
    assert (kind, words in text) == ("redundancy", True)
    assert text.startswith("1 block has a single copy, such as a, which rank(s) 0 alone hold")


def test_axes_without_replicas():
    ((kind, text),) = before("mp=8", 0, 4)
    assert kind == "redundancy"
    assert text.startswith("8 blocks have a single copy, such as weights")
    assert text.endswith(
        "there are no replicas of it: data parallel of 2 or more, or a backup of each step elsewhere: recover-ckpt copy"
    )


def test_where_nothing_says_which_ranks_share_a_host():
    ((kind, text),) = before("dp=2,mp=4")
    assert kind == "topology"
    assert text.startswith("nothing says which ranks share a host: name them with")


@pytest.mark.parametrize(
    ("named", "words"),
    [((), "share a host: "), ((0, 1, 2, 3), "share a host: "), ((0, 2), "do not name that of ranks 1, 3: ")],
)
def test_ranks_whose_host_no_manifest_names_are_named(named, words):
    def of_host(file):
        sealed = backed(file, "ab"[file.rank % 2])
        training = TrainingRecord(started=None, host=f"host{file.rank}") if file.rank in named else None
        return replace(sealed, manifest=replace(sealed.manifest, training=training))

    made = of_tree([of_host(file) for file in SLICES], pairs(4), topology=False)
    assert [words in text for kind, text in made if kind == "topology"] == [True]


def test_nothing_is_wrong_with_lists_on_every_rank_and_copies_on_both_hosts():
    assert of_tree(lists=pairs(4)) == []


def test_without_evidence_every_rank_is_named():
    ((kind, text),) = of_tree()
    assert (kind, text.startswith("nothing says who else holds the slice of every rank")) == ("evidence", True)


def test_ranks_that_no_list_names_are_named():
    ((kind, text),) = of_tree(lists={0: [0, 2]})
    assert (kind, text.startswith("nothing says who else holds the slice of ranks 1, 3:")) == ("evidence", True)


def test_rank_lists_with_some_members_are_lost_with_them():
    made = dict(of_tree(lists={0: [0, 2], 1: [1, 3]}))
    assert list(made) == ["evidence", "placement"]
    assert made["evidence"].startswith("2 groups have a rank list with some members only, such as [0, 2]")
    assert "such as the rank list that names rank 0, on host0" in made["placement"]


@pytest.mark.parametrize(("files", "thin"), [(range(4), False), ((0,), True), ((0, 1, 2), True)])
def test_strategy_files_with_some_ranks_are_lost_with_them(files, thin):
    made = of_tree(lists=pairs(4), layouts=HALVES, files=files)
    assert [text for kind, text in made if kind == "evidence" and text.startswith("the strategy file lies with ")] == [
        text for _, text in made if f"with {len(files)} of 4 ranks of stage 0 only" in text
    ]
    assert any(kind == "evidence" for kind, _ in made) == thin


def test_what_the_operator_says_is_lost_with_no_rank():
    assert "evidence" in dict(of_tree(layouts=HALVES, files=(0,)))
    assert "evidence" not in dict(of_tree(layouts=HALVES, files=(0,), axes="dp=2,tp=2"))


@pytest.mark.parametrize(
    ("lone", "words"), [(range(4), "every rank alone has its slice"), ((3,), "rank 3 alone has its slice")]
)
def test_ranks_that_are_alone_in_their_list(lone, words):
    others = [rank for rank in range(4) if rank not in lone]
    ((kind, text),) = of_tree(lists={rank: [rank] if rank in lone else others for rank in range(4)})
    assert (kind, text.startswith(f"by the rank lists {words}")) == ("redundancy", True)


def test_blocks_that_layouts_cut_over_all_ranks_have_no_replicas():
    ((kind, text),) = of_tree(layouts=QUARTERS)
    assert kind == "redundancy"
    assert "4 blocks have a single copy" in text
    assert "there are no replicas of it: data parallel of 2 or more, and a layout that does not cut it" in text


def test_shards_by_layouts():
    ((kind, text),) = of_tree(layouts=SHARDS)
    assert kind == "optimizer"
    assert "cut into 4 shards over 4 replicas, so that there is one copy of each shard; 2 of 2 hosts" in text
    assert text.endswith("optimizer_weight_shard_size=2: 2 copies of each shard, on different hosts")


@pytest.mark.parametrize(
    ("there", "words"),
    [((0, 1, 2), "rank 3 has no sound slice"), ((0, 1), "ranks 2, 3 have no sound slice")],
)
def test_slices_that_are_missing_come_first(there, words):
    made = of_tree([SLICES[rank] for rank in there], pairs(4))
    assert made[0][0] == "slices"
    assert made[0][1].startswith(f"{words} of step 2_8 now")


def test_a_placement_is_proposed_for_the_first_level_at_which_copies_lie_together():
    """Each rank has a host of its own; the ranks 0 and 2, and 1 and 3 share a rack, and hold the same."""
    levels = (tuple(f"host{rank}" for rank in range(4)), ("rack0", "rack1", "rack0", "rack1"))
    topology = Topology(("host", "rack"), levels, "the test")
    ((kind, text),) = found(audit(tree(SLICES, pairs(4)), PlanOptions(quick=True), topology))
    assert kind == "placement"
    assert text.startswith("2 blocks have all holders on one rack, such as the slice of rank(s) 0, 2, on rack0: ")
    assert "place the ranks otherwise" in text


def test_why_no_placement_is_proposed_for_racks_that_cannot_be_survived():
    """One rank alone is in another rack, and two pairs of ranks need one there."""
    levels = (tuple(f"host{rank}" for rank in range(4)), ("rack0", "rack0", "rack0", "rack1"))
    topology = Topology(("host", "rack"), levels, "the test")
    (finding,) = audit(tree(SLICES, pairs(4)), PlanOptions(quick=True), topology).findings
    assert (finding.kind, finding.topology) == ("placement", None)
    assert finding.text.startswith("1 block has all holders on one rack, such as the slice of rank(s) 0, 2, on rack0")
    assert finding.mend == "none was found that also survives any 1 rack: it takes other hosts or more copies"
