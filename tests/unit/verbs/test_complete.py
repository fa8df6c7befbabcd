"""The verb complete on trees of iterations."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import UnrecoverableError, UsageError, VerificationError
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


def test_a_full_slice_is_written_where_the_output_says(tmp_path):
    root = unpack("dp2_mp4", tmp_path / "tree")
    inventory, made = api.scan(root), {}
    for name, output in (
        ("path", tmp_path / "a" / "full.safetensors"),
        ("url", f"file://{tmp_path}/b/full.safetensors"),
    ):
        path = tmp_path / {"path": "a", "url": "b"}[name] / "full.safetensors"
        path.parent.mkdir()
        (foreseen,) = api.complete_iteration(inventory, 1, kinds=("model",), output=str(output), dry_run=True)
        assert not path.exists()
        (result,) = api.complete_iteration(inventory, 1, kinds=("model",), output=str(output))
        assert (result.rank, result.bytes, result.target) == (1, foreseen.bytes, foreseen.target)
        assert path.stat().st_size == result.bytes
        assert result.target.endswith(f"/{path.parent.name}/full.safetensors")
        made[name] = path.read_bytes()
    (beside,) = api.complete_iteration(inventory, 1, kinds=("model",))
    assert beside.target.startswith("iteration_00000200/")
    assert made == dict.fromkeys(made, (root / beside.target).read_bytes())


@pytest.mark.parametrize("differ", [False, True])
def test_a_rank_of_which_nobody_has_the_parameters_or_replicas_differ_gets_no_slice(tmp_path, differ):
    """Ranks 1 and 5 hold the same."""
    root = unpack("dp2_mp4", tmp_path, 200)
    (first, second) = (next(root.glob(f"*/*-model-000000{rank}-*")) for rank in (1, 5))
    if differ:
        first.chmod(0o600)
        first.write_bytes(first.read_bytes()[:-4] + b"else")
    else:
        first.unlink()
        second.unlink()
    error = VerificationError if differ else UnrecoverableError
    with pytest.raises(error, match=f"no full slice for rank 1 of {root}; step 200: "):
        api.complete_iteration(api.scan(root), 1, dry_run=True)
