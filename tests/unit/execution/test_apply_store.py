import os
from itertools import count

import pytest

pytest.importorskip("fsspec")

from ms_recover import api, backing_up
from ms_recover.errors import StorageError, UsageError, VerificationError
from ms_recover.execution.apply_store import jobs_with_room
from ms_recover.model.options import ScanOptions
from ms_recover.stores.urls import open_plain, open_store
from ms_recover.testing.trees import make_tree, save_manifests

NUMBERS = count()
SLICE = "ckpt_dir{}/test-1_8.ckpt"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2, parameters={"w": 3000, "b": 7})


def uploaded(tree):
    """Put a tree into a store; return its URL."""
    url = f"memory://applied{next(NUMBERS)}/run"
    with open_plain(url) as store:
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                with store.create(str(path.relative_to(tree))) as file:
                    file.write(path.read_bytes())
                    file.commit()
    return url


def bytes_at(url, path):
    with open_store(url) as store, store.open(path) as file:
        return file.read_at(0, file.size)


def remove(url, *paths):
    with open_plain(url) as store:
        for path in paths:
            store.remove(path)


def test_a_lost_slice_is_recovered_in_its_store(tree, tmp_path):
    save_manifests(tree)
    url = uploaded(tree)
    expected = bytes_at(url, SLICE.format(3))
    remove(url, SLICE.format(3), "ckpt_dir3/group_info.pb")
    plan = api.plan(api.scan(url))
    assert plan.root == url
    api.check(plan)
    (tmp_path / "scratch").mkdir()
    outcome = api.apply(plan, scratch=str(tmp_path / "scratch"))
    assert (outcome.exit_code, [result.status for result in outcome.results]) == (0, ["copied"])
    assert outcome.group_files == ("ckpt_dir3/group_info.pb",)
    assert bytes_at(url, SLICE.format(3)) == expected
    assert api.verify(api.scan(url)).ok
    assert os.listdir(tmp_path / "scratch") == []
    assert not api.plan(api.scan(url)).changes_anything


def test_a_whole_rank_that_is_lost_comes_back_with_its_manifest(tree):
    save_manifests(tree)
    url = uploaded(tree)
    remove(url, *(f"ckpt_dir3/{path.name}" for path in (tree / "ckpt_dir3").iterdir()))
    outcome = api.apply(api.plan(api.scan(url)))
    assert outcome.exit_code == 0
    (file,) = [file for file in api.scan(url).slices if file.rank == 3]
    assert file.manifest is not None
    assert file.manifest.provenance.kind == "copied"


def test_a_target_that_appeared_meanwhile_is_not_replaced(tree):
    save_manifests(tree)
    url = uploaded(tree)
    remove(url, SLICE.format(3))
    plan = api.plan(api.scan(url))
    with open_plain(url) as store, store.create(SLICE.format(3)) as file:
        file.write(b"of somebody else")
        file.commit()
    outcome = api.apply(plan)
    assert outcome.exit_code == VerificationError.exit_code
    assert "appeared or changed" in outcome.results[0].error
    assert bytes_at(url, SLICE.format(3)) == b"of somebody else"


def test_a_source_that_changed_is_not_used(tree):
    save_manifests(tree)
    url = uploaded(tree)
    remove(url, SLICE.format(3))
    plan = api.plan(api.scan(url))
    for action in plan.actions:
        for replica in action.replicas:
            with open_plain(url) as store, store.create(replica.path) as file:
                file.write(bytes(replica.state.bytes))
                file.commit()
    with pytest.raises(VerificationError):
        api.check(plan)
    assert api.apply(plan).exit_code == VerificationError.exit_code
    assert SLICE.format(3) not in {file.path for file in api.scan(url).slices}


def test_a_tree_in_a_store_is_sealed(tree):
    url = uploaded(tree)
    sealed, found = api.seal(api.scan(url))
    assert len(sealed) == 4
    assert found.ok
    assert all(file.manifest is not None for file in api.scan(url).slices)
    assert api.seal(api.scan(url))[0] == ()


def test_a_backup_is_no_root_to_write_to(tree, tmp_path):
    save_manifests(tree)
    for url in (str(tmp_path / "backup"), f"memory://applied{next(NUMBERS)}"):
        backing_up.copy(api.scan(tree), url)
        with open_store(url) as store, pytest.raises(UsageError, match="only read"):
            store.create("x")
        assert api.seal(api.scan(url))[0] == ()


def test_room_for_what_is_made_is_looked_for(tmp_path):
    assert jobs_with_room([1000, 1000], 4, str(tmp_path)) == 4
    with pytest.raises(StorageError, match="--scratch"):
        jobs_with_room([1 << 60], 4, str(tmp_path))
    assert jobs_with_room([], 4, str(tmp_path)) == 4
    assert api.scan(make_tree(tmp_path / "x"), ScanOptions()).slices
