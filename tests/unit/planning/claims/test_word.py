"""The operator's word beside what rank lists and manifests say."""

import pytest

from ms_recover.errors import ContradictionError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.axes import Axes
from ms_recover.model.options import PlanOptions
from ms_recover.planning.claims.groups import GroupMap
from ms_recover.planning.claims.word import Word, add_word, find_word

OPTION = "--axes dp=2,mp=2"
WORD = {(0, 2): OPTION, (1, 3): OPTION}


def lists(*groups, path="group_info.pb"):
    members = {rank: group for group in groups for rank in group}
    return GroupMap(members, dict.fromkeys(members, path))


@pytest.mark.parametrize(
    ("groups", "complete", "members"),
    [
        (lists(), True, {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}),
        (lists((0, 2)), True, {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}),
        (lists((0, 2), (1, 3)), True, {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}),
        (lists((0, 2, 4)), False, {0: (0, 2, 4), 1: (1, 3), 2: (0, 2, 4), 3: (1, 3), 4: (0, 2, 4)}),
        (lists((0,), path=f"a.ckpt{MANIFEST_SUFFIX}"), True, {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}),
    ],
    ids=["nothing", "one alike", "all alike", "more than the word, which is not all", "a manifest without a list"],
)
def test_the_word_groups_the_ranks_that_nothing_else_does(groups, complete, members):
    found = add_word(Word(groups=WORD, complete=complete, limit="; a limit"), groups)
    assert found.members == members
    listed = {rank for rank in groups.members if groups.sources[rank] == "group_info.pb"}
    assert found.claimed == dict.fromkeys(set(range(4)) - listed, OPTION)
    assert all(found.sources[rank] == f"the operator's word {OPTION}; a limit" for rank in found.claimed)


@pytest.mark.parametrize(
    ("group", "complete", "words"),
    [
        ((0,), False, "ranks 0 and 2 hold the same slice, but group_info.pb lists [0] for rank 0"),
        ((2, 3), False, "ranks 2 and 0 hold the same slice, but group_info.pb lists [2, 3] for rank 2"),
        ((0, 2, 4), True, "ranks 0 and 4 hold different slices, but group_info.pb lists [0, 2, 4] for rank 0"),
        ((0, 1, 2), True, "ranks 0 and 1 hold different slices, but group_info.pb lists [0, 1, 2] for rank 0"),
    ],
)
def test_a_list_that_contradicts_the_word_is_named(group, complete, words):
    with pytest.raises(ContradictionError) as caught:
        add_word(Word(groups={(0, 2): OPTION}, complete=complete), lists(group))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text", "complete", "limited"),
    [
        ({"axes": "dp=2,tp=2"}, "--axes dp=2,tp=2", True, False),
        ({"axes": "dp=2,tp=2", "order": ("dp", "tp")}, "--axes dp=2,tp=2 --order dp,tp", True, False),
        ({"axes": "dp=4", "optimizer_shards": 2}, "--axes dp=4 --optimizer-shards 2", False, False),
        ({"axes": "dp=4", "optimizer_shards": 1}, "--axes dp=4 --optimizer-shards 1", True, False),
        ({"axes": "dp=4,ep=2"}, "--axes dp=4,ep=2", False, True),
    ],
)
def test_a_word_by_axes_is_named_as_the_operator_gave_it(options, text, complete, limited):
    word = find_word(PlanOptions(**{**options, "axes": Axes.parse(options["axes"])}), 4)
    assert set(word.groups.values()) == {text}
    assert sorted(rank for group in word.groups for rank in group) == [0, 1, 2, 3]
    assert (word.complete, bool(word.limit)) == (complete, limited)


def test_a_word_by_groups_names_each():
    word = find_word(PlanOptions(groups=(frozenset({2, 0}), frozenset({1, 3}))), 8)
    assert dict(word.groups) == {(0, 2): "--group 0,2", (1, 3): "--group 1,3"}
    assert not word.complete
