"""Blocks in words, and who holds what where the slice of a rank is several files."""

from itertools import combinations
from random import Random

import pytest

from ms_recover.planning.audit.blocks import BlockKind, HeldBlock, StepHolders, block_text, join_parts
from tests.support.inventories import STEP


def block(*holders, names=("w",), size=8):
    return HeldBlock(kind=BlockKind(stage=0, names=names, cut="", source="x"), holders=holders, bytes=size)


def part(*fatal, ranks=4, **fields):
    """Return who holds what of one file of each rank where so many sets of ranks are fatal."""
    family = tuple(map(frozenset, fatal))
    made = {"blocks": (), "groups": {}, "sizes": {}, "parts": {}, "missing": frozenset(), **fields}
    why = {loss: f"{fields.get('name', 'a')} {sorted(loss)}" for loss in family}
    made.pop("name", None)
    return StepHolders(step=STEP, ranks=ranks, family=family, sure=family, why=why, **made)


@pytest.mark.parametrize(
    ("names", "holders", "words"),
    [
        (("w",), (3,), "w, which rank(s) 3 alone hold"),
        (("v", "w"), (0, 1, 2, 3), "v and 1 more, which rank(s) 0, 1, 2, 3 alone hold"),
        (("u", "v", "w"), (0, 1, 2, 3, 4), "u and 2 more, which rank(s) 0, 1, 2, 3 and 1 more alone hold"),
        ((), (0, 4), "the whole slice, which rank(s) 0, 4 alone hold"),
    ],
)
def test_a_block_in_a_few_words(names, holders, words):
    assert block_text(block(*holders, names=names)) == words


def is_fatal(family, loss):
    return any(members <= loss for members in family)


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_is_fatal_where_it_is_for_one_of_the_files(seed):
    source = Random(seed)
    losses = [loss for count in (1, 2, 3) for loss in combinations(range(4), count)]
    parts = [part(*source.sample(losses, 2), name=name) for name in "ab"]
    joined = join_parts(parts)
    for lost in (frozenset(loss) for count in range(5) for loss in combinations(range(4), count)):
        for family in ("family", "sure"):
            assert is_fatal(getattr(joined, family), lost) == any(is_fatal(getattr(one, family), lost) for one in parts)
    assert all(joined.why[loss] in (one.why.get(loss) for one in parts) for loss in joined.family)


def test_one_file_of_each_rank_is_left_as_it_is():
    one = part((0, 1))
    assert join_parts([one]) is one


def test_what_ranks_need_of_several_files():
    """Of the first file the ranks 0 and 1 have copies, and rank 2 has none; the second is composed of a block."""
    own, composed = block(2, names=("v",)), block(0, 1, 2, names=("m",), size=5)
    first = part(
        ranks=3, blocks=(own,), groups={0: (0, 1), 1: (0, 1), 2: (2,)}, sizes={0: 100, 1: 100, 2: 90}, parts={2: [own]}
    )
    second = part(ranks=3, blocks=(composed,), sizes={0: 10, 1: 10}, parts={rank: [composed] for rank in range(3)})
    joined = join_parts([first, second])
    assert (joined.ranks, joined.groups, joined.sizes) == (3, {}, {0: 110, 1: 110, 2: 90})
    assert joined.blocks == (own, composed)
    assert [[(one.kind.names, one.holders, one.bytes) for one in joined.parts[rank]] for rank in range(3)] == [
        [((), (0, 1), 100), (("m",), (0, 1, 2), 5)],
        [((), (0, 1), 100), (("m",), (0, 1, 2), 5)],
        [(("v",), (2,), 8), (("m",), (0, 1, 2), 5)],
    ]


@pytest.mark.parametrize("assumed", [False, True])
def test_what_one_file_lacks_or_assumes_the_slice_does(assumed):
    joined = join_parts([part(missing=frozenset({1})), part(missing=frozenset({2}), assumed=assumed)])
    assert (joined.missing, joined.assumed) == ({1, 2}, assumed)
