"""The verb complete on trees of iterations."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import UsageError
from tests.support.iteration_trees import unpack


def test_only_files_of_a_kind_that_the_tree_has_are_completed(tmp_path):
    inventory = api.scan(unpack("dp2_mp4", tmp_path))
    model = replace(inventory, slices=tuple(file for file in inventory.slices if file.kind == "model"))
    targets = [
        [result.target for result in api.complete_iteration(tree, 1, dry_run=True)] for tree in (inventory, model)
    ]
    assert len(targets[0]) == 2
    assert targets[1] == targets[0][:1]


def test_a_slice_of_several_files_is_not_completed_as_one(tmp_path):
    with pytest.raises(UsageError, match="use complete_iteration"):
        api.complete(api.scan(unpack("dp2_mp4", tmp_path)), 1, dry_run=True)


@pytest.mark.parametrize("dry_run", [True, False])
def test_one_output_for_two_files_is_refused_before_anything_is_written(tmp_path, dry_run):
    inventory, output = api.scan(unpack("dp2_mp4", tmp_path / "tree")), tmp_path / "full.safetensors"
    with pytest.raises(UsageError, match="is one file"):
        api.complete_iteration(inventory, 1, output=str(output), dry_run=dry_run)
    assert not output.exists()
