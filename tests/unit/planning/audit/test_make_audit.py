"""What losses cost, by the sets of ranks whose loss is fatal at each step."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from ms_recover.errors import ContradictionError
from ms_recover.model.audit import Giver
from ms_recover.model.options import AuditOptions
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.blocks import BlockKind, HeldBlock, StepHolders
from ms_recover.planning.audit.losses import Level
from ms_recover.planning.audit.make_audit import AuditedTree, block_classes, make_audit
from tests.support.inventories import OLDER, STEP


def held(step, *fatal, ranks=4, groups=None, parts=None, missing=()):
    """Return who holds what at a step where so many sets of ranks are fatal; a slice has 100 bytes."""
    family = tuple(map(frozenset, fatal))
    return StepHolders(
        step=step,
        ranks=ranks,
        blocks=(),
        groups=groups or {},
        sizes=dict.fromkeys(range(ranks), 100),
        parts=parts or {},
        missing=frozenset(missing),
        family=family,
        sure=family,
        why={one: f"loss {sorted(one)}" for one in family},
    )


def audited(*steps, ranks=4, topology=None, tree=None, **wanted):
    made = AuditedTree(root="/tree", ranks=ranks, steps=steps, evidence="the test", why="", losable=tree)
    return make_audit(made, topology, AuditOptions(**wanted))


def placed(*hosts):
    return Topology(("host",), (hosts,), "the test")


def brute(fatal, ranks, lost):
    """Count the losses of so many ranks that take one of the fatal sets."""
    return sum(any(set(one) <= set(loss) for one in fatal) for loss in combinations(range(ranks), lost))


@pytest.mark.parametrize("fatal", [[], [(2,)], [(0, 1), (2,)], [(0, 1), (1, 2), (2, 3)], [(0, 1, 2), (2, 3)]])
def test_losses_are_counted_as_trying_each(fatal):
    (level,) = audited(held(STEP, *fatal)).levels
    assert [(one.count, one.fatal) for one in level.losses] == [
        (lost, brute(fatal, 4, lost)) for lost in range(1, len(level.losses) + 1)
    ]
    assert len(level.losses) >= 2
    least = min(map(len, fatal), default=None)
    assert level.smallest == least
    assert level.smallest_count == (sum(len(one) == least for one in fatal) if fatal else None)
    assert {frozenset(map(int, one)) for one in level.minimal} == set(map(frozenset, fatal))
    assert level.minimal_count == len(fatal)


def test_a_tree_that_cannot_be_recovered_survives_nothing():
    made = audited()
    (level,) = made.levels
    assert (made.step, made.pairs, made.fatal_ranks, made.single_copy_bytes) == (None, (), (), None)
    assert (level.minimal, level.minimal_count, level.smallest) == ((), None, None)
    assert [(one.possible, one.fatal) for one in level.losses] == [(4, 4), (6, 6), (4, 4)][: len(level.losses)]


def test_an_older_step_is_left_where_the_newest_is_lost():
    made = audited(held(STEP, (0,)), held(OLDER, (0, 1)))
    (level,) = made.levels
    assert [one.step for one in level.singles] == [OLDER, STEP, STEP, STEP]
    assert [one.reason for one in level.singles] == ["loss [0]", "", "", ""]
    assert (level.smallest, level.minimal) == (2, (("0", "1"),))
    assert [(one.count, one.fatal, one.newest) for one in level.losses[:2]] == [(1, 0, 3), (2, 1, 3)]
    assert made.fatal_ranks == (frozenset({0, 1}),)


def test_ranks_of_one_host_are_lost_together():
    (level,) = audited(held(STEP, (0, 1), (1, 2)), topology=placed("a", "a", "b", "c")).levels
    assert level.domains == ("a", "b", "c")
    assert [one.step for one in level.singles] == [None, STEP, STEP]
    assert level.singles[0].reason == "loss [0, 1]"
    assert (level.smallest, level.smallest_count, level.minimal) == (1, 1, (("a",),))
    assert [one.fatal for one in level.losses] == [1, 2, 1]


def test_each_level_is_audited():
    topology = Topology(("host", "rack"), (("a", "b", "c", "d"), ("r", "r", "s", "s")), "the test")
    host, rack = audited(held(STEP, (0, 1)), topology=topology).levels
    assert (host.name, host.smallest) == ("host", 2)
    assert (rack.name, rack.smallest, rack.minimal) == ("rack", 1, (("r",),))


def test_a_topology_of_another_number_of_ranks_is_of_another_launch():
    with pytest.raises(ContradictionError, match="places 3 ranks, and the job has 4: it is of another launch"):
        audited(held(STEP), topology=placed("a", "b", "c"))


@pytest.mark.parametrize(("losses", "most", "chosen"), [(1, 3, 0), (3, 3, 4), (4, 4, 1)])
def test_losses_of_a_number_that_was_asked_for_are_listed(losses, most, chosen):
    made = audited(held(STEP, (0, 1)), losses=losses)
    assert [one.count for one in made.levels[0].losses] == list(range(1, most + 1))
    assert len(made.pairs) == 6
    assert len(made.chosen) == chosen


def test_bytes_come_from_the_next_rank_of_the_group_that_is_left():
    groups = {rank: (rank % 2, rank % 2 + 2) for rank in range(4)}
    topology = placed("a", "a", "b", "b")
    (level,) = audited(held(STEP, (0, 2), groups=groups), topology=topology, bandwidth=50.0).levels
    assert [(one.bytes, one.sources, one.seconds) for one in level.singles] == [
        (200, (Giver(host="b", bytes=200),), 4.0),
        (200, (Giver(host="a", bytes=200),), 4.0),
    ]


def test_a_rank_without_a_slice_needs_one_whatever_is_lost():
    groups = dict.fromkeys(range(4), (0, 1, 2))
    (level,) = audited(held(STEP, groups=groups, missing=(3,))).levels
    assert [one.bytes for one in level.singles] == [200, 200, 200, 100]


def test_parts_of_a_slice_come_from_few_ranks():
    kind = BlockKind(stage=0, names=("w",), cut="", source="the test")
    parts = {0: [HeldBlock(kind=kind, holders=ranks, bytes=50) for ranks in ((0, 1, 2), (0, 2))]}
    (level,) = audited(held(STEP, parts=parts)).levels
    assert level.singles[0].sources == (Giver(host="2", bytes=100),)


@pytest.mark.parametrize(("ranks", "listed"), [(3, 3), (64, 2016), (65, 1)])
def test_every_pair_is_listed_or_of_many_those_that_are_fatal(ranks, listed):
    made = audited(held(STEP, (0, 1), (2,), ranks=ranks, missing=(2,)), ranks=ranks)
    assert len(made.pairs) == listed
    fatal = [one for one in made.pairs if one.domains == ("0", "1")]
    assert [(one.step, one.reason) for one in fatal] == [(None, "loss [0, 1]")]
    assert len(made.levels[0].losses) == 3


@pytest.mark.parametrize(("ranks", "known"), [(440, True), (450, False)])
def test_of_many_ranks_that_need_a_slice_nothing_says_from_where(ranks, known):
    """Only the first rank has a slice, which all others copy."""
    groups = dict.fromkeys(range(ranks), (0,))
    (level,) = audited(held(STEP, groups=groups, ranks=ranks, missing=range(1, ranks)), ranks=ranks).levels
    assert [one.bytes for one in level.singles] == [100 * ranks, *[100 * (ranks - 1)] * (ranks - 1)]
    assert bool(level.singles[1].sources) == known


def test_fatal_losses_that_are_too_many_to_list_are_tried_as_far_as_they_are_few():
    """Of two steps with 150 fatal pairs each no loss of two ranks is fatal but that of a pair which both have."""
    pairs = [(2 * at, 2 * at + 1) for at in range(150)]
    shifted = [(2 * at + 1, 2 * at + 2) for at in range(149)]
    for last, count in (((298, 299), 1), ((0, 299), 0)):
        (level,) = audited(held(STEP, *pairs, ranks=300), held(OLDER, *shifted, last, ranks=300), ranks=300).levels
        assert [(one.count, one.fatal) for one in level.losses] == [(1, 0), (2, count), (3, None)]
        assert (level.smallest, level.smallest_count) == ((2, 1) if count else (None, None))
        assert (level.minimal, level.minimal_count) == ((), None)


def test_an_audit_says_so_where_replicas_that_differ_are_why_nothing_can_be_recovered():
    assert audited(held(STEP)).disputed is False
    assert audited().disputed is False


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([held(STEP)], "survives any 3 ranks; the smallest fatal loss has more than 3 ranks"),
        ([held(STEP, (2,))], "survives no rank; smallest fatal loss: 1 rank (1 of 4)"),
        ([held(STEP, (0, 1), (1, 2))], "survives any 1 rank; smallest fatal loss: 2 ranks (2 such pairs of 6)"),
        ([held(STEP, (0, 1, 2))], "survives any 2 ranks; smallest fatal loss: 3 ranks (1 such set of 4)"),
        ([], "not recoverable as it is, so that every loss is fatal: "),
    ],
)
def test_the_headline_has_what_is_survived_and_the_smallest_fatal_loss(steps, words):
    assert audited(*steps).headline.partition("; nothing says")[0] == words


class Asked:
    """Knows what a plan does after the losses of up to two ranks."""

    def __init__(self, **steps):
        self.steps = steps

    def most_lost(self, domains, *, assumed=False):
        return min(2, domains)

    def after(self, ranks, steps):
        step = self.steps.get("lost" + "".join(map(str, sorted(ranks))), STEP)
        return next((one for one in steps if one.step == step), None), "by the plan"


def test_the_plan_says_what_is_left_where_it_is_asked():
    """By the holders nothing is fatal but the loss of three."""
    steps = [held(STEP, (1, 2, 3)), held(OLDER, (1, 2, 3))]
    (level,) = audited(*steps, tree=Asked(lost01=None, lost02=OLDER, lost3=OLDER)).levels
    assert [one.step for one in level.singles] == [STEP, STEP, STEP, OLDER]
    assert [(one.count, one.fatal, one.newest) for one in level.losses] == [(1, 0, 3), (2, 1, 4), (3, 3, 0)]
    assert (level.smallest, level.smallest_count, level.minimal) == (2, 1, (("0", "1"), ("1", "2", "3")))
    assert [one.reason for one in level.singles] == ["", "", "", "by the plan"]


def test_the_holders_of_blocks_give_the_reason_where_they_know_one():
    (level,) = audited(held(STEP, (3,)), held(OLDER), tree=Asked(lost3=OLDER)).levels
    assert [one.reason for one in level.singles] == ["", "", "", "loss [3]"]


def test_losses_of_more_than_are_asked_about_keep_the_newest_step_where_each_part_of_them_does():
    (level,) = audited(held(STEP, (1, 2, 3)), tree=Asked()).levels
    assert [(one.count, one.fatal, one.newest) for one in level.losses] == [(1, 0, 4), (2, 0, 6), (3, 1, 3)]


def test_blocks_of_several_stages_that_are_cut_alike_are_one_kind():
    """Of the embedding there are two copies on one host, of weights two on two hosts, of the norm one each."""
    kinds = {
        name: BlockKind(stage=stage, names=(name, f"{name}.bias"), cut=cut, source=f"strategy/{stage}.ckpt")
        for name, stage, cut in (
            ("embedding", 0, "rows"),
            ("w0", 0, "columns"),
            ("w1", 1, "columns"),
            ("norm", 1, "none"),
        )
    }
    blocks = [
        HeldBlock(kind=kinds[name], holders=holders, bytes=size)
        for name, holders, size in (
            ("embedding", (0, 1), 30),
            ("w0", (0, 2), 10),
            ("w1", (4, 6), 11),
            ("norm", (4,), 2),
            ("norm", (6,), 3),
        )
    ]
    level = Level.of_topology(placed("a", "a", "b", "b", "c", "c", "d", "d"), 0)
    found = block_classes(replace(held(STEP, ranks=8), blocks=tuple(blocks)), level)
    assert [
        (one.names, one.stage, one.blocks, one.bytes, one.copies, one.hosts, one.single_copy_bytes) for one in found
    ] == [
        (("norm", "norm.bias"), 1, 2, 5, (1, 1), (1, 1), 5),
        (("embedding", "embedding.bias"), 0, 1, 30, (2, 2), (1, 1), 0),
        (("w0", "w0.bias", "w1", "w1.bias"), None, 2, 21, (2, 2), (2, 2), 0),
    ]
    made = audited(replace(held(STEP, ranks=8), blocks=tuple(blocks)), ranks=8)
    assert made.single_copy_bytes == 5
    unknown = HeldBlock(kind=kinds["norm"], holders=(7,), bytes=None)
    assert audited(replace(held(STEP, ranks=8), blocks=(*blocks, unknown)), ranks=8).single_copy_bytes is None


def test_whole_slices_are_one_kind_whose_source_is_named_where_it_is_one():
    groups = {name: BlockKind(stage=0, names=(), cut="", source=name) for name in ("x", "y")}
    one = HeldBlock(kind=groups["x"], holders=(0, 1), bytes=8)
    level = Level.of_topology(placed("a", "b", "c", "d"), 0)
    for blocks in ((one,), (one, HeldBlock(kind=groups["y"], holders=(2, 3), bytes=8))):
        (found,) = block_classes(replace(held(STEP), blocks=blocks), level)
        assert (found.stage, found.names, found.blocks, found.parameters) == (None, (), len(blocks), 0)


@pytest.mark.parametrize("seed", range(40))
def test_no_loss_keeps_the_newest_step_that_leaves_none(seed):
    """Losses of one and two ranks are asked about, those of three and four are counted by what is known."""
    source = Random(seed)
    ranks = [combinations(range(4), count) for count in (1, 2, 3)]
    losses = [loss for sizes in ranks for loss in sizes]
    steps = [held(step, *source.sample(losses, 2)) for step in (STEP, OLDER)]
    asked = {"lost" + "".join(map(str, loss)): source.choice((STEP, OLDER, None)) for loss in losses if len(loss) < 3}
    (level,) = audited(*steps, tree=Asked(**asked), losses=4).levels
    assert [one.count for one in level.losses] == [1, 2, 3, 4]
    assert all(one.fatal + one.newest <= one.possible for one in level.losses)
    for one in level.losses[:2]:
        after = [asked["lost" + "".join(map(str, loss))] for loss in combinations(range(4), one.count)]
        assert (one.fatal, one.newest) == (after.count(None), after.count(STEP))
    for lost in (3, 4):
        worst = [worst_within(loss, asked, steps) for loss in combinations(range(4), lost)]
        one = level.losses[lost - 1]
        assert (one.fatal, one.newest) == (worst.count(None), worst.count(STEP))


def worst_within(loss, asked, steps):
    """Return the worst that is left after losses within a loss: by the plan of one or two ranks, else by holders."""
    parts = [part for count in (1, 2, 3, 4) for part in combinations(loss, count)]
    left = {asked["lost" + "".join(map(str, part))] for part in parts if len(part) < 3}
    for tried, outcome in ((steps[:1], OLDER), (steps, None)):
        gone = [set(part) for part in parts if all(any(one <= set(part) for one in step.family) for step in tried)]
        if any(len(part) > 2 and not any(other < part for other in gone) for part in gone):
            left.add(outcome)
    return None if None in left else min(left)
