"""MindFormers' own code, from the package index, resumes from the trees that it wrote, and refuses broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mindformers_loader import SCALARS, MindFormers, copy_tree, true_contents

pytest.importorskip("mindspore", minversion="2.10")  # what MindFormers 2.0 asks for
pytestmark = [pytest.mark.packaging, pytest.mark.mindspore, pytest.mark.timeout(300)]

NEW = ("dp2_mp4", "dp4_mp2_opt2", "dp2_mp2_pp2")
LEGACY = "legacy_dp2_mp2_optfull"
CHECKPOINTS = Path("output", "checkpoint")


@pytest.fixture(scope="module", params=["2.0.0", "2.1.0"])
def mindformers(request, tmp_path_factory):
    """2.1.0 is written for a MindSpore that is not on the index yet; its loader runs with 2.10 all the same."""
    release = MindFormers(tmp_path_factory.mktemp("mindformers"), request.param)
    yield release
    release.close()


def tensors(answer):
    """The digest of each parameter that each rank loaded, without the scalars."""
    assert "error" not in answer, answer["error"]
    loaded = answer["tensors"].items()
    return {rank: {name: value for name, value in own.items() if name not in SCALARS} for rank, own in loaded}


@pytest.mark.parametrize("name", NEW)
def test_untouched_trees_are_resumed_with_every_tensor_right(mindformers, tmp_path, name):
    root = copy_tree(name, tmp_path / "checkpoint", mindformers.version)
    answer = mindformers.resume_new(root, 8)
    assert tensors(answer) == true_contents(name, 200)
    assert answer["path"] == str(root / "iteration_00000200")
    assert answer["common"]["global_step"] == 200


def test_an_untouched_legacy_tree_is_resumed_with_every_tensor_right(mindformers, tmp_path):
    root = copy_tree(LEGACY, tmp_path / "tree")
    answer = mindformers.resume_legacy(root / CHECKPOINTS, 4, "safetensors")
    assert tensors(answer) == true_contents(LEGACY, 200)
    assert answer["names"] == {str(rank): f"CKP_rank_{rank}-1_200.safetensors" for rank in range(4)}


def test_a_missing_file_refuses_the_whole_iteration(mindformers, tmp_path):
    root = copy_tree("dp2_mp4", tmp_path / "checkpoint", mindformers.version)
    lost = root / "iteration_00000200" / "llama_tiny-opt-0000005-0000008.safetensors"
    lost.unlink()
    answer = mindformers.resume_new(root, 8)
    assert answer["error"].startswith("FileNotFoundError")
    assert lost.name in answer["error"]


def test_a_torn_file_and_torn_metadata_are_refused(mindformers, tmp_path):
    root = copy_tree("dp2_mp4", tmp_path / "checkpoint", mindformers.version)
    torn = root / "iteration_00000200" / "llama_tiny-model-0000000-0000008.safetensors"
    torn.chmod(0o600)
    torn.write_bytes(torn.read_bytes()[:-8])
    assert mindformers.resume_new(root, 8)["error"].startswith("ValueError")
    metadata = root / "iteration_00000200" / "metadata.json"
    metadata.write_bytes(metadata.read_bytes()[:-100])
    assert mindformers.resume_new(root, 8)["error"].startswith("RuntimeError")


def test_a_flipped_bit_is_loaded_without_a_word(mindformers, tmp_path):
    root = copy_tree("dp2_mp4", tmp_path / "checkpoint", mindformers.version)
    path = root / "iteration_00000200" / "llama_tiny-model-0000000-0000008.safetensors"
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    loaded, truth = tensors(mindformers.resume_new(root, 8)), true_contents("dp2_mp4", 200)
    assert {name for rank in truth for name, value in loaded[rank].items() if value != truth[rank][name]}


def test_a_legacy_tree_without_a_common_step_is_refused(mindformers, tmp_path):
    root = copy_tree(LEGACY, tmp_path / "tree") / CHECKPOINTS
    (root / "rank_1" / "CKP_rank_1-1_200.safetensors").unlink()
    answer = mindformers.resume_legacy(root, 4, "safetensors")
    assert answer["names"]["0"] == "CKP_rank_0-1_100.safetensors", "it goes back a step without a question"
    (root / "rank_1" / "CKP_rank_1-1_100.safetensors").unlink()
    assert "No checkpoint could be resumed" in mindformers.resume_legacy(root, 4, "safetensors")["error"]
