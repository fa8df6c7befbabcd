"""Layouts of a stage, put together from strategy files."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import cells_of, region_of
from ms_recover.planning.claims.stages import Stages, find_stages
from tests.support.inventories import slice_file
from tests.unit.planning.test_contents import backed

BY_HAND = {"split_shape": (5, 3), "indices_offset": (0, 5)}


def stage(*layouts):
    file = StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, tuple(layouts)), "digest")
    return find_stages([file], 4, {}).layouts[0]


def rows(name, **more):
    return Layout(name, (2, 2), ((0,), ()), **more)


def test_states_of_an_embedding_that_is_cut_by_hand_have_its_regions():
    found = stage(rows("words", **BY_HAND), rows("moment1.words"), rows("other"), rows("moment1.other"))
    for name in ("words", "moment1.words"):
        layout = found[name]
        regions = [
            region_of(layout, cell, (count, 4)) for cell, count in zip(cells_of(layout, range(2)), (5, 3), strict=True)
        ]
        assert regions == [((0, 5), (0, 4)), ((5, 8), (0, 4))]
    assert found["moment1.other"] == rows("moment1.other")


def test_states_of_an_embedding_that_is_cut_by_field_have_its_field():
    found = stage(rows("words", field=3), rows("moment1.words"), rows("moment2.words", **BY_HAND))
    assert found["moment1.words"].field == 3
    assert found["moment2.words"] == rows("moment2.words", **BY_HAND)


def test_a_state_that_is_cut_otherwise_keeps_its_layout():
    whole = Layout("moment1.words", (2, 2), ((), ()))
    assert stage(rows("words", **BY_HAND), whole)["moment1.words"] == whole


def files(*stages):
    """Return strategy files of the ranks 0, 1, ... of one stage of four, each by itself of a stage."""
    cut = tuple(rows(name) for name in ("words", "other"))
    return [
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((stage,), 1, cut), "digest")
        for rank, stage in enumerate(stages)
    ]


def test_one_file_of_another_stage_among_many_is_passed_over():
    assert find_stages(files(0, 0, 0, 1), 4, {}).problem is None


def test_where_one_in_three_files_says_otherwise_none_is_used():
    problem = find_stages(files(0, 0, 1), 4, {}).problem
    assert problem is not None
    assert "ckpt_dir2/strategy.ckpt is of another stage" in problem


@pytest.mark.parametrize("odd", range(4))
def test_one_file_of_other_cuts_among_many_is_passed_over(odd):
    other = Strategy((0,), 1, (Layout("words", (4,), ((0,),)),))
    four = [replace(file, strategy=other) if file.rank == odd else file for file in files(0, 0, 0, 0)]
    found = find_stages(four, 4, {})
    assert (found.problem, sorted(found.layouts[0])) == (None, ["other", "words"])
    assert found.layouts[0]["words"].device_matrix == (2, 2)
    assert found.paths[0] == f"ckpt_dir{1 if odd == 0 else 0}/strategy.ckpt"
    three = [file for file in four if file.rank != (odd + 1) % 4]
    assert "cut parameters differently" in find_stages(three, 4, {}).problem


def test_a_file_that_no_manifest_of_its_stage_names_is_not_used_where_they_name_another():
    of_stages = [
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // 4,), 1, (rows("words"),)), f"file {rank}")
        for rank in (0, 4)
    ]
    assert sorted(find_stages(of_stages, 8, {5: ["file 4"]}).layouts) == [0, 1]
    assert sorted(find_stages(of_stages, 8, {5: ["another"]}).layouts) == [0]
    assert sorted(find_stages(of_stages, 8, {2: ["another", "file 0"], 7: ["another"]}).layouts) == [0]


@pytest.mark.parametrize(("axes", "alike"), [((0, 1), ()), ((0,), (0, 1, 2, 3)), ((), (0, 1, 2, 3))])
def test_ranks_are_replicated_where_another_one_holds_the_same_part(axes, alike):
    assert Stages(4, {0: {"w": Layout("w", (2, 2), (axes,))}}, {}).replicated == frozenset(alike)


@pytest.mark.parametrize(("stating", "kept"), [((), (0, 1)), ((0,), (0, 1)), ((0, 1), (0,)), ((0, 1, 2), (0,))])
def test_a_strategy_file_that_no_manifest_names_counts_until_half_of_the_ranks_state_another(stating, kept):
    """Of two stages of two ranks; the manifests state the file of the first stage."""
    found = find_stages(
        [
            StrategyFile(2 * number, "strategy.ckpt", Strategy((number,), 1, (Layout("w", (2,), ((0,),)),)), digest)
            for number, digest in enumerate(("named", "other"))
        ],
        4,
        {rank: ["named"] for rank in stating},
    )
    assert found.problem is None
    assert tuple(found.layouts) == kept


@pytest.mark.parametrize(
    ("flat", "nested", "same"),
    [
        (((0,), ()), ((0,), ()), True),
        (((), (0,)), ((0,), ()), False),
        (((1,), ()), ((0,), ()), False),
        (((1,), (0,)), ((1, 0),), True),
        (((0,), (1,)), ((1, 0),), False),
        (((1,), (0,), ()), ((1, 0), ()), True),
    ],
)
def test_a_strategy_file_of_the_json_form_flattens_nested_dimensions(flat, nested, same):
    json = Layout("w", (2, 2), flat, tensor_shape=(2,) * len(flat))
    found = find_stages(
        [
            StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((0,), 1, (layout,)), "digest")
            for rank, layout in enumerate((json, Layout("w", (2, 2), nested)))
        ],
        4,
        {},
    )
    assert (found.problem is None) == same


@pytest.mark.parametrize(("misplaced", "named"), [("other", True), ("unknown", False)])
def test_layouts_name_all_parameters_of_a_stage_where_a_slice_of_another_stage_lies(misplaced, named):
    both = Stages(2, {0: {"words": rows("words")}, 1: {"other": rows("other")}}, {})
    lists = {0: "words", 1: misplaced, 2: "other", 3: "other"}
    slices = [slice_file(rank, names=(name,)) for rank, name in lists.items()]
    assert both.names_all(0, slices) == named
    assert both.names_all(1, slices)


def test_ranks_of_a_stage_without_layouts_are_of_no_family():
    both = Stages(2, {0: {}, 1: {"words": Layout("words", (2,), ((),))}}, {})
    assert both.families == {2: (2, 3), 3: (2, 3)}
    assert both.replicated == {2, 3}
    assert both.alike(2, 3)
    assert not both.alike(0, 1)


@pytest.mark.parametrize(
    ("axes", "ranks"),
    [
        ({"words": (0, 1)}, ()),
        ({"words": (0,)}, (0, 1, 2, 3)),
        ({"words": (0, 1), "other": (0,)}, (0, 1, 2, 3)),
        ({}, ()),
    ],
)
def test_ranks_share_a_part_where_another_one_holds_it(axes, ranks):
    layouts = {name: Layout(name, (2, 2), (over,)) for name, over in axes.items()}
    assert Stages(4, {0: layouts}, {}).sharing == set(ranks)


@pytest.mark.parametrize(
    ("digest", "covered", "named"), [("this", True, True), ("another", False, False), (None, True, False)]
)
def test_a_manifest_says_under_which_strategy_file_a_slice_was_saved(digest, covered, named):
    known = Stages(2, {}, {}, digests={0: frozenset({"this", "that"})})
    file = backed(slice_file(1), "a", strategy_digest=digest)
    assert (known.covers(file), known.is_named_by(file)) == (covered, named)
    sealed = backed(slice_file(1), "a", origin="sealed by structure", strategy_digest=digest)
    assert (known.covers(sealed), known.is_named_by(sealed)) == (covered, False)
    assert (known.covers(slice_file(1)), known.is_named_by(slice_file(1))) == (True, False)
    other = backed(slice_file(2), "a", strategy_digest=digest)
    assert (known.covers(other), known.is_named_by(other)) == (True, False)


def test_why_it_is_not_known_how_a_rank_is_cut():
    known = Stages(2, {0: {}}, {0: "strategy.ckpt"})
    assert [known.why_unknown(rank) for rank in (0, 1)] == [None, None]
    for rank in (2, 3):
        assert known.why_unknown(rank) == "no strategy file of its stage (ranks 2 to 3) survived"
    assert Stages(problem="torn").why_unknown(0) == "torn"


def test_a_strategy_file_of_another_world_among_many_is_passed_over():
    """One of four states stages of two ranks; there are two stages of four."""
    named = [*files(0, 0, 0), StrategyFile(5, "ckpt_dir5/strategy.ckpt", files(1)[0].strategy, "digest")]
    small = Strategy((2,), 1, (Layout("words", (2,), ((0,),)),))
    for odd in range(3):
        found = find_stages([replace(file, strategy=small) if file.rank == odd else file for file in named], 8, {})
        assert (found.problem, found.devices, sorted(found.layouts)) == (None, 4, [0, 1])
        assert found.layouts[0]["words"].device_matrix == (2, 2)
    two = [replace(file, strategy=small) if file.rank < 2 else file for file in named]
    assert "state 2 and 4 ranks in a stage, which does not fit 8 ranks" in find_stages(two, 8, {}).problem
    assert "state 4 ranks in a stage, which does not fit 6 ranks" in find_stages(named, 6, {}).problem
