"""The layouts of MindSpore's tutorials, its model zoo, MindFormers and MindIO, from the folder a user stands in."""

import os
import shutil

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree

LAYOUTS = {
    "tutorial": ("src_checkpoints/rank_{rank}", "checkpoint-{step}.ckpt"),
    "of rank": ("ckpt_of_rank/{rank}", "net-{step}.ckpt"),
    "behind": ("rank_{rank}_ckpt", "net-{step}.ckpt"),
    "model zoo": ("ckpt_{rank}", "{rank}-{step}.ckpt"),
    "number behind the prefix": ("ckpt_{rank}", "pangu{rank}-{step}.ckpt"),
    "processes": ("device{rank}/ckpt_{rank}", "net-{step}.ckpt"),
    "processes, one folder": ("device{rank}/ckpt", "net-{step}.ckpt"),
    "processes, directly": ("device{rank}", "net-{step}.ckpt"),
    "processes, MindFormers": ("device{rank}/output/checkpoint/rank_{rank}", "CKP_rank_{rank}-{step}.ckpt"),
    "MindIO": ("ttp_saved_checkpoints-step_16/rank_{rank}", "ttp_rank_{rank}-{step}.ckpt"),
    "MindFormers": ("output/checkpoint/rank_{rank}", "CKP_rank_{rank}-{step}.ckpt"),
    "MindFormers, started again": ("output/checkpoint/rank_{rank}", "llama_rank_{rank}_1-{step}.ckpt"),
    "MindFormers, network": ("output/checkpoint_network/rank_{rank}", "CKP_rank_{rank}-network-{step}.ckpt"),
    "MindFormers, trainable": (
        "checkpoint_trainable/rank_{rank}",
        "lora_rank_8_rank_{rank}_2-trainable_params-{step}.ckpt",
    ),
    "step in the folder": ("ckpt_100/rank_{rank}", "net-{step}.ckpt"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_comes_back_from_every_folder_a_user_may_stand_in(layout, tmp_path, recover_ckpt):
    directory, name = LAYOUTS[layout]
    top = make_tree(tmp_path / "job", directory=directory, name=name, steps=[Step(1, 8), Step(2, 8)])
    container = directory.partition("{rank}")[0].rpartition("/")[0]
    parts = container.split("/") if container else []
    stands = [top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    for number, root in enumerate(stands):
        rank = (3 - number) % 4
        folder = top / directory.format(rank=rank)
        target = folder / name.format(rank=rank, step="2_8")
        truth = target.read_bytes()
        shutil.rmtree(folder)
        done = recover_ckpt("apply", root)
        assert done.code == 0, (root, done.out, done.err)
        assert target.read_bytes() == truth
        assert sorted(os.listdir(folder)) == sorted(["group_info.pb", target.name, f"{target.name}.manifest.json"])
        checked = recover_ckpt("verify", root, "--step", "2_8")
        assert checked.code == 0, checked.out
    assert recover_ckpt("plan", top).out.count("COMPLETE") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_comes_back_under_its_own_name(layout, tmp_path, recover_ckpt):
    directory, name = LAYOUTS[layout]
    top = make_tree(tmp_path / "job", directory=directory, name=name)
    slices = [top / directory.format(rank=rank) / name.format(rank=rank, step="1_8") for rank in range(4)]
    truth = [path.read_bytes() for path in slices]
    for first in (0, 2):
        for path in slices[first : first + 2]:
            path.unlink()
        assert recover_ckpt("apply", top).code == 0
        assert [path.read_bytes() for path in slices] == truth


def test_steps_in_folders_of_mindio_are_one_set(tmp_path, recover_ckpt):
    for number, step in enumerate((Step(1, 8), Step(2, 8))):
        folder = f"ttp_saved_checkpoints-step_{8 * (number + 1)}/rank_{{rank}}"
        make_tree(tmp_path, directory=folder, name="ttp_rank_{rank}-{step}.ckpt", steps=[step])
    unfinished = tmp_path / "ttp_saved_checkpoints-step_24_tmp"
    make_tree(unfinished, directory="rank_{rank}", name="ttp_rank_{rank}-{step}.ckpt", steps=[Step(3, 8)])
    found = recover_ckpt("scan", tmp_path, "--json").json
    assert [(step["epoch"], step["step"]) for step in found["steps"]] == [(2, 8), (1, 8)]
    assert [note["path"] for note in found["notes"]] == [unfinished.name]


def test_what_is_no_directory_of_a_rank_does_not_become_one(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", directory="ckpt_{rank}")
    for name in ("ckpt_8", "device9", "rank_1000000", "rank_7_ckpt", "checkpoint", "7", "ckpt_of_rank/8", "output"):
        (tree / name).mkdir(parents=True)
    (tree / "ckpt_9").write_text("a file")
    (tree / "rank_9").mkdir()
    (tree / "rank_9" / "train.log").write_text("step 1")
    (tree / "latest_ckpt").symlink_to("ckpt_0")
    (tree / "ckpt_copy").symlink_to(".")
    made = recover_ckpt("plan", tree, "--json").json
    assert made["world_size"] == 4
    assert len(made["ranks"]) == 4
    assert made["warnings"] == []


def test_devices_of_nodes_are_no_ranks_where_their_folders_say_other_ranks(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", directory="rank_{rank}")
    for rank in (2, 3):
        (tree / f"device{rank - 2}").mkdir()
        (tree / f"rank_{rank}").rename(tree / f"device{rank - 2}/rank_{rank}")
    found = recover_ckpt("scan", tree / "device1", "--json").json
    assert found["ranks"] == [3]
    assert [file["path"] for file in found["slices"]] == ["rank_3/test-1_8.ckpt"]
