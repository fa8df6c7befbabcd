"""The number of ranks, from the evidence that survived."""

from dataclasses import replace
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.groups import RankGroup
from ms_recover.model.inventory import Inventory, Note, PartClaims, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.axes import count_ranks
from ms_recover.planning.tree.world_size import (
    BY_FILES,
    WorldSize,
    find_world_size,
    inside_world,
    outside_world,
    with_word,
)
from tests.support.inventories import OLDER, STEP, group_file, slice_file, tree
from tests.unit.planning.judging.test_votes import manifest

FIXTURES = Path(__file__).parents[3] / "data" / "fixtures"


def stated(rank, world_size, step=STEP):
    file = slice_file(rank, step)
    return replace(file, manifest=manifest(file, world_size=world_size))


def strategy(rank, devices, stages=()):
    layout = Layout("w", (devices,), ((0,),))
    return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy(tuple(stages), 1, (layout,)))


def with_strategies(ranks, *files, lists=()):
    return Inventory("/tree", tuple(ranks), tuple(slice_file(rank) for rank in ranks), tuple(lists), tuple(files))


def size(inventory, given=None):
    return find_world_size(inventory, given).ranks


def test_the_operators_number_wins_over_manifests():
    found = find_world_size(tree([stated(0, 4)], {}), 16)
    assert (found.ranks, found.source, found.guessed) == (16, "as given", False)


def test_of_a_part_of_a_tree_its_documents_say_how_many_ranks_there_are():
    claims = PartClaims(kind="model", world_size=8, source="metadata.json")
    found = find_world_size(replace(tree([stated(0, 4)], {}), part=claims), 2)
    assert (found.ranks, found.source, found.guessed) == (8, "metadata.json", False)


def test_a_number_below_the_ranks_that_have_files_is_refused():
    with pytest.raises(UsageError, match="at least 6"):
        find_world_size(tree([slice_file(5)], {}), 5)
    assert size(tree([slice_file(5)], {}), 6) == 6


def test_manifests_state_it_and_nothing_is_guessed():
    found = find_world_size(tree([stated(0, 8), slice_file(1)], {}))
    assert (found.ranks, found.source, found.guessed) == (8, f"the manifests of step {STEP}", False)


def test_of_several_sizes_that_manifests_state_the_newest_counts():
    assert size(tree([stated(0, 4), stated(1, 8, OLDER)], {})) == 4


def test_a_newer_slice_that_less_than_half_as_many_ranks_have_does_not_change_it():
    older = [stated(rank, 8, OLDER) for rank in range(3)]
    assert size(tree([stated(0, 2), *older], {})) == 8
    assert size(tree([stated(0, 2), *older[:2]], {})) == 2


def test_a_list_that_names_ranks_beyond_what_manifests_state_is_rejected():
    found = find_world_size(tree([stated(0, 2)], {0: [0, 1], 1: [1, 6]}))
    assert found.ranks == 2
    assert list(found.rejected_lists) == ["ckpt_dir1/group_info.pb"]
    assert "another world" in found.rejected_lists["ckpt_dir1/group_info.pb"]


def test_files_alone_bound_it_from_below():
    found = find_world_size(tree([slice_file(0), slice_file(2)], {}))
    assert (found.ranks, found.source, found.guessed) == (3, "the ranks that have files", True)


def test_lists_name_ranks_without_files():
    found = find_world_size(tree([slice_file(0)], {0: [0, 5]}))
    assert (found.ranks, found.guessed) == (6, True)
    assert found.source == "the ranks listed in ckpt_dir0/group_info.pb"


def test_a_device_matrix_bounds_it_by_the_last_stage_that_is_named():
    found = find_world_size(with_strategies([0], strategy(0, 4)))
    assert (found.ranks, found.source, found.guessed) == (4, "the device matrix in ckpt_dir0/strategy.ckpt", True)
    assert size(with_strategies([0], strategy(0, 4, [1]))) == 8


def test_of_device_matrices_the_most_frequent_counts():
    files = [strategy(0, 4), strategy(1, 4), strategy(2, 12)]
    assert size(with_strategies([0, 1, 2], *files)) == 4


def test_a_stray_rank_beyond_the_stages_makes_no_further_stage():
    assert size(with_strategies([0, 1, 9], strategy(0, 4))) == 4
    assert size(with_strategies([0, 1, 4, 5], strategy(0, 4))) == 6


def test_a_list_across_stages_up_to_ranks_that_nobody_has_is_rejected():
    lists = [group_file(0, [0, 9])]
    found = find_world_size(with_strategies(range(4), strategy(0, 4), lists=lists))
    assert found.ranks == 4
    assert "different stages of 4 devices" in found.rejected_lists["ckpt_dir0/group_info.pb"]
    inside = find_world_size(with_strategies(range(4), strategy(0, 4), lists=[group_file(0, [6, 7])]))
    assert (inside.ranks, inside.rejected_lists) == (8, {})


def test_of_lists_the_first_by_path_is_named_that_names_the_highest_rank():
    lists = [group_file(2, [2, 5]), group_file(0, [0, 4]), group_file(1, [1, 5])]
    found = find_world_size(replace(tree([slice_file(0)], {}), group_files=tuple(lists)))
    assert (found.ranks, found.source) == (6, "the ranks listed in ckpt_dir1/group_info.pb")
    inside = find_world_size(replace(tree([slice_file(6)], {}), group_files=tuple(lists)))
    assert (inside.ranks, inside.source) == (7, "the ranks that have files")


@pytest.mark.parametrize(
    ("listed", "ranks", "rejected"),
    [([0, 4], 4, True), ([0, 3], 4, False), ([4, 7], 8, False), ([0, 9], 4, True), ([4, 8], 4, True)],
)
def test_a_list_of_ranks_of_two_stages_makes_no_world_larger(listed, ranks, rejected):
    found = find_world_size(with_strategies(range(4), strategy(0, 4), lists=[group_file(0, listed)]))
    assert (found.ranks, bool(found.rejected_lists)) == (ranks, rejected)


@pytest.mark.parametrize(("listed", "rejected"), [([0, 3], False), ([0, 4], True), ([5, 0], True)])
@pytest.mark.parametrize("by", ["manifests", "given", "given, without strategy files"])
def test_a_list_that_names_ranks_beyond_a_stated_world_is_of_another_one(listed, rejected, by):
    whole = with_strategies(range(4), strategy(0, 4), lists=[group_file(0, listed)])
    if by == "manifests":
        rejecting = find_world_size(replace(whole, slices=tuple(stated(rank, 4) for rank in range(4))))
    elif by == "given":
        rejecting = find_world_size(whole, 4)
    else:
        rejecting = find_world_size(replace(whole, strategy_files=()), 4)
        rejected = False  # then what the list says of the ranks in the world counts
    assert (rejecting.ranks, bool(rejecting.rejected_lists)) == (4, rejected)


def test_ranks_of_a_list_outside_of_the_world_are_taken_from_it():
    world = WorldSize(ranks=4, source="as given")
    for listed, left in [((0, 2), (0, 2)), ((2, 3), (2, 3)), ((0, 4), (0,)), ((5, 1, 9), (1,)), ((), ())]:
        made = inside_world(group_file(0, listed), world)
        assert made.info.restore_ranks == left
    assert inside_world(group_file(0, (4, 6)), world).info is None
    damaged = replace(group_file(0, (0,)), info=None)
    assert inside_world(damaged, world) == damaged


def test_of_slices_outside_of_the_world_two_are_noted_with_the_number_of_the_others():
    world = WorldSize(ranks=2, source="as given")
    why = "its rank is outside the world of 2 ranks by as given"
    notes = outside_world(tree([slice_file(rank) for rank in range(7)], {}), world)
    assert notes == [Note("ckpt_dir2/test-2_8.ckpt", why), Note("ckpt_dir3/test-2_8.ckpt", f"{why}, like 3 more")]
    two = outside_world(tree([slice_file(rank) for rank in range(4)], {}), world)
    assert two == [Note("ckpt_dir2/test-2_8.ckpt", why), Note("ckpt_dir3/test-2_8.ckpt", why)]
    assert outside_world(tree([slice_file(rank) for rank in range(3)], {}), world) == notes[:1]
    assert outside_world(tree([slice_file(rank) for rank in range(2)], {}), world) == []


# --- the operator's word ----------------------------------------------------------------------------------------------

GUESSED = WorldSize(ranks=3, source=BY_FILES, guessed=True)


def groups(*members):
    return PlanOptions(groups=tuple(frozenset(group) for group in members))


def axes(text):
    return PlanOptions(axes=Axes.parse(text))


def having(*ranks):
    return tree([slice_file(rank) for rank in ranks], {})


@pytest.mark.parametrize(
    ("world", "options", "present", "expected"),
    [
        (GUESSED, PlanOptions(), range(3), (3, BY_FILES, True, None)),
        (GUESSED, axes("dp=3"), range(3), (3, "--axes dp=3", False, None)),
        (WorldSize(ranks=3, source="as given"), axes("dp=3"), range(3), (3, "as given", False, None)),
        (GUESSED, groups((0, 2)), range(3), (3, BY_FILES, True, None)),
        (GUESSED, axes("dp=2,mp=2"), range(3), (4, "--axes dp=2,mp=2", False, 3)),
        (GUESSED, groups((0, 2), (1, 3)), range(3), (4, "the ranks that --group names", True, 3)),
        (replace(GUESSED, ranks=4), groups((0, 2, 4), (1, 3)), range(4), (5, "the ranks that --group names", True, 4)),
        (GUESSED, axes("dp=2,mp=2"), (1, 2), None),
        (GUESSED, axes("mp=4"), range(3), None),
        (GUESSED, groups((0, 3)), range(3), None),
        (GUESSED, groups((0, 1, 2, 3)), range(3), None),
        (GUESSED, groups((0, 3), (1, 4), (2, 5)), range(3), None),
        (replace(GUESSED, ranks=4), groups((0, 1, 2), (3, 4, 5)), range(4), None),
        (replace(GUESSED, source="the device matrix in a"), groups((0, 2), (1, 3)), range(3), None),
        (replace(GUESSED, guessed=False), groups((0, 2), (1, 3)), range(3), None),
        (GUESSED, axes("dp=2"), range(3), None),
    ],
)
def test_the_operators_word_makes_a_guessed_world_larger_by_less_than_one_rank_a_group(
    world, options, present, expected
):
    """Where only files bound it, and it groups all ranks, of some group two that have files."""
    if expected is None:
        with pytest.raises(UsageError, match=r"but there are \d, ") as said:
            with_word(world, options, having(*present))
        wanted = count_ranks(options.axes)[0] if options.axes else 1 + max(max(group) for group in options.groups)
        larger = world.guessed and wanted > world.ranks
        assert ("or give --world-size" in str(said.value)) == larger
        return
    made = with_word(world, options, having(*present))
    assert (made.ranks, made.source, made.guessed, made.doubt and made.doubt[0]) == expected


@pytest.mark.parametrize(("world", "fits"), [(3, False), (4, True), (5, False), (8, True), (9, False)])
def test_axes_that_mean_one_of_two_numbers_mean_that_of_the_ranks(world, fits):
    stated_by_files = WorldSize(ranks=world, source="the device matrix in a", guessed=True)
    if fits:
        assert with_word(stated_by_files, axes("dp=4,ep=2"), having(*range(world))).ranks == world
    else:
        larger = {3: "--world-size 4", 5: "--world-size 8", 9: "correct it$"}[world]
        with pytest.raises(UsageError, match=larger):
            with_word(stated_by_files, axes("dp=4,ep=2"), having(*range(world)))


def test_an_absurd_number_is_refused():
    with pytest.raises(ContradictionError, match="--world-size"):
        find_world_size(tree([slice_file(0)], {0: [0, 1 << 20]}))
    assert size(tree([slice_file(0)], {0: [0, (1 << 20) - 1]})) == 1 << 20


def test_an_empty_tree_has_no_ranks():
    assert size(Inventory("/tree")) == 0


@pytest.mark.parametrize("there", [(), range(4), range(4, 8)])
def test_the_strategy_file_of_the_last_stage_counts_although_no_rank_of_it_has_files(there):
    files = [strategy(rank, 4, [rank // 4]) for rank in range(8)]
    found = find_world_size(with_strategies(there, *files))
    assert (found.ranks, found.source) == (8, "the device matrix in ckpt_dir4/strategy.ckpt")


@pytest.mark.parametrize("layout", ["dp2_mp4", "dp4_mp2_opt2", "dp4_mp2_optfull"])
def test_strategy_files_and_rank_lists_of_the_compiler_state_a_world_of_one_stage_together(layout):
    found = find_world_size(api.scan(FIXTURES / layout))
    assert (found.ranks, found.guessed) == (8, False)
    assert found.source == "the strategy files and the rank lists"


def test_a_pipeline_whose_lists_name_no_other_stage_may_lack_one():
    seen = api.scan(FIXTURES / "dp2_mp2_pp2")
    assert (find_world_size(seen).ranks, find_world_size(seen).guessed) == (8, True)
    left = replace(
        seen,
        ranks=seen.ranks[:4],
        slices=tuple(file for file in seen.slices if file.rank < 4),
        group_files=tuple(file for file in seen.group_files if file.rank < 4),
        strategy_files=tuple(file for file in seen.strategy_files if file.rank < 4),
    )
    assert (find_world_size(left).ranks, find_world_size(left).guessed) == (4, True)


def pipeline(stages, devices, ranks=None, *, change=lambda file: file):
    """A tree of a pipeline each of whose lists names one rank of each stage."""
    there = range(stages * devices) if ranks is None else ranks
    lists = []
    for rank in there:
        column = tuple(range(rank % devices, stages * devices, devices))
        listed = group_file(rank, [rank])
        lists.append(change(replace(listed, info=replace(listed.info, groups=(RankGroup("column", column),)))))
    return with_strategies(there, *(strategy(rank, devices, [rank // devices]) for rank in there), lists=lists)


def test_a_pipeline_whose_lists_name_a_rank_of_each_stage_states_its_world():
    found = find_world_size(pipeline(4, 4))
    assert (found.ranks, found.source, found.guessed) == (16, "the strategy files and the rank lists", False)
    assert not find_world_size(pipeline(4, 4, [0, 1, 5, 13])).guessed


def test_where_its_last_stage_is_gone_it_is_guessed():
    assert find_world_size(pipeline(4, 4, range(12))).guessed


@pytest.mark.parametrize(
    "change",
    [
        lambda file: replace(file, info=None, problem="cut") if file.rank == 2 else file,
        lambda file: replace(file, info=replace(file.info, restore_ranks=(3, 9))) if file.rank == 3 else file,
        lambda file: replace(file, info=replace(file.info, restore_ranks=(5,))) if file.rank == 4 else file,
        lambda file: replace(file, info=replace(file.info, restore_ranks=(4,))) if file.rank == 5 else file,
        lambda file: replace(file, info=replace(file.info, groups=())) if file.rank >= 12 else file,
        lambda file: replace(file, rank=None) if file.rank == 2 else file,
    ],
    ids=[
        "a list is damaged",
        "a list crosses stages",
        "a list names a higher rank than its owner",
        "a list names a lower rank than its owner",
        "no list of the last stage names the others",
        "a list is of no rank",
    ],
)
def test_a_list_that_is_missing_or_contradicts_leaves_a_guess(change):
    assert find_world_size(pipeline(4, 4, change=change)).guessed


@pytest.mark.parametrize("ranks", [(0, 4, 8), (0, 4, 9)])
def test_a_stray_rank_beyond_the_last_stage_leaves_a_guess(ranks):
    whole = pipeline(2, 4)
    stray = replace(whole, ranks=ranks, slices=())
    assert (find_world_size(stray).ranks, find_world_size(stray).guessed) == (8, True)
    assert not find_world_size(replace(whole, ranks=(0, 4), slices=())).guessed


def test_strategy_files_that_disagree_leave_a_guess():
    whole = pipeline(2, 4)
    other = replace(whole, strategy_files=(*whole.strategy_files[:-1], strategy(7, 8)))
    assert not find_world_size(whole).guessed
    assert find_world_size(other).guessed
    misplaced = replace(whole, strategy_files=(strategy(0, 4, [1]), *whole.strategy_files[1:]))
    assert find_world_size(misplaced).guessed


@pytest.mark.parametrize(
    ("group", "devices", "guessed"), [((0, 1), 4, False), ((0, 1, 2, 3), 4, True), ((4, 5, 6, 7), 4, True)]
)
def test_one_stage_whose_lists_name_a_group_as_large_as_a_stage_may_lack_others(group, devices, guessed):
    layouts = tuple(Layout(name, (devices,), ((0,),)) for name in ("moments.w", "w"))
    files = [replace(strategy(rank, devices, [0]), strategy=Strategy((0,), 1, layouts)) for rank in range(devices)]
    lists = [
        replace(one, info=replace(one.info, groups=(RankGroup("some", group),)))
        for one in (group_file(rank, [rank]) for rank in range(devices))
    ]
    assert find_world_size(with_strategies(range(devices), *files, lists=lists)).guessed == guessed
