from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError
from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import GroupFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.planning.claims.groups import merge_groups
from tests.support.inventories import OLDER, STEP, group_file, slice_file


def test_a_lost_rank_is_known_from_its_peers():
    groups = merge_groups([group_file(4, [0, 4]), group_file(1, [1])])
    assert groups.of(0) == (0, 4)
    assert groups.knows(0)
    assert groups.of(7) == (7,)
    assert not groups.knows(7)


def test_one_sided_lists_are_refused_with_the_ranks_named():
    with pytest.raises(ContradictionError, match=r"rank 0 lists rank 4 .*rank 4 does not list rank 0"):
        merge_groups([group_file(0, [0, 4]), group_file(4, [4])])


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            [0, 1],
            [1, 2],
            "rank 0 lists rank 1 (ckpt_dir0/group_info.pb: [0, 1]), rank 1 does not list rank 0 (ckpt_dir1",
        ),
        (
            [0, 2],
            [0, 1],
            "rank 1 lists rank 0 (ckpt_dir1/group_info.pb: [0, 1]), rank 0 does not list rank 1 (ckpt_dir0",
        ),
        ([0, 2], [1, 2], "ckpt_dir1/group_info.pb lists [1, 2], ckpt_dir0/group_info.pb lists [0, 2]"),
        ([0, 1, 2], [0, 1, 3], "ckpt_dir1/group_info.pb lists [0, 1, 3], ckpt_dir0/group_info.pb lists [0, 1, 2]"),
    ],
    ids=["the first alone names the second", "the second alone names the first", "neither", "both"],
)
def test_lists_that_differ_are_named_with_who_names_whom(first, second, words):
    files = [group_file(0, first), group_file(1, second)]
    with pytest.raises(ContradictionError) as refused:
        merge_groups(files)
    assert words in str(refused.value)


def test_lists_that_overlap_are_refused():
    with pytest.raises(ContradictionError, match=r"\[0, 4\].*\[0, 4, 8\]|\[0, 4, 8\].*\[0, 4\]"):
        merge_groups([group_file(0, [0, 4]), group_file(4, [0, 4, 8])])


def test_a_lost_rank_in_two_groups_is_refused():
    with pytest.raises(ContradictionError, match="contradict"):
        merge_groups([group_file(0, [0, 4]), group_file(1, [1, 4])])


def test_a_list_in_another_ranks_directory_is_refused():
    with pytest.raises(ContradictionError, match=r"lies with rank 0 but lists \[1, 5\]"):
        merge_groups([group_file(0, [1, 5])])


def test_lists_without_a_known_owner_count():
    groups = merge_groups([GroupFile(None, "/elsewhere/a.pb", None, GroupInfo((3, 7)))])
    assert groups.of(3) == groups.of(7) == (3, 7)


def test_malformed_lists_are_passed_over():
    assert not merge_groups([GroupFile(0, "x", None, None, "empty")]).knows(0)


def test_many_contradictions_are_counted_not_all_listed():
    files = [group_file(rank, [rank, rank + 100]) for rank in range(20)] + [
        group_file(100 + r, [100 + r]) for r in range(20)
    ]
    with pytest.raises(ContradictionError, match="more"):
        merge_groups(files)


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (6, "; and 1 more"), (7, "; and 2 more")])
def test_five_contradictions_are_listed(count, more):
    files = [group_file(rank, [rank + 10]) for rank in range(count)]
    with pytest.raises(ContradictionError) as caught:
        merge_groups(files)
    listed = str(caught.value).partition("contradict each other: ")[2].partition(". They are")[0]
    assert listed.count("so it is another rank's") == min(count, 5)
    assert listed.endswith(f"so it is another rank's{more}")


def stated(rank, group, run="first", step=STEP):
    file = slice_file(rank, step)
    made = Manifest(
        run_id=run,
        rank=rank,
        world_size=4,
        step=step,
        cumulative_step=None,
        file=file.path.rpartition("/")[2],
        size=file.size,
        digests=Digests("contents", ()),
        parameters=file.parameters,
        group=group,
        provenance=Provenance(kind="saved", evidence="structure"),
    )
    return replace(file, manifest=made)


def test_a_slice_that_another_run_left_does_not_say_who_holds_the_same():
    own = [stated(rank, (rank,), "a") for rank in (0, 1, 3)]
    assert merge_groups([], [*own, stated(2, (2, 3), "b")]).of(3) == (3,)
    assert merge_groups([], [*own, stated(2, (2, 3), "0")]).of(3) == (3,)


def test_the_run_of_the_newest_step_states_groups_first():
    older = [stated(rank, (rank,), "a", OLDER) for rank in range(4)]
    assert merge_groups([], [*older, stated(2, (2, 3), "b")]).of(3) == (2, 3)


@pytest.mark.parametrize(("more", "group"), [((), None), ((2,), (1, 2))])
def test_of_lists_that_exclude_each_other_the_one_stands_that_more_manifests_state_or_both(more, group):
    slices = [stated(0, (0, 1)), stated(1, (1, 2)), *(stated(rank, (1, 2)) for rank in more)]
    if group is None:
        with pytest.raises(ContradictionError):
            merge_groups([], slices)
        return
    assert merge_groups([], slices).of(1) == group
