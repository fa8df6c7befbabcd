"""Law: what a group of many ranks costs grows with their number, not with its square."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.groups import GroupInfo, KnownLists, RankList, ascending, each_once, rank_list
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.verbs.audit import audit_planned
from tests.support.histories import saved
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.support.plans import make_planned


class Rank(int):
    """A rank that counts how often one is hashed or compared."""

    used = 0

    def __hash__(self):
        Rank.used += 1
        return int(self)

    def __eq__(self, other):
        Rank.used += 1
        return int(self) == int(other)

    def __lt__(self, other):
        Rank.used += 1
        return int(self) < int(other)


def uses(ranks, *, steps, manifests, read):
    """Return how often the ranks of one group are looked at while a tree that lost one is planned and audited."""
    group = KnownLists().share(tuple(map(Rank, range(ranks))))
    slices = [slice_file(rank, step) for step in steps for rank in range(1, ranks)]
    if manifests:
        groups = {rank: (rank,) for rank in range(ranks)}
        made = [saved(file.rank, file.step, lambda *of: "d", groups=groups) for file in slices]
        slices = [replace(file, manifest=replace(file.manifest, group=group)) for file in made]
    read_as = slices[0].manifest.digests if manifests else Digests("d", ("d",) * len(slices[0].parameters))
    contents = Contents({file.path: read_as for file in slices})
    inventory = tree(slices, {rank: (rank,) for rank in range(1, ranks)})
    lists = tuple(replace(file, info=GroupInfo(group)) for file in inventory.group_files)
    inventory, options = replace(inventory, group_files=lists), PlanOptions(quick=not read)
    Rank.used = 0
    planned = make_planned(inventory, options, contents if read else NOTHING_READ)
    assert [action.rank for action in planned.plan.actions] == [0]
    audit_planned(planned)
    return Rank.used


@pytest.mark.parametrize("read", [False, True], ids=["headers", "contents"])
@pytest.mark.parametrize("manifests", [False, True], ids=["no manifests", "manifests"])
@pytest.mark.parametrize("steps", [(STEP,), (OLDER, STEP)], ids=["one step", "two steps"])
def test_a_group_of_twice_as_many_ranks_costs_twice_as_much(steps, manifests, read):
    some, twice = (uses(ranks, steps=steps, manifests=manifests, read=read) for ranks in (300, 600))
    assert twice < 2.5 * some


RANKS = st.lists(st.integers(0, 300), min_size=0, max_size=150)


@given(RANKS, RANKS)
def test_a_rank_list_is_the_tuple_of_its_ranks(one, other):
    for left, right in ((one, other), (one, one)):
        a, b = RankList(left), RankList(right)
        assert (a == b, a != b, a < b) == (left == right, left != right, left < right)
        assert a == tuple(left)
        assert tuple(left) == a
        assert hash(a) == hash(tuple(left))
        assert (a == tuple(right), tuple(right) != a) == (left == right, left != right)
        assert all((rank in a) == (rank in left) for rank in (*left[:5], *right[:5], -1, 5.0, "5", [5]))
        assert {a: 1}.get(tuple(right), 2) == (1 if left == right else 2)
        assert a != left
        assert a != 5


@given(RANKS)
def test_a_group_is_ordered_and_freed_of_repetitions(ranks):
    for one in (tuple(ranks), rank_list(ranks), RankList(ranks)):
        assert ascending(one) == tuple(sorted(ranks)) == GroupInfo(one).sorted_ranks
        assert each_once(one) == tuple(sorted(set(ranks)))
        assert ascending(ascending(one)) == ascending(one)


def test_a_known_list_is_one_object_and_travels_as_its_ranks():
    known = KnownLists()
    one, other = known.share(tuple(range(100))), known.share(tuple(range(100)))
    assert one is other
    hash(one), 5 in one
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert type(again) is RankList
    assert not vars(again)
    few = (1, 2)
    assert known.share(few) is few
