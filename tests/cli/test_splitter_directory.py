"""recover-ckpt on the directory in which a split model keeps its parts' slices."""

import shutil
from pathlib import Path

import pytest

from ms_recover.errors import UnrecoverableError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.splitting.slice_directory import slice_name
from ms_recover.splitting.slices import SliceStore
from ms_recover.testing.trees import slice_bytes

NAME = slice_name(0)
PARTS = [{"embed.table": 256}, {"block.weight": 96, "block.bias": 8}, {"head.weight": 64, "head.bias": 2}]


def write(path, data):
    Path(path).write_bytes(data)


@pytest.fixture(params=["serving", "closed"])
def store(tmp_path, request):
    made = SliceStore(tmp_path / "slices", len(PARTS))
    for part, parameters in enumerate(PARTS):
        made.save(part, lambda path, p=part: write(path, content(p)), parameters)
    if request.param == "closed":
        made.close()
    yield made
    made.close()


def content(part):
    return slice_bytes(PARTS[part], part)


def at(store, tmp_path, rank):
    return tmp_path / "slices" / f"rank_{rank}" / NAME


def test_it_is_a_tree_with_nothing_to_do(store, recover_ckpt):
    scanned = recover_ckpt("scan", store.directory)
    assert scanned.code == 0
    assert "6" in scanned.out
    plan = recover_ckpt("plan", store.directory, "--json")
    assert (plan.code, plan.json["actions"], plan.json["world_size"]) == (0, [], 6)
    assert plan.json["run_id"] == store.run_id
    verified = recover_ckpt("verify", store.directory, "--deep")
    assert verified.code == 0
    assert "SOUND: all 6 slices" in verified.out


@pytest.mark.parametrize("rank", [2, 3])
def test_a_deleted_slice_is_planned_and_restored(store, tmp_path, recover_ckpt, rank):
    path = at(store, tmp_path, rank)
    path.unlink()
    path.with_name(NAME + MANIFEST_SUFFIX).unlink()
    plan = recover_ckpt("plan", store.directory, "--json")
    assert [(action["rank"], action["source_rank"]) for action in plan.json["actions"]] == [(rank, 5 - rank)]
    assert recover_ckpt("apply", store.directory).code == 0
    assert path.read_bytes() == content(1)
    assert recover_ckpt("plan", store.directory, "--json").json["actions"] == []
    assert recover_ckpt("verify", store.directory, "--deep").code == 0


def test_a_deleted_directory_is_restored_with_its_rank_list(store, tmp_path, recover_ckpt):
    shutil.rmtree(at(store, tmp_path, 5).parent)
    shutil.rmtree(at(store, tmp_path, 0).parent)
    assert recover_ckpt("apply", store.directory).code == 0
    for rank in (0, 5):
        assert at(store, tmp_path, rank).read_bytes() == content(rank // 2)
        assert (at(store, tmp_path, rank).parent / "group_info.pb").exists()
    assert recover_ckpt("verify", store.directory).code == 0


@pytest.mark.parametrize("store", ["serving"], indirect=True)
def test_damage_is_found_and_either_side_repairs_it(store, tmp_path, recover_ckpt):
    path = at(store, tmp_path, 4)
    for repair in (lambda: store.path(2), lambda: recover_ckpt("apply", store.directory)):
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.unlink()
        path.write_bytes(data)
        found = recover_ckpt("verify", store.directory)
        assert found.code == 5
        assert "rank_4" in found.out
        assert "head.bias" in found.out
        repair()
        assert path.read_bytes() == content(2)
        assert recover_ckpt("verify", store.directory, "--deep").code == 0
        assert store.path(2) == (str(path), None)


@pytest.mark.parametrize("store", ["serving"], indirect=True)
def test_a_part_without_any_slice_is_unrecoverable(store, tmp_path, recover_ckpt):
    for rank in (2, 3):
        shutil.rmtree(at(store, tmp_path, rank).parent)
    refused = recover_ckpt("plan", store.directory, "--json")
    assert refused.code == 4
    assert {rank["rank"] for rank in refused.json["ranks"] if rank["verdict"] == "unrecoverable"} == {2, 3}
    with pytest.raises(UnrecoverableError, match="part 1"):
        store.path(1)


def test_the_audit_knows_what_replicas_outlive(store, recover_ckpt):
    audit = recover_ckpt("audit", store.directory, "--survive", "rank", "--json")
    assert audit.code == 0
    (level,) = audit.json["levels"]
    assert (level["survived"], level["smallest_fatal"]) == (1, 2)
    assert level["minimal"] == [["0", "1"], ["2", "3"], ["4", "5"]], "the replicas of each part"


def test_a_copy_is_a_backup_from_which_a_part_comes_back(store, tmp_path, recover_ckpt):
    copied = recover_ckpt("copy", store.directory, tmp_path / "backup")
    assert copied.code == 0
    for rank in (2, 3):
        shutil.rmtree(at(store, tmp_path, rank).parent)
    assert recover_ckpt("plan", store.directory).code == 4
    assert recover_ckpt("apply", store.directory, "--from", tmp_path / "backup").code == 0
    assert at(store, tmp_path, 2).read_bytes() == at(store, tmp_path, 3).read_bytes() == content(1)
    assert recover_ckpt("verify", store.directory, "--deep").code == 0
