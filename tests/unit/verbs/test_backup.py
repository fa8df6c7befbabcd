import json
import os
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import (
    FormatError,
    MissingInputError,
    MsRecoverError,
    StorageError,
    UnrecoverableError,
    UsageError,
    VerificationError,
)
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import write_manifest
from ms_recover.execution.state_files import read_state, write_state
from ms_recover.file_names import BACKUP_MARK, STATE_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.scanning.read import read_store
from ms_recover.stores.backup_index import decode_index, encode_index, index_path
from ms_recover.stores.backup_store import BackupStore, read_indexes
from ms_recover.stores.urls import open_plain, open_store
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.verbs.several_trees import SeveralTrees

FIXTURE = Path(__file__).parents[2] / "data/fixtures/dp2_mp4"
NUMBERS = count()


@pytest.fixture
def tree(tmp_path):
    """Two groups of two ranks that hold the same, and nothing sealed."""
    return make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2, parameters={"w": 3000, "b": 7})


@pytest.fixture(params=["local", "memory"])
def url(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "backup")
    pytest.importorskip("fsspec")
    return f"memory://backup{next(NUMBERS)}/run"


def copy(tree, url, **options):
    return api.copy(api.scan(tree), url, **options)


def files(url, folder=""):
    with open_plain(url) as store:
        found = []
        for entry in store.list(folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            found += files(url, path) if entry.kind == "folder" else [path]
        return found


def remember(tree):
    """Return the bytes, permissions and times of all files."""
    paths = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    return {str(path.relative_to(tree)): (path.read_bytes(), path.stat().st_mode & 0o777) for path in paths}


def test_equal_slices_go_once_and_all_are_sealed(tree, url):
    outcome = copy(tree, url)
    slices = [path for path in files(url) if path.startswith("objects/")]
    assert outcome.files == 4 * 3 == len(read_index(url).files)  # slice, manifest, rank list
    assert outcome.objects == len(slices) == 2 + 4 + 2
    assert outcome.uploaded == outcome.objects
    assert not list(tree.rglob("*.manifest.json"))
    plan = api.plan(api.scan(url))
    assert (plan.step, {rank.verdict for rank in plan.ranks}) == (Step(1, 8), {"keep"})
    assert {rank.evidence for rank in plan.ranks} == {"manifest"} or plan.root == url
    assert api.verify(api.scan(url)).ok


def read_index(url):
    with open_plain(url) as store:
        (index,) = read_indexes(store).values()
        return index


def test_a_second_run_sends_nothing(tree, url):
    first = copy(tree, url)
    before = files(url)
    second = copy(tree, url)
    assert (second.uploaded, second.uploaded_bytes) == (0, 0)
    assert second.index == first.index
    assert files(url) == before


def test_a_tree_whose_name_is_no_text_is_a_backup_like_any_other(tmp_path):
    root = tmp_path / "tr\udcffee"
    make_tree(root, data_parallel=2, model_parallel=2, parameters={"w": 3000})
    url = str(tmp_path / "copy")
    first = copy(root, url)
    assert read_index(url).root == str(root)
    assert copy(root, url).uploaded == 0
    assert {rank.verdict for rank in api.plan(api.scan(url)).ranks} == {"keep"}
    assert first.files == 4 * 3


def test_the_path_of_an_index_is_a_root(tree, url):
    first = copy(tree, url).index
    shutil.rmtree(tree)
    make_tree(tree, data_parallel=2, model_parallel=2, parameters={"w": 3001})
    second = copy(tree, url).index
    for index, size in ((first, 3000), (second, 3001)):
        inventory = api.scan(f"{url}/{index}")
        assert (inventory.root, inventory.slices[0].parameters[0].shape) == (f"{url}/{index}", (size,))
        assert {rank.verdict for rank in api.plan(inventory).ranks} == {"keep"}
        assert api.verify(inventory).ok


def test_files_come_back_as_they_were(tree, url, tmp_path):
    save_manifests(tree)
    (tree / "ckpt_dir1" / "test-1_8.ckpt").chmod(0o400)
    copy(tree, url)
    with open_store(url) as store:
        assert isinstance(store, BackupStore)
        for path, (data, mode) in remember(tree).items():
            assert store.stat(path).mtime_ns == (tree / path).stat().st_mtime_ns
            with store.open(path, store.stat(path).state) as file:
                assert file.read_at(0, file.size) == data
                assert file.form().mode == mode
                file.check_unchanged()


def test_several_steps_lie_beside_each_other_and_share_contents(tree, url):
    copy(tree, url)
    first = files(url)
    for path in tree.rglob("test-1_8.ckpt"):
        path.rename(path.with_name("test-1_9.ckpt"))
    outcome = copy(tree, url)
    assert set(first) <= set(files(url))
    assert outcome.uploaded == 4  # manifests name other files; slices are the same bytes
    assert api.scan(url).steps == (Step(1, 9), Step(1, 8))
    assert api.plan(api.scan(url), PlanOptions(step=Step(1, 8))).recoverable


def test_a_step_that_is_not_whole_is_refused_with_the_rank(tree, url):
    (tree / "ckpt_dir3" / "test-1_8.ckpt").unlink()
    with pytest.raises(VerificationError, match=r"rank 3.*recover-ckpt apply"):
        copy(tree, url)
    (tree / "ckpt_dir1" / "test-1_8.ckpt").unlink()
    with pytest.raises(UnrecoverableError, match=r"no step of .* is proven.*rank"):
        copy(tree, url)
    assert not os.path.exists(url) or os.listdir(url) == []


def test_a_damaged_slice_is_refused(tree, url):
    save_manifests(tree)
    path = tree / "ckpt_dir2" / "test-1_8.ckpt"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(VerificationError, match=r"ckpt_dir2|rank 2"):
        copy(tree, url)


def flip_a_bit(path):
    """Change a byte of a slice, and not its time."""
    data, times = bytearray(path.read_bytes()), path.stat()
    data[-40] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def slice_sizes(tree):
    return [path.stat().st_size for path in tree.rglob("*.ckpt")]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_slice_with_a_manifest_is_read_when_it_is_sent_and_not_before(tree, tmp_path, sealed):
    if sealed:
        save_manifests(tree)
    sent = []
    outcome = copy(tree, str(tmp_path / "backup"), progress=sent.append)
    assert sum(sent) - outcome.bytes == (0 if sealed else sum(slice_sizes(tree)))


@pytest.mark.parametrize("sealed", [False, True])
def test_a_dry_run_reads_each_slice_once_or_each_contents_where_manifests_say_which_are_equal(tree, tmp_path, sealed):
    """Each contents is that of two slices."""
    if sealed:
        save_manifests(tree)
    read = []
    copy(tree, str(tmp_path / "backup"), dry_run=True, progress=read.append)
    assert sum(read) == sum(slice_sizes(tree)) // (2 if sealed else 1)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_slice_that_is_not_what_its_manifest_says_makes_the_step_before_it_the_one_to_copy(tmp_path, dry_run):
    tree = make_tree(tmp_path / "tree", data_parallel=1, steps=(Step(1, 8), Step(2, 8)))
    save_manifests(tree)
    flip_a_bit(tree / "ckpt_dir1" / "test-2_8.ckpt")
    assert copy(tree, str(tmp_path / "backup"), dry_run=dry_run).step == Step(1, 8)


def test_a_step_that_is_not_whole_is_left_for_the_one_before_by_what_was_read_of_it(tmp_path):
    """The slice of rank 0 is gone, and the only other one of its group is not what its manifest says."""
    tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=1, steps=(Step(1, 8), Step(2, 8)))
    save_manifests(tree)
    flip_a_bit(tree / "ckpt_dir1" / "test-2_8.ckpt")
    for name in ("test-2_8.ckpt", "test-2_8.ckpt.manifest.json"):
        (tree / "ckpt_dir0" / name).unlink()
    assert copy(tree, str(tmp_path / "backup")).step == Step(1, 8)


def test_a_slice_that_changes_after_it_was_read_ends_the_copy(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=1)
    total, read = sum(slice_sizes(tree)), []

    def change(count):
        read.append(count)
        if sum(read) == total:
            flip_a_bit(tree / "ckpt_dir0" / "test-1_8.ckpt")

    with pytest.raises(VerificationError, match="it changes, or its device fails; copy again"):
        copy(tree, str(tmp_path / "backup"), progress=change)


def test_a_slice_that_is_kept_against_its_replicas_is_not_proven(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=3, model_parallel=1)
    flip_a_bit(tree / "ckpt_dir1" / "test-1_8.ckpt")
    save_manifests(tree)
    assert {rank.verdict for rank in api.plan(api.scan(tree)).ranks} == {"keep"}
    with pytest.raises(VerificationError, match=r"is not proven: ckpt_dir1/test-1_8\.ckpt suspect"):
        copy(tree, str(tmp_path / "backup"))


def test_a_slice_that_its_manifest_alone_makes_odd_is_judged_by_its_bytes(tmp_path):
    """Its manifest is of other contents; it has those of its replicas."""
    tree = make_tree(tmp_path / "tree", data_parallel=3, model_parallel=1)
    path = tree / "ckpt_dir1" / "test-1_8.ckpt"
    flip_a_bit(path)
    save_manifests(tree)
    flip_a_bit(path)
    with pytest.raises(UnrecoverableError, match=r"nothing was copied: rank 1: ckpt_dir1/test-1_8\.ckpt: its contents"):
        copy(tree, str(tmp_path / "backup"))


def test_a_folder_that_holds_something_else_is_refused(tree, tmp_path):
    with pytest.raises(UsageError, match="no backup and not empty"):
        copy(tree, str(tree))
    assert not (tree / BACKUP_MARK).exists()


def test_a_damaged_object_is_noticed_and_sent_again(tree, tmp_path):
    url = str(tmp_path / "backup")
    copy(tree, url)
    objects = [path for path in (tmp_path / "backup" / "objects").rglob("*") if path.is_file()]
    largest = max(objects, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[100] ^= 1
    largest.chmod(0o600)
    largest.write_bytes(data)
    assert not api.verify(api.scan(url)).ok
    assert copy(tree, url).uploaded == 0  # what an index vouches for is looked at by its size
    outcome = copy(tree, url, verify=True)
    assert outcome.uploaded == 1
    assert api.verify(api.scan(url)).ok


@pytest.mark.parametrize("index", ["missing", "cut", "another"])
def test_without_its_index_every_object_is_looked_at_again(tree, tmp_path, index):
    """As a copy leaves it that was killed: what it sent is trusted by its bytes alone."""
    url = str(tmp_path / "backup")
    where = tmp_path / "backup" / copy(tree, url).index
    if index == "missing":
        where.unlink()
    elif index == "cut":
        where.write_bytes(where.read_bytes()[:-20])
    else:
        where.write_text(json.dumps({**json.loads(where.read_text()), "files": []}))
    largest = max((tmp_path / "backup" / "objects").rglob("*-*"), key=lambda path: path.stat().st_size)
    largest.chmod(0o600)
    largest.write_bytes(largest.read_bytes()[:-1] + b"?")
    outcome = copy(tree, url)
    assert (outcome.uploaded, outcome.read_back) == (1, outcome.objects)
    assert api.verify(api.scan(url)).ok


@pytest.mark.parametrize("damaged", [False, True])
def test_a_backup_is_verified_from_its_device(tree, tmp_path, damaged):
    copy(tree, str(tmp_path / "backup"))
    if damaged:
        largest = max((tmp_path / "backup" / "objects").rglob("*-*"), key=lambda path: path.stat().st_size)
        largest.chmod(0o600)
        largest.write_bytes(largest.read_bytes()[:-1] + b"?")
    assert api.verify(api.scan(tmp_path / "backup"), deep=True).ok is not damaged


def test_a_full_slice_is_put_together_out_of_a_backup(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "tree")
    copy(tmp_path / "tree", str(tmp_path / "backup"))
    inventory = api.scan(tmp_path / "backup")
    with pytest.raises(UsageError, match="only read"):
        api.complete(inventory, 1)
    assert api.complete(inventory, 1, output=str(tmp_path / "dry.ckpt"), dry_run=True).status == "planned"
    api.complete(inventory, 1, output=str(tmp_path / "out.ckpt"))
    api.complete(api.scan(tmp_path / "tree"), 1, output=str(tmp_path / "same.ckpt"))
    assert (tmp_path / "out.ckpt").read_bytes() == (tmp_path / "same.ckpt").read_bytes()
    assert not (tmp_path / "dry.ckpt").exists()


def test_a_damaged_rank_list_in_a_backup_is_never_used(tree, tmp_path):
    url = str(tmp_path / "backup")
    copy(tree, url)
    file = next(one for one in read_index(url).files if one.path.endswith("group_info.pb"))
    path = tmp_path / "backup" / "objects" / file.digest[9:11] / f"{file.digest[9:]}-{file.size}"
    path.chmod(0o600)
    path.write_bytes(bytes(file.size))
    with open_store(url) as store, pytest.raises(VerificationError, match="copy it again"):
        store.read_small(file.path, "a rank list", 1000)


def test_what_a_killed_copy_left_is_nothing_until_the_index_is_there(tree, tmp_path):
    url = str(tmp_path / "backup")
    copy(tree, url)
    for index in (tmp_path / "backup" / "steps").iterdir():
        index.unlink()
    assert not api.scan(url, ScanOptions(may_be_empty=True)).slices
    outcome = copy(tree, url)
    assert outcome.uploaded == 0
    assert api.plan(api.scan(url)).recoverable


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"files": [{"path": "../x", "digest": "xxh3_128:" + "0" * 32, "bytes": 1, "mode": 420, "mtime_ns": 1}]},
        {"files": [{"path": "/x", "digest": "xxh3_128:" + "0" * 32, "bytes": 1, "mode": 420, "mtime_ns": 1}]},
        {"files": [{"path": "x", "digest": "xxh3_128:../../../x", "bytes": 1, "mode": 420, "mtime_ns": 1}]},
        {"files": [{"path": "x", "digest": "xxh3_128:" + "0" * 32, "bytes": -1, "mode": 420, "mtime_ns": 1}]},
        {"files": [{"path": "x", "digest": "xxh3_128:" + "0" * 32, "bytes": 1.5, "mode": 420, "mtime_ns": 1}]},
        {"files": [{"path": "x"}]},
        {"files": 5},
        {"step": "x"},
        {"world_size": True},
    ],
)
def test_a_malformed_index_is_refused(tree, tmp_path, change):
    url = str(tmp_path / "backup")
    where = tmp_path / "backup" / copy(tree, url).index
    where.write_text(json.dumps({**json.loads(where.read_text()), **change}))
    with pytest.raises(FormatError, match="not the index of a backup"):
        open_store(url)


def test_an_index_is_read_as_it_was_written(tree, tmp_path):
    copy(tree, str(tmp_path / "backup"))
    index = read_index(str(tmp_path / "backup"))
    assert decode_index(encode_index(index), "x") == index
    assert index_path(index).startswith("steps/1_8-")


def test_a_damaged_mark_is_an_error_and_never_an_empty_tree(tree, tmp_path):
    url = str(tmp_path / "backup")
    copy(tree, url)
    (tmp_path / "backup" / BACKUP_MARK).write_text("[]")
    with pytest.raises(FormatError, match="mark of a backup"):
        api.scan(url)
    with pytest.raises(FormatError, match="mark of a backup"):
        copy(tree, url)


def test_lost_ranks_come_back_from_a_backup(tree, url, tmp_path):
    from ms_recover.joint.shares import share_here
    from ms_recover.joint.union import unite

    save_manifests(tree)
    copy(tree, url)
    before = remember(tree)
    for rank in (1, 3):
        (tree / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    union = unite(api.scan(tree), [api.scan(url)])
    with open_store(url) as store, open_store(tree) as here:

        def read(wanted):
            there = [file for file in wanted if file.path in union.holders]
            return read_store(store, there).merged(read_store(here, [file for file in wanted if file not in there]))

        made = api.plan(union.inventory, PlanOptions(ranks=frozenset(range(4))), read=read)
        plan = share_here(made, union, frozenset(range(4)), {})
        outcome = api.apply(plan, sources=dict.fromkeys(union.holders, store))
    assert outcome.exit_code == 0, outcome
    after = remember(tree)
    assert {path: after[path] for path in before if path.endswith(".ckpt")} == {
        path: before[path] for path in before if path.endswith(".ckpt")
    }


def restore(root, source, **options):
    root.mkdir(exist_ok=True)
    local = api.scan(root, ScanOptions(may_be_empty=True))
    with SeveralTrees([source]) as trees:
        planned = trees.plan(local, PlanOptions(**options))
        return api.apply(planned.plan, sources=planned.sources)


def test_a_backup_fills_an_empty_folder_with_all_that_a_rank_has(tmp_path, url):
    """Slices, manifests, rank lists, strategy files, and the states that training saved."""
    tree = tmp_path / "run"
    shutil.copytree(FIXTURE, tree)
    save_manifests(tree)
    path = tree / "ckpt_dir1/test-2_77.ckpt"
    digest = write_state(str(path), encode_state({"scale": 2.0}))
    manifest = read_manifest(f"{path}.manifest.json")
    write_manifest(str(path), replace(manifest, training=TrainingRecord(started=1, state_digest=digest)))
    copy(tree, url)
    root = tmp_path / "new"
    outcome = restore(root, url)
    assert outcome.exit_code == 0, outcome.errors
    for rank in range(8):
        for name in ("test-2_77.ckpt", "strategy.ckpt"):
            assert (root / f"ckpt_dir{rank}" / name).read_bytes() == (tree / f"ckpt_dir{rank}" / name).read_bytes()
        lists = [read_group_info(where / f"ckpt_dir{rank}/group_info.pb").restore_ranks for where in (tree, root)]
        assert lists[0] == lists[1]
    brought = root / "ckpt_dir1/test-2_77.ckpt"
    assert read_state(str(brought), digest) == {"scale": 2.0}
    assert read_manifest(f"{brought}.manifest.json").training.state_digest == digest
    assert read_manifest(f"{brought}.manifest.json").provenance.sources[0].host == url
    assert api.verify(api.scan(root)).ok
    assert not restore(root, url).results


def test_a_damaged_state_is_left_behind(tree, tmp_path, caplog):
    save_manifests(tree)
    path = tree / "ckpt_dir1/test-1_8.ckpt"
    digest = write_state(str(path), encode_state({"scale": 2.0}))
    manifest = read_manifest(f"{path}.manifest.json")
    write_manifest(str(path), replace(manifest, training=TrainingRecord(started=1, state_digest=digest)))
    os.chmod(f"{path}{STATE_SUFFIX}", 0o600)
    Path(f"{path}{STATE_SUFFIX}").write_bytes(b"something else")
    assert restore(tmp_path / "new", str(tree), ranks=frozenset({1})).exit_code == 0
    assert "is damaged, and left out" in caplog.text
    assert read_manifest(tmp_path / "new/ckpt_dir1/test-1_8.ckpt.manifest.json").training.state_digest is None
    assert not Path(f"{tmp_path}/new/ckpt_dir1/test-1_8.ckpt{STATE_SUFFIX}").exists()


@pytest.mark.parametrize("state", ["sound", "damaged", "missing", "none"])
def test_a_state_is_copied_where_it_is_the_one_that_the_manifest_names(tree, tmp_path, state):
    save_manifests(tree)
    path = tree / "ckpt_dir1/test-1_8.ckpt"
    digest = write_state(str(path), encode_state({"scale": 2.0}))
    lying = Path(f"{path}{STATE_SUFFIX}")
    manifest = read_manifest(f"{path}.manifest.json")
    named = TrainingRecord(started=1, state_digest=digest if state != "none" else None)
    write_manifest(str(path), replace(manifest, training=named))
    if state == "damaged":
        lying.chmod(0o600)
        lying.write_bytes(b"something else")
    elif state == "missing":
        lying.unlink()
    copy(tree, str(tmp_path / "backup"))
    copied = [file.path for file in read_index(str(tmp_path / "backup")).files if file.path.endswith(STATE_SUFFIX)]
    assert copied == ([f"ckpt_dir1/{lying.name}"] if state == "sound" else [])


def test_another_node_gives_an_empty_folder_nothing_without_ranks(tree, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"holds no slice.*--ranks, 0-3 for all"):
        restore(tmp_path / "new", str(tree))
    assert restore(tmp_path / "new", str(tree), ranks=frozenset({0, 2})).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "new").glob("ckpt*")) == ["ckpt_dir0", "ckpt_dir2"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"tree is a folder here: write \./tree, or tree:29610"):
        SeveralTrees(["tree"])


def test_the_folder_of_a_backup_is_made(tree, tmp_path):
    copy(tree, f"file://{tmp_path}/of/backups")
    assert api.scan(tmp_path / "of/backups").ranks == (0, 1, 2, 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(MsRecoverError, match="file"):
        copy(tree, str(tmp_path / "file/backup"))


def test_one_copy_at_a_time_goes_to_a_directory(tree, tmp_path):
    (tmp_path / "backup").mkdir()
    with lock_tree(str(tmp_path / "backup")), pytest.raises(StorageError, match=r"at work on .*backup"):
        copy(tree, str(tmp_path / "backup"))
    assert not list((tmp_path / "backup").iterdir())
    assert copy(tree, str(tmp_path / "backup")).files == 12


def test_a_backup_without_a_whole_step_says_so(tree, tmp_path):
    copy(tree, str(tmp_path / "backup"))
    shutil.rmtree(tmp_path / "backup/steps")
    with pytest.raises(MissingInputError, match=r"a backup in which no step is whole: run recover-ckpt copy again"):
        api.scan(tmp_path / "backup")


def test_what_is_sent_is_presumed_to_be_right_unless_all_is_to_be_read(tree, tmp_path):
    save_manifests(tree)
    for verify, before in ((None, 0), (False, 0), (True, sum(slice_sizes(tree)))):
        sent = []
        outcome = copy(tree, str(tmp_path / f"backup {verify}"), verify=verify, progress=sent.append)
        assert sum(sent) - outcome.bytes == before, verify


def test_ranks_without_a_source_alone_are_why_no_step_is_proven(tree, tmp_path):
    for rank in (1, 3):
        (tree / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    with pytest.raises(UnrecoverableError, match=r"is proven, nothing was copied: rank 1: .*, rank 3: ") as caught:
        copy(tree, str(tmp_path / "backup"))
    assert not any(f"rank {rank}: " in str(caught.value) for rank in (0, 2))


@pytest.mark.parametrize("prefix", ["test", "old"])
def test_a_damaged_slice_of_an_older_run_keeps_no_step_from_being_copied(tree, tmp_path, prefix):
    save_manifests(tree)
    other = tree / "ckpt_dir1" / f"{prefix}_1-1_8.ckpt"
    other.write_bytes(b"damaged")
    os.utime(other, ns=(1, 1))
    outcome = copy(tree, str(tmp_path / "backup"))
    assert outcome.step == Step(1, 8)
    copied = {file.path for file in read_index(str(tmp_path / "backup")).files}
    assert {f"ckpt_dir{rank}/test-1_8.ckpt" for rank in range(4)} <= copied
    assert f"ckpt_dir1/{other.name}" not in copied
