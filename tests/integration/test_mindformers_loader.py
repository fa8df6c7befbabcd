"""MindFormers' own code, from the package index, resumes from the trees that it wrote, and refuses broken ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.mindformers_loader import copy_tree, digests, tensors, true_contents
from tests.support.mindformers_tree import make_mindformers_tree

pytest.importorskip("mindspore", minversion="2.10")  # what MindFormers 2.0 asks for
pytestmark = [pytest.mark.packaging, pytest.mark.mindspore, pytest.mark.timeout(300)]

NEW = ("dp2_mp4", "dp4_mp2_opt2", "dp2_mp2_pp2")
CHECKPOINTS = Path("output", "checkpoint")


@pytest.mark.parametrize("name", NEW)
def test_untouched_trees_are_resumed_with_every_tensor_right(mindformers, tmp_path, name):
    root = copy_tree(name, tmp_path / "checkpoint", mindformers.version)
    answer = mindformers.resume_new(root, 8)
    assert tensors(answer) == true_contents(name, 200, tmp_path)
    assert answer["path"] == str(root / "iteration_00000200")
    assert answer["common"]["global_step"] == 200


def test_an_untouched_legacy_tree_is_resumed_with_every_tensor_right(mindformers, fixtures):
    root = fixtures / "mindformers_legacy" / CHECKPOINTS
    answer = mindformers.resume_legacy(root, 4, "safetensors")
    assert answer["names"] == {str(rank): f"CKP_rank_{rank}-1_200.safetensors" for rank in range(4)}
    saved = {rank: digests(root / f"rank_{rank}" / name) for rank, name in answer["names"].items()}
    assert tensors(answer) == saved
    assert len(saved["0"]) > 50


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
    loaded, truth = tensors(mindformers.resume_new(root, 8)), true_contents("dp2_mp4", 200, tmp_path)
    assert {name for rank in truth for name, value in loaded[rank].items() if value != truth[rank][name]}


@pytest.fixture
def output(fixtures, tmp_path):
    """Eight ranks, data 2 x model 4: ranks r and r + 4 hold the same slice. Two steps, no rank lists."""
    return make_mindformers_tree(fixtures / "dp2_mp4", tmp_path / "output")


def test_a_legacy_tree_that_lost_two_ranks_is_refused_recovered_and_resumed(mindformers, output, recover_ckpt):
    whole = mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")
    for rank in (2, 5):
        shutil.rmtree(output / "checkpoint" / f"rank_{rank}")
    assert "is not found" in mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")["error"]
    done = recover_ckpt("apply", output)
    assert done.code == 0, done.out + done.err
    answer = mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")
    assert tensors(answer) == tensors(whole)
    assert answer["names"] == {str(rank): f"CKP_rank_{rank}-2_77.ckpt" for rank in range(8)}


def test_a_legacy_tree_goes_back_a_step_where_both_holders_are_torn(mindformers, output, recover_ckpt):
    for rank in (1, 5):
        torn = output / "checkpoint" / f"rank_{rank}" / f"CKP_rank_{rank}-2_77.ckpt"
        torn.chmod(0o600)
        os.truncate(torn, 100)
    assert "Failed to read the checkpoint file" in mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")["error"]
    assert recover_ckpt("apply", output).code == 0
    answer = mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")
    assert set(answer["names"].values()) == {f"CKP_rank_{rank}-1_77.ckpt" for rank in range(8)}
    assert len(tensors(answer)) == 8


def test_a_legacy_tree_with_a_missing_file_is_resumed_a_step_earlier_without_a_question(mindformers, output):
    (output / "checkpoint" / "rank_1" / "CKP_rank_1-2_77.ckpt").unlink()
    answer = mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")
    assert answer["names"]["0"] == "CKP_rank_0-1_77.ckpt"
    (output / "checkpoint" / "rank_1" / "CKP_rank_1-1_77.ckpt").unlink()
    assert "No checkpoint could be resumed" in mindformers.resume_legacy(output / "checkpoint", 8, "ckpt")["error"]


def test_lost_and_torn_files_are_recovered_and_resumed(mindformers, tmp_path, recover_ckpt):
    """Ranks 0 and 2, and 1 and 3, hold the same in this tree; the save was struck before the tracker was written."""
    root = copy_tree("dp2_mp2_pp2", tmp_path / "checkpoint", mindformers.version)
    newest = root / "iteration_00000200"
    for kind in ("model", "opt"):
        (newest / f"llama_tiny-{kind}-0000001-0000008.safetensors").unlink()
    torn = newest / "llama_tiny-opt-0000002-0000008.safetensors"
    torn.chmod(0o600)
    os.truncate(torn, 1000)
    (newest / "common.json").unlink()
    (root / "latest_checkpointed_iteration.txt").write_text("")
    assert mindformers.resume_new(root, 8)["error"].startswith("ValueError: Invalid iteration")
    done = recover_ckpt("apply", root)
    assert done.code == 0, done.out + done.err
    answer = mindformers.resume_new(root, 8)
    assert tensors(answer) == true_contents("dp2_mp2_pp2", 200, tmp_path)
    assert answer["common"]["global_step"] == 200


def test_metadata_that_are_lost_are_rebuilt_and_resumed(mindformers, tmp_path, recover_ckpt):
    root = copy_tree("dp4_mp2_opt2", tmp_path / "checkpoint", mindformers.version)
    (root / "iteration_00000200" / "metadata.json").unlink()
    assert "error" in mindformers.resume_new(root, 8)
    done = recover_ckpt("apply", root)
    assert done.code == 0, done.out + done.err
    assert tensors(mindformers.resume_new(root, 8)) == true_contents("dp4_mp2_opt2", 200, tmp_path)


def test_where_a_chunk_is_lost_the_iteration_before_is_resumed(mindformers, tmp_path, recover_ckpt):
    """Each rank of this tree holds a part of one weight alone."""
    root = copy_tree("dp2_mp4", tmp_path / "checkpoint", mindformers.version)
    (root / "iteration_00000200" / "llama_tiny-model-0000003-0000008.safetensors").unlink()
    assert mindformers.resume_new(root, 8)["error"].startswith("FileNotFoundError")
    done = recover_ckpt("apply", root)
    assert done.code == 0, done.out + done.err
    answer = mindformers.resume_new(root, 8)
    assert answer["path"] == str(root / "iteration_00000100")
    assert tensors(answer) == true_contents("dp2_mp4", 100, tmp_path)
