"""The operator's word: what it adds, what contradicts it, and what equal contents suggest."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.provenance import Provenance
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.verbs.session import Session
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import backed, digests

PAIRS = (frozenset({0, 2}), frozenset({1, 3}))
WORD = {"groups": PAIRS}


def one_flipped(value):
    """Return the digests of contents that differ from `value` in one of four parameters."""
    right = digests(value)
    return Digests(f"file:{value}!", (*right.parameters[:3], "p:!"))


def planned(slices, told, lists=None, strategies=(), **options):
    """Plan as `api.plan` does, with `told` as the contents of slices by rank and step."""
    inventory = replace(tree(slices, lists or {}), strategy_files=tuple(strategies))
    values = {(rank, STEP) if isinstance(rank, int) else rank: value for rank, value in told.items()}
    read = []

    def look(unread):
        read.extend((file.rank, file.step) for file in unread)
        found = {file.path: values[file.rank, file.step] for file in unread}
        return Contents({path: digests(value) if isinstance(value, str) else value for path, value in found.items()})

    return Session(inventory, PlanOptions(**options), read=look).planned.plan, read


THREE = [slice_file(rank) for rank in range(3)]


def test_a_lost_rank_is_copied_from_the_rank_that_the_operator_names():
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, **WORD)
    (action,) = plan.actions
    assert (action.rank, action.source_rank, action.evidence, action.group) == (3, 1, "operator", (1, 3))
    assert "by the operator's word --group 1,3" in action.reason
    assert plan.world_size == 4
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, axes=Axes.parse("dp=2,mp=2"))
    assert [action.source_rank for action in plan.actions] == [1]
    assert not plan.world_size_guessed


def test_a_slice_that_is_kept_is_judged_by_its_contents_and_not_by_the_word():
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, **WORD)
    assert [rank.evidence for rank in plan.ranks] == ["vote", "structure", "vote", "operator"]


def test_a_word_that_contents_contradict_is_refused():
    slices = [slice_file(rank) for rank in range(4)]
    with pytest.raises(
        ContradictionError, match="--group 0,1 is contradicted by contents: ranks 0 and 1 hold"
    ) as error:
        planned(slices, dict(enumerate("abab")), groups=(frozenset({0, 1}), frozenset({2, 3})))
    assert "4 of 4 parameters, such as 'a', 'b', 'moment1.a', 'global_step', in ckpt_dir0/test-2_8.ckpt" in str(
        error.value
    )


def test_a_majority_outvotes_nobody_who_differs_as_another_part_does():
    """Of three that the operator calls the same, two are and one is another part."""
    slices = [slice_file(rank) for rank in range(3)]
    with pytest.raises(ContradictionError, match="ranks 0 and 1 hold different contents"):
        planned(slices, {0: "a", 1: "b", 2: "a"}, groups=(frozenset({0, 1, 2}),))


def test_one_damaged_parameter_is_no_contradiction():
    slices = [slice_file(rank) for rank in range(3)]
    plan, _ = planned(slices, {0: "a", 1: one_flipped("a"), 2: "a"}, groups=(frozenset({0, 1, 2}),))
    assert [(action.rank, action.evidence) for action in plan.actions] == [(1, "operator")]
    plan, _ = planned(slices[:2], {0: "a", 1: one_flipped("a")}, groups=(frozenset({0, 1}),))
    assert not plan.actions
    assert plan.disagreements


def test_one_parameter_in_two_groups_is_a_contradiction():
    slices = [slice_file(rank) for rank in range(4)]
    told = {0: "a", 1: one_flipped("a"), 2: "b", 3: one_flipped("b")}
    with pytest.raises(ContradictionError, match="1 of 4 parameters"):
        planned(slices, told, groups=(frozenset({0, 1}), frozenset({2, 3})))


def test_ranks_that_agree_at_another_step_are_not_contradicted_by_damage_at_one():
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    told = {(rank, OLDER): "old ab"[4 + rank % 2] for rank in range(4)}
    told |= {(0, STEP): "x", (1, STEP): "d", (2, STEP): "c", (3, STEP): "d"}
    plan, read = planned(slices, told, **WORD)
    assert plan.disagreements
    assert not plan.actions
    assert (0, OLDER) in read


def test_the_word_is_compared_with_older_steps_where_the_newest_has_nothing_to_compare():
    slices = [slice_file(rank, OLDER) for rank in range(4)] + [slice_file(0), slice_file(1), slice_file(3)]
    told = {(rank, OLDER): "abcb"[rank] for rank in range(4)} | {0: "c", 1: "d", 3: "d"}
    with pytest.raises(ContradictionError, match=r"ranks 0 and 2 .* in ckpt_dir0/test-1_8.ckpt"):
        planned(slices, told, **WORD)


def test_lost_wins_over_a_contradiction():
    slices = [slice_file(rank) for rank in range(4)]
    plan, _ = planned(slices, dict(enumerate("abxb")), lost=frozenset({2}), **WORD)
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(2, 0)]


def test_other_parameters_contradict_the_word():
    slices = [slice_file(0), slice_file(1), slice_file(2, names=("c", "d", "moment1.a", "global_step"))]
    with pytest.raises(ContradictionError, match=r"at step 2_8: .* 'a' is only in the first"):
        planned(slices, {}, groups=(frozenset({0, 2}),))


def test_other_shapes_are_no_damage_where_the_operator_may_be_mistaken():
    """Ranks 0 and 2 have their shape at two steps; rank 1 has its own at one."""
    slices = [slice_file(rank, step) for rank in (0, 2) for step in (OLDER, STEP)] + [slice_file(1, shape=(2, 2))]
    with pytest.raises(ContradictionError, match=r"Float32\[4\] in the"):
        planned(slices, {}, groups=(frozenset({0, 1, 2}),))


def test_a_renamed_slice_is_named_and_no_contradiction():
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    told = {(rank, OLDER): "ab"[rank % 2] for rank in range(4)}
    told |= {(0, STEP): "c", (1, STEP): "d", (2, STEP): "a", (3, STEP): "d"}
    plan, _ = planned(slices, told, **WORD)
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(2, 0)]
    assert "was renamed" in plan.ranks[2].reason


def test_ranks_that_the_word_leaves_out_are_not_called_misplaced():
    slices = [slice_file(rank) for rank in range(4)]
    plan, _ = planned(slices, dict.fromkeys(range(4), "a"), groups=(frozenset({0, 2}),))
    assert [rank.verdict for rank in plan.ranks] == ["keep"] * 4


def test_rank_lists_go_before_the_word_and_refuse_it():
    slices = [slice_file(rank) for rank in (0, 1, 2)]
    lists = {0: [0, 2], 1: [1, 3]}
    plan, _ = planned(slices, {0: "a", 1: "b", 2: "a"}, lists, **WORD)
    assert [(action.rank, action.evidence) for action in plan.actions] == [(3, "structure")]
    with pytest.raises(ContradictionError, match=r"--group 0,1 says .* ranks 0 and 1 .* ckpt_dir0/group_info.pb lists"):
        planned(slices, {}, lists, groups=(frozenset({0, 1}),))
    with pytest.raises(ContradictionError, match="ranks 0 and 2 hold different slices"):
        planned(slices, {}, lists, axes=Axes.parse("mp=4"))
    quiet, _ = planned(slices, {0: "a", 1: "b", 2: "a"}, lists, axes=Axes.parse("dp=4"), optimizer_shards=-1)
    assert quiet.recoverable  # with shards the word names only what is certain


def test_a_manifest_that_names_its_own_rank_alone_says_nothing_against_the_word():
    lone = [backed(file, "ab"[file.rank % 2], group=(file.rank,)) for file in THREE]
    plan, _ = planned(lone, {0: "a", 1: "b", 2: "a"}, **WORD)
    assert [(action.rank, action.source_rank, action.evidence) for action in plan.actions] == [(3, 1, "operator")]
    assert plan.ranks[0].evidence == "manifest"


def test_manifests_that_name_other_groups_refuse_the_word():
    stated = [backed(file, "a") for file in THREE]
    with pytest.raises(ContradictionError, match=r"test-2_8.ckpt.manifest.json lists \[0, 2\]"):
        planned(stated, {}, groups=(frozenset({0, 1}),))


def test_a_later_word_goes_before_an_earlier_one():
    """Rank 2 was copied from rank 1 by mistake."""
    wrong = Provenance(kind="copied", evidence="operator")
    copied = backed(slice_file(2), "b", group=(1, 2), provenance=wrong)
    slices = [slice_file(0), slice_file(1), copied, slice_file(3)]
    told = {0: "a", 1: "b", 2: "b", 3: "b"}
    with pytest.raises(ContradictionError, match="ranks 0 and 2"):
        planned(slices, told, **WORD)
    plan, _ = planned(slices, told, lost=frozenset({2}), **WORD)
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(2, 0)]


def layouts(*cut):
    names = [parameter.name for parameter in THREE[0].parameters]
    told = tuple(Layout(name, (2, 2), ((0,) if name in cut else (),)) for name in names)
    return [StrategyFile(0, "strategy.ckpt", Strategy((0,), 1, told))]


def test_layouts_go_before_the_word_and_refuse_it():
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, strategies=layouts("a", "b", "moment1.a", "global_step"), **WORD)
    assert [(action.rank, action.evidence) for action in plan.actions] == [(3, "layout")]
    with pytest.raises(ContradictionError, match=r"--group 0,1 is contradicted: .* different parts of 'b' by strategy"):
        planned(THREE, {}, strategies=layouts("b"), groups=(frozenset({0, 1}),))
    with pytest.raises(ContradictionError, match="ranks 0 and 2 hold different slices by the operator's word"):
        planned(THREE, {}, strategies=layouts("b"), axes=Axes.parse("mp=4"))


def test_where_the_strategy_file_is_of_another_network_the_word_names_the_source():
    """It names one of four parameters."""
    one = layouts("a")[0]
    other = replace(one, strategy=Strategy((0,), 1, one.strategy.layouts[:1]))
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, strategies=[other], **WORD)
    assert [(action.rank, action.source_rank, action.evidence) for action in plan.actions] == [(3, 1, "operator")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"groups": (frozenset({0, 2}), frozenset({2, 3}))}, "rank 2 is in two groups"),
        ({"groups": (frozenset({0}),)}, "--group 0 names one rank"),
        ({"groups": (frozenset({0, -1}),)}, "ranks begin with 0"),
        ({"axes": Axes.parse("dp=9999999")}, "dp 9999999 = 9999999 ranks, but there are 3"),
        ({"groups": (frozenset({0, 9}),)}, "--group names rank 9, but there are 3, by the ranks that have files"),
        ({"groups": (frozenset({0, 9}),), "world_size": 4}, "there are 4, as given"),
        ({"axes": Axes.parse("dp=2,mp=3")}, "dp 2 x mp 3 = 6 ranks, but there are 3"),
        ({"axes": Axes.parse("dp=2"), "world_size": 4}, "dp 2 = 2 ranks, but there are 4, as given"),
        ({"axes": Axes.parse("dp=4,ep=2"), "world_size": 16}, "dp 4 x ep 2 = 4 or 8 ranks"),
        ({"axes": Axes.parse("dp=2,mp=2"), "groups": PAIRS}, "give one of them"),
        ({"optimizer_shards": 2, "groups": PAIRS}, "--optimizer-shards goes with --axes"),
        ({"order": ("dp", "tp")}, "--order goes with --axes"),
        ({"axes": Axes.parse("dp=3"), "optimizer_shards": -2}, "give their number, or -1"),
    ],
)
def test_words_that_make_no_sense_are_refused(options, why):
    with pytest.raises(UsageError, match=why):
        planned(THREE, {}, **options)


def test_a_word_adds_no_ranks_to_those_that_contents_show_to_be_all():
    slices = [slice_file(rank) for rank in range(4)]
    with pytest.raises(UsageError, match="there are 4 by the ranks that have files, and contents divide these evenly"):
        planned(slices, dict(enumerate("abab")), axes=Axes.parse("dp=2,mp=3"))


def test_a_rank_that_no_rank_is_sure_to_share_with_is_unrecoverable_and_says_so():
    plan, _ = planned(THREE, {}, axes=Axes.parse("dp=4"), optimizer_shards=-1, world_size=4)
    assert "by the operator's word --axes dp=4 --optimizer-shards -1: no other rank is sure" in plan.ranks[3].reason
    plan, _ = planned(THREE, {}, axes=Axes.parse("dp=4,ep=4"), world_size=4)
    assert "by which only ranks with the same experts are sure to hold the same: no other" in plan.ranks[3].reason
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, axes=Axes.parse("dp=4,ep=2"), world_size=4)
    assert [(action.rank, action.source_rank) for action in plan.actions] == [(3, 1)]
    assert "by which only ranks with the same experts are sure" in plan.actions[0].reason


BOTH = [slice_file(rank, step) for rank in range(3) for step in (OLDER, STEP)]


def of_equal_ranks(plan):
    """Return the hints of a plan without the one that asks for rank lists and strategy files."""
    return tuple(hint for hint in plan.hints if not hint.startswith("no usable rank list"))


def test_equal_survivors_are_named_with_the_option_that_accepts_them():
    told = {(rank, step): f"{step} {rank % 2}" for rank in range(3) for step in (OLDER, STEP)}
    plan, read = planned(BOTH, told, world_size=4)
    assert not plan.recoverable
    assert of_equal_ranks(plan) == (
        (
            "ranks 0 and 2 hold equal bytes at steps 2_8, 1_8, but no file says who holds the same slice; if rank 3 "
            "holds what rank 1 holds, accept it with: --group 0,2 --group 1,3"
        ),
    )
    assert read == [(0, STEP), (1, STEP), (2, STEP), (0, OLDER), (2, OLDER)]
    accepted, _ = planned(BOTH, told, world_size=4, **WORD)
    assert [(action.rank, action.source_rank) for action in accepted.actions] == [(3, 1)]


@pytest.mark.parametrize(
    ("survivors", "lost", "named"),
    [(4, 1, "ranks 0, 1, 2 and 3 hold"), (5, 1, "ranks 0, 1, 2, 3 and 1 more hold"), (12, 4, ""), (12, 5, "")],
)
def test_of_many_equal_survivors_and_lost_ranks_some_are_named(survivors, lost, named):
    slices = [slice_file(rank) for rank in range(survivors)]
    plan, _ = planned(slices, dict.fromkeys(range(survivors), "a"), world_size=survivors + lost)
    (hint,) = of_equal_ranks(plan)
    assert hint.startswith(named)
    assert hint.count("holds what rank 0 holds") == min(lost, 4)
    assert (" and so on" in hint) == (lost > 4)


def test_survivors_that_differ_at_some_step_are_not_called_equal():
    told = {(rank, step): f"{step} {rank % 2}" for rank in range(3) for step in (OLDER, STEP)} | {(2, OLDER): "x"}
    plan, _ = planned(BOTH, told, world_size=4)
    assert of_equal_ranks(plan) == ()


def test_nothing_older_is_read_where_no_survivors_are_equal():
    plan, read = planned(BOTH, {(rank, STEP): f"{rank}" for rank in range(3)}, world_size=4)
    assert of_equal_ranks(plan) == ()
    assert {step for _, step in read} == {STEP}


def test_equal_survivors_of_no_regular_division_are_only_named():
    slices = [slice_file(rank) for rank in range(5)]
    plan, _ = planned(slices, dict(enumerate("abcdb")), world_size=6)
    (hint,) = of_equal_ranks(plan)
    assert hint.startswith("ranks 1 and 4 hold equal bytes at step 2_8")
    assert hint.endswith("say who holds the same as rank 5 with --group or --axes")


def test_two_divisions_that_fit_suggest_none():
    """Ranks 4 to 7 are gone: they may be a second stage, or more replicas."""
    slices = [slice_file(rank) for rank in range(4)]
    plan, _ = planned(slices, dict(enumerate("abab")), world_size=8)
    (hint,) = of_equal_ranks(plan)
    assert hint.startswith("ranks 0 and 2; 1 and 3 hold equal bytes")
    assert hint.endswith("say who holds the same as rank 4 with --group or --axes")


def test_of_many_groups_the_axes_are_suggested():
    slices = [slice_file(rank) for rank in range(31)]
    plan, _ = planned(slices, {rank: f"{rank % 4 + rank // 16 * 4}" for rank in range(31)}, world_size=32)
    (hint,) = of_equal_ranks(plan)
    assert hint.endswith("--group 19,23,27,31")
    slices = [slice_file(rank) for rank in range(63)]
    plan, _ = planned(slices, {rank: f"{rank % 16}" for rank in range(63)}, world_size=64)
    assert of_equal_ranks(plan)[0].endswith("accept it with: --axes tp=16,dp=4")


def test_a_last_rank_that_left_no_trace_is_thought_of():
    told = {(rank, step): f"{step} {rank % 2}" for rank in range(3) for step in (OLDER, STEP)}
    plan, _ = planned(BOTH, told)
    assert plan.world_size_guessed
    assert of_equal_ranks(plan)[0].endswith(
        "if rank 3 holds what rank 1 holds, accept it with: --group 0,2 --group 1,3"
    )
    slices = [slice_file(rank) for rank in range(6)]
    plan, _ = planned(slices, dict(enumerate("abcdab")))
    assert "if rank 6 holds what rank 2 holds and rank 7 holds what rank 3 holds" in of_equal_ranks(plan)[0]
    accepted, _ = planned(slices, dict(enumerate("abcdab")), axes=Axes.parse("dp=2,mp=4"))
    assert [(action.rank, action.source_rank) for action in accepted.actions] == [(6, 2), (7, 3)]


def test_in_a_tree_that_contents_show_to_be_whole_nothing_is_suggested_and_nothing_older_read():
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    plan, read = planned(slices, {(rank, STEP): "ab"[rank % 2] for rank in range(4)})
    assert of_equal_ranks(plan) == ()
    assert {step for _, step in read} == {STEP}
    plan, read = planned(slices, {}, world_size=4)
    assert read == []


def test_where_a_rank_list_speaks_nothing_is_suggested():
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, {0: [0], 1: [1], 2: [2]}, world_size=4)
    assert of_equal_ranks(plan) == ()


def test_copies_and_links_of_one_slice_are_no_witnesses():
    linked = [replace(file, inode=(1, 7)) if file.rank != 1 else file for file in THREE]
    plan, _ = planned(linked, {0: "a", 1: "b", 2: "a"}, world_size=4)
    assert of_equal_ranks(plan) == ()


def test_agreement_in_one_run_confirms_nothing_about_another():
    older = [slice_file(rank, OLDER, prefix="before") for rank in range(3)]
    slices = older + [slice_file(rank) for rank in range(3)]
    told = {(rank, OLDER): "aba"[rank] for rank in range(3)} | dict.fromkeys(range(3), "c")
    groups = (frozenset({0, 1, 2}),)
    plan, _ = planned(slices, told, groups=groups)
    assert plan.recoverable
    with pytest.raises(ContradictionError, match=r"in ckpt_dir0/before-1_8\.ckpt and"):
        planned(slices, told, groups=groups, step=OLDER)


@pytest.mark.parametrize(("known", "evidence"), [(True, "layout"), (False, "operator")])
def test_layouts_go_before_the_word_where_both_name_a_source(known, evidence):
    layouts = tuple(Layout(one.name, (2, 2), ((0,),)) for one in THREE[0].parameters)
    files = [StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts))] if known else []
    plan, _ = planned(THREE, {0: "a", 1: "b", 2: "a"}, strategies=files, **WORD)
    assert [(action.rank, action.evidence) for action in plan.actions] == [(3, evidence)]


def test_the_lists_of_slices_are_compared_at_the_newest_step_that_two_ranks_have():
    slices = [slice_file(0), slice_file(1), slice_file(0, OLDER)]
    slices.append(slice_file(2, OLDER, names=("c", "d", "moment1.a", "global_step")))
    with pytest.raises(ContradictionError, match=r"at step 1_8: .* 'a' is only in the first"):
        planned(slices, {}, groups=(frozenset({0, 2}),))
