"""Rank lists that came after their slices were sealed without any."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.planning.claims.manifest_check import (
    check_contents,
    check_listed,
    check_manifest,
    later_groups,
    uncompared_groups,
)
from ms_recover.planning.claims.tolerance import Tolerance
from tests.support.inventories import STEP, slice_file

OLDER = Step(1, 8)


def sealed(rank, contents, step=STEP, kind="sealed", group=None):
    file = slice_file(rank, step)
    made = Manifest(
        run_id="",
        rank=rank,
        world_size=4,
        step=step,
        cumulative_step=None,
        file=file.path.rpartition("/")[2],
        size=file.size,
        digests=Digests(contents, ()),
        parameters=file.parameters,
        group=group or (rank,),
        provenance=Provenance(kind=kind, evidence="structure"),
    )
    return replace(file, manifest=made)


GROUPS = [(0, 2), (1, 3)]


def test_a_later_list_groups_slices_that_were_sealed_equal():
    slices = [sealed(rank, "ab"[rank % 2], step) for rank in range(4) for step in (STEP, OLDER)]
    assert later_groups(slices, GROUPS) == {(0, 2), (1, 3)}


def test_a_list_that_groups_slices_that_were_sealed_different_is_none():
    slices = [sealed(0, "a"), sealed(2, "x"), sealed(1, "b"), sealed(3, "b")]
    assert later_groups(slices, GROUPS) == {(1, 3)}
    older = [sealed(0, "a", OLDER), sealed(2, "a", OLDER)]
    assert later_groups(slices + older, GROUPS) == {(1, 3)}


def test_a_later_list_groups_slices_that_differ_in_batch_statistics_alone():
    def of(rank, mean):
        file = sealed(rank, f"file {rank}")
        parameters = (Parameter("weight", "Float32", (2,), 8), Parameter("bn.moving_mean", "Float32", (2,), 8))
        made = replace(file.manifest, parameters=parameters, digests=Digests(f"file {rank}", ("w", mean)))
        return replace(file, manifest=made)

    assert later_groups([of(0, "a"), of(2, "b")], GROUPS) == {(0, 2)}
    assert later_groups([of(0, "a"), of(2, "b")], GROUPS, Tolerance(patterns=())) == frozenset()


def test_slices_that_nobody_compares_or_that_were_saved_show_nothing():
    assert later_groups([sealed(0, "a"), slice_file(2)], GROUPS) == frozenset()
    assert later_groups([sealed(rank, "a", kind="saved") for rank in (0, 2)], GROUPS) == frozenset()
    assert later_groups([sealed(rank, "a", group=(0, 2)) for rank in (0, 2)], GROUPS) == frozenset()


def test_a_slice_that_was_recovered_by_a_later_list_is_compared_with_what_it_was_copied_from():
    copied = sealed(2, "a", kind="copied", group=(0, 2))
    assert later_groups([sealed(0, "a"), copied], GROUPS) == {(0, 2)}
    assert later_groups([sealed(0, "a"), sealed(2, "a", kind="copied", group=(2, 3))], GROUPS) == frozenset()
    assert uncompared_groups([sealed(0, "a"), copied], GROUPS) == frozenset()


def test_a_later_list_of_which_one_slice_alone_was_sealed_is_compared_with_nothing():
    assert uncompared_groups([sealed(0, "a"), *(sealed(one, "b") for one in (1, 3))], GROUPS) == {(0, 2)}
    assert uncompared_groups([sealed(0, "a"), slice_file(2)], GROUPS) == frozenset()
    assert uncompared_groups([sealed(0, "a"), sealed(2, "x")], GROUPS) == frozenset()
    assert uncompared_groups([sealed(0, "a"), sealed(2, "x", group=(0, 2))], GROUPS) == frozenset()
    assert uncompared_groups([slice_file(0), slice_file(2)], GROUPS) == frozenset()


def test_only_a_later_list_may_name_more_ranks_than_the_manifest():
    file = sealed(0, "a")
    assert check_manifest(file, 4, (0, 2), later=True) is None
    assert "says ranks [0] hold the same slice" in check_manifest(file, 4, (0, 2))
    assert "says ranks [0] hold" in check_manifest(sealed(0, "a", kind="saved"), 4, (0, 2), later=True)


@pytest.mark.parametrize(
    ("group", "evidence", "how", "refused"),
    [
        ((0, 3), "structure", {}, True),
        ((0, 3), "structure", {"claimed": True}, True),
        ((0, 3), "operator", {"claimed": True}, False),
        ((0, 3), "operator", {}, True),
        ((0, 3), "structure", {"later": True}, True),
        ((0,), "structure", {}, True),
        ((0,), "structure", {"claimed": True}, False),
        ((0,), "structure", {"later": True}, False),
        ((0, 2), "structure", {}, False),
        ((2, 0), "structure", {}, False),
    ],
)
def test_a_manifest_speaks_against_a_group_unless_a_later_list_or_the_operator_s_word_goes_before(
    group, evidence, how, refused
):
    file = sealed(0, "a", group=group)
    file = replace(file, manifest=replace(file.manifest, provenance=Provenance(kind="sealed", evidence=evidence)))
    found = check_manifest(file, 4, (0, 2), **how)
    assert (found is not None and "hold the same slice, the rank lists say [0, 2]" in found) == refused
    assert check_manifest(file, 4, None, **how) is None


ONE, TWO, OTHER = (Parameter(name, "Float32", shape, 16) for name, shape in (("a", (4,)), ("b", (4,)), ("a", (2, 2))))


@pytest.mark.parametrize(
    ("listed", "expected", "odd"),
    [
        ((ONE, TWO), None, None),
        ((ONE, TWO), (ONE, TWO), None),
        ((TWO, ONE), (ONE, TWO), None),
        ((ONE,), (ONE, TWO), "'b'"),
        ((ONE, TWO), (ONE,), "'b'"),
        ((OTHER, TWO), (ONE, TWO), "'a'"),
        ((TWO,), (ONE,), "'b', 'a'"),
    ],
)
def test_a_slice_lists_what_documents_state_in_any_order(listed, expected, odd):
    file = replace(slice_file(0), parameters=ParameterList(listed))
    stated = None if expected is None else ParameterList(expected)
    why = check_listed(file, stated)
    assert (why and why.partition(": see ")[2]) == odd
    assert check_listed(file, file.parameters) is None
    for unread in (replace(file, problem="cut"), replace(file, encryption="AES-GCM")):
        assert check_listed(unread, stated) is None


LISTED = Digests("file", ("1", "2", "3", "4"))
"""Of the parameters ``a``, ``b``, ``moment1.a`` and ``global_step``."""


@pytest.mark.parametrize(
    ("stated", "read", "why"),
    [
        (LISTED, LISTED, None),
        (LISTED, None, None),
        (None, LISTED, None),
        (LISTED, replace(LISTED, parameters=("1", "x", "3", "4"), file="y"), "in 'b'"),
        (LISTED, replace(LISTED, file="y"), "outside the parameters"),
        (LISTED, Digests("y", ()), "outside the parameters"),
        (Digests("x", ()), LISTED, "outside the parameters"),
    ],
)
def test_contents_are_those_of_the_manifest(stated, read, why):
    file = sealed(0, "file")
    file = replace(file, manifest=None if stated is None else replace(file.manifest, digests=stated))
    contents = Contents(digests={file.path: read} if read else {"another": LISTED})
    found = check_contents(file, contents)
    assert found == (why and f"its contents are not those of its manifest, {why}")
    assert check_contents(file, Contents(problems={file.path: "torn"}, digests=contents.digests)) == "torn"


def test_nothing_is_wrong_with_contents_that_were_not_read():
    assert check_contents(sealed(0, "file"), Contents()) is None


@pytest.mark.parametrize(
    ("alike", "later"),
    [({}, ()), ({0: (0, 2)}, ((0, 2),)), ({0: (0, 2, 4)}, ()), ({0: (0,), 1: (1, 3)}, ()), ({1: (1, 3)}, ())],
)
def test_layouts_that_name_the_same_ranks_show_that_a_later_list_of_a_lone_slice_is_its_own(alike, later):
    slices = [sealed(0, "a")]
    assert later_groups(slices, GROUPS, alike=alike) == set(later)
    assert uncompared_groups(slices, GROUPS, alike) == {(0, 2)} - set(later)
