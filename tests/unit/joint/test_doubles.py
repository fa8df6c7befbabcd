"""The same slice on two nodes."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError
from ms_recover.joint.union import find_doubles, sharing, unite
from ms_recover.model.inventory import Inventory
from ms_recover.model.manifest import Digests, Manifest
from tests.support.inventories import STEP, slice_file, tree


def saved(contents, run="run"):
    """The manifest of some contents."""
    return Manifest(
        run_id=run,
        rank=1,
        world_size=4,
        step=STEP,
        cumulative_step=None,
        file="test-2_8.ckpt",
        size=100,
        digests=Digests(contents, ()),
        parameters=(),
        group=(1,),
    )


def on_nodes(*files):
    nodes = [replace(tree([file], {}), root=f"n{number}") for number, file in enumerate(files)]
    return unite(Inventory(root=""), nodes, spread=True)


ONE = slice_file(1)


@pytest.mark.parametrize(
    ("first", "second", "read"),
    [(None, None, True), (saved("x"), None, True), (None, saved("x"), True), (saved("x"), saved("x"), False)],
    ids=["no manifest", "one of the first", "one of the second", "two that say the same"],
)
def test_the_second_is_read_as_well_unless_two_manifests_say_that_it_is_the_same(first, second, read):
    files = [replace(ONE, manifest=manifest) for manifest in (first, second)]
    found = find_doubles(on_nodes(*files))
    assert {path: [(double.node, double.file) for double in doubles] for path, doubles in found.items()} == (
        {ONE.path: [(1, files[1])]} if read else {}
    )


@pytest.mark.parametrize(
    "second",
    [
        replace(ONE, size=101),
        replace(ONE, size=101, manifest=saved("x")),
        replace(ONE, manifest=saved("y")),
        replace(ONE, manifest=saved("x", run="another run")),
    ],
    ids=["size", "size, one manifest", "contents", "run"],
)
def test_two_that_are_not_of_one_tree_are_refused(second):
    first = replace(ONE, manifest=saved("x"))
    with pytest.raises(ContradictionError, match="n0 and on n1 with different contents"):
        find_doubles(on_nodes(first if second.manifest is not None else ONE, second))


@pytest.mark.parametrize(("first", "second"), [("cut off", None), (None, "cut off"), ("cut off", "cut off")])
def test_a_damaged_one_is_no_double(first, second):
    files = [replace(ONE, size=100 - number, problem=problem) for number, problem in enumerate((first, second))]
    assert find_doubles(on_nodes(*files)) == {}


def test_each_further_node_has_its_own():
    found = find_doubles(on_nodes(ONE, slice_file(2), ONE, ONE))
    assert [double.node for double in found[ONE.path]] == [2, 3]
    assert set(found) == {ONE.path}


def test_equal_lists_of_parameters_are_one_object_and_no_inode_is_on_two_nodes():
    """As in a scan of one tree; what nodes send has each list of its own."""

    def sent(rank, inode):
        file = slice_file(rank)
        manifest = replace(saved("x"), parameters=slice_file(rank).parameters)
        return replace(file, inode=inode, manifest=manifest)

    nodes = [tree([sent(0, (7, 1)), sent(1, (7, 1)), sent(2, None)], {}), tree([sent(0, (7, 1)), sent(3, (7, 2))], {})]
    shared = sharing(nodes)
    files = [file for one in shared for file in one.slices]
    assert files[0] == replace(nodes[0].slices[0], inode=files[0].inode)
    assert len({id(file.parameters) for file in files} | {id(file.manifest.parameters) for file in files}) == 1
    (first, linked, none), (elsewhere, another) = ([file.inode for file in one.slices] for one in shared)
    assert (first == linked, none) == (True, None)
    assert len({first, elsewhere, another}) == 3
