import os
from dataclasses import replace
from itertools import count

import pytest

pytest.importorskip("fsspec")

from ms_recover import api
from ms_recover.errors import StorageError, UsageError, VerificationError
from ms_recover.execution.destination import jobs_with_room
from ms_recover.execution.set_aside import keep_outvoted
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import GivenUpSlice
from ms_recover.model.steps import Step
from ms_recover.reporting.outcome_text import outcome_text
from ms_recover.stores.urls import open_plain, open_store
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.mishaps import overwrite

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
        api.copy(api.scan(tree), url)
        with open_store(url) as store, pytest.raises(UsageError, match="only read"):
            store.create("x")
        assert api.seal(api.scan(url))[0] == ()


def test_room_for_what_is_made_is_looked_for(tmp_path):
    assert jobs_with_room([1000, 1000], 4, str(tmp_path)) == 4
    with pytest.raises(StorageError, match="--scratch"):
        jobs_with_room([1 << 60], 4, str(tmp_path))
    assert jobs_with_room([], 4, str(tmp_path)) == 4
    assert api.scan(make_tree(tmp_path / "x"), ScanOptions()).slices


def flipped(tree, rank=1):
    """Flip a bit in the slice of one of three replicas without manifests; return the tree's URL and both bytes."""
    path = tree / SLICE.format(rank)
    whole = path.read_bytes()
    overwrite(path, whole[:-1] + bytes([whole[-1] ^ 1]))
    return uploaded(tree), path.read_bytes(), whole


def test_an_outvoted_slice_is_kept_in_its_store(tmp_path):
    url, old, whole = flipped(make_tree(tmp_path / "tree", data_parallel=3))
    plan = api.plan(api.scan(url))
    outcome = api.apply(plan)
    assert outcome.exit_code == 0
    assert [result.set_aside for result in outcome.results] == [f"{SLICE.format(1)}.outvoted"]
    assert bytes_at(url, f"{SLICE.format(1)}.outvoted") == old
    assert bytes_at(url, SLICE.format(1)) == whole
    after = api.plan(api.scan(url))
    assert not after.changes_anything
    (note,) = [note for note in after.notes if note.path.endswith(".outvoted")]
    assert f"give it, and what lies beside it, the name {url}/{SLICE.format(1)} in the store" in note.reason


def test_what_an_interrupted_recovery_kept_in_a_store_is_kept_once(tmp_path):
    url, old, whole = flipped(make_tree(tmp_path / "tree", data_parallel=3))
    with open_plain(url) as store:
        keep_outvoted(store, SLICE.format(1))
    assert api.apply(api.plan(api.scan(url))).exit_code == 0
    assert bytes_at(url, f"{SLICE.format(1)}.outvoted") == old
    assert bytes_at(url, SLICE.format(1)) == whole
    with open_store(url) as store:
        assert [one.name for one in store.list("ckpt_dir1") if "outvoted" in one.name] == ["test-1_8.ckpt.outvoted"]


@pytest.mark.parametrize("changed", [False, True], ids=["as planned", "changed"])
def test_a_slice_that_is_given_up_is_renamed_in_its_store_or_the_recovery_is_not_done(tmp_path, changed):
    tree = make_tree(tmp_path / "tree", steps=[Step(1, 8), Step(1, 9)])
    for rank in (0, 1, 2):
        (tree / f"ckpt_dir{rank}" / "test-1_9.ckpt").unlink()
    save_manifests(tree)
    url, path = uploaded(tree), "ckpt_dir3/test-1_9.ckpt"
    data = bytes_at(url, path)
    with open_plain(url) as store:
        state = store.stat(path).state
    one = GivenUpSlice(rank=3, path=path, state=replace(state, bytes=state.bytes + changed), reason="a rerun's")
    plan = replace(api.plan(api.scan(url), PlanOptions(step=Step(1, 8))), set_aside=(one,))
    assert plan.changes_anything
    outcome = api.apply(plan)
    if changed:
        assert outcome.exit_code == VerificationError.exit_code
        assert "ckpt_dir3/test-1_9.ckpt changed after the plan was made" in outcome.errors[0]
        assert "FAILED" in outcome_text(outcome, None)
        assert bytes_at(url, path) == data
    else:
        assert (outcome.exit_code, outcome.set_aside) == (0, (f"{path}.superseded",))
        assert bytes_at(url, f"{path}.superseded") == data
        assert [one.step for one in api.scan(url).set_aside] == [Step(1, 9)]
        assert [file.step for file in api.scan(url).slices] == [Step(1, 8)] * 4


@pytest.mark.parametrize("manifests", [True, False])
def test_a_slice_whose_bytes_lie_in_the_store_already_gets_its_manifest_alone(tree, manifests):
    if manifests:
        save_manifests(tree)
    url = uploaded(tree)
    data = bytes_at(url, SLICE.format(0))
    remove(url, SLICE.format(2))
    plan = api.plan(api.scan(url))
    (action,) = plan.actions
    assert (action.rank, action.source_rank) == (2, 0)
    with open_plain(url) as store:
        with store.create(SLICE.format(2)) as file:
            file.write(data)
            file.commit()
        state = store.stat(SLICE.format(2)).state
    outcome = api.apply(replace(plan, actions=(replace(action, replaces=state),)))
    assert (outcome.exit_code, [result.status for result in outcome.results]) == (0, ["already there"])
    (file,) = [file for file in api.scan(url).slices if file.rank == 2]
    assert (file.manifest.provenance.kind, file.manifest.size) == ("copied", len(data))
    assert api.verify(api.scan(url)).ok


def test_a_slice_that_went_away_meanwhile_is_recovered_as_on_a_local_tree(tmp_path):
    """Nothing newer is replaced."""
    url, _, whole = flipped(make_tree(tmp_path / "tree", data_parallel=3))
    plan = api.plan(api.scan(url))
    remove(url, SLICE.format(1))
    outcome = api.apply(plan)
    assert (outcome.exit_code, outcome.results[0].set_aside) == (0, None)
    assert bytes_at(url, SLICE.format(1)) == whole
