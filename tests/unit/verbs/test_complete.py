"""The verb complete on trees of iterations."""

from dataclasses import replace

from ms_recover import api
from tests.support.iteration_trees import unpack


def test_only_files_of_a_kind_that_the_tree_has_are_completed(tmp_path):
    inventory = api.scan(unpack("dp2_mp4", tmp_path))
    model = replace(inventory, slices=tuple(file for file in inventory.slices if file.kind == "model"))
    targets = [
        [result.target for result in api.complete_iteration(tree, 1, dry_run=True)] for tree in (inventory, model)
    ]
    assert len(targets[0]) == 2
    assert targets[1] == targets[0][:1]
