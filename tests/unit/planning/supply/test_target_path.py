"""The name of a recovered slice, and what lies there."""

from dataclasses import replace

import pytest

from ms_recover.model.actions import FileState
from ms_recover.model.inventory import RankPath
from ms_recover.model.options import PlanOptions
from ms_recover.planning.supply.target_path import format_conflict, left_beside, same_format_sources, target_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, slice_file, tree

PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}


def safetensors(file):
    return replace(file, place=RankPath(("ckpt_dir", f"/{file.prefix}-{file.step}.safetensors")))


def facts_of(*files, lost=()):
    return gather_facts(tree(files, PAIRS), PlanOptions(lost=frozenset(lost)))


def at(facts, rank, step=STEP):
    return list(facts.at(step, rank))


def test_the_usual_name_is_that_of_the_source_in_the_ranks_own_directory():
    facts = facts_of(slice_file(2), slice_file(1, OLDER))
    assert target_of(facts, 0, at(facts, 2)[0], []) == ("ckpt_dir0/test-2_8.ckpt", None)
    assert target_of(facts, 3, at(facts, 1, OLDER)[0], []) == ("ckpt_dir3/test-1_8.ckpt", None)


def test_a_bad_file_is_replaced_under_its_own_name():
    facts = facts_of(slice_file(2), slice_file(0, prefix="test_1", problem="cut", size=7, mtime=5))
    assert target_of(facts, 0, at(facts, 2)[0], at(facts, 0)) == ("ckpt_dir0/test_1-2_8.ckpt", FileState(7, 5))


def test_of_several_bad_files_the_one_with_the_usual_name_then_the_last_modified():
    early, late = (slice_file(0, prefix=f"test_{n}", problem="cut", mtime=n) for n in (1, 2))
    facts = facts_of(slice_file(2), early, late)
    assert target_of(facts, 0, at(facts, 2)[0], at(facts, 0)) == ("ckpt_dir0/test_2-2_8.ckpt", FileState(100, 2))
    facts = facts_of(slice_file(2), early, late, slice_file(0, problem="cut"))
    assert target_of(facts, 0, at(facts, 2)[0], at(facts, 0)) == ("ckpt_dir0/test-2_8.ckpt", FileState(100, 1))


def test_a_bad_file_of_the_other_format_is_left_as_it_is():
    facts = facts_of(slice_file(2), safetensors(slice_file(0, problem="cut")))
    assert target_of(facts, 0, at(facts, 2)[0], at(facts, 0)) == ("ckpt_dir0/test-2_8.ckpt", None)


def test_a_file_under_the_usual_name_that_may_not_be_replaced_is_still_known():
    facts = facts_of(slice_file(2), slice_file(0, size=7, mtime=5))
    assert target_of(facts, 0, at(facts, 2)[0], []) == ("ckpt_dir0/test-2_8.ckpt", FileState(7, 5))


def test_sources_are_of_one_format_that_of_the_ranks_own_files_where_it_has_any():
    facts = facts_of(slice_file(1), safetensors(slice_file(2)), slice_file(3))
    able = [*at(facts, 1), *at(facts, 2), *at(facts, 3)]
    usable, why = same_format_sources(facts, 0, [], able)
    assert ([one.rank for one in usable], why) == ([1, 3], None)
    damaged = facts_of(safetensors(slice_file(0, problem="cut")))
    usable, why = same_format_sources(facts, 0, at(damaged, 0), able)
    assert ([one.rank for one in usable], why) == ([2], None)


def test_own_files_of_a_format_that_no_source_has_do_not_decide():
    facts = facts_of(safetensors(slice_file(0, problem="cut")), slice_file(1), slice_file(2))
    usable, why = same_format_sources(facts, 0, at(facts, 0), [*at(facts, 2), *at(facts, 1)])
    assert ([one.rank for one in usable], why) == ([2, 1], None)


def test_two_slices_that_may_be_right_are_not_made():
    facts = facts_of(safetensors(slice_file(0)), slice_file(2), lost=[0])
    usable, why = same_format_sources(facts, 0, [], at(facts, 2))
    assert usable == []
    assert "of the other format" in why
    assert why == format_conflict(facts, 0, at(facts, 2)[0])


@pytest.mark.parametrize(
    ("own", "lost"),
    [
        (safetensors(slice_file(0)), []),
        (safetensors(slice_file(0, problem="cut")), [0]),
        (slice_file(0), [0]),
        (safetensors(slice_file(0, OLDER)), [0]),
    ],
    ids=["not lost", "damaged", "of the same format", "of another step"],
)
def test_formats_conflict_only_beside_a_whole_slice_of_a_lost_rank(own, lost):
    facts = facts_of(own, slice_file(2), lost=lost)
    assert format_conflict(facts, 0, at(facts, 2)[0]) is None


def test_files_that_differ_from_the_target_in_their_ending_alone_are_left_beside_it():
    facts = facts_of(
        safetensors(slice_file(0)), slice_file(0), slice_file(0, prefix="test_1"), safetensors(slice_file(0, OLDER))
    )
    assert left_beside(facts, 0, "ckpt_dir0/test-2_8.ckpt") == ("ckpt_dir0/test-2_8.safetensors",)
    assert left_beside(facts, 1, "ckpt_dir1/test-2_8.ckpt") == ()
