"""Slices of a split model's parts: saved, proven, repaired, and let go."""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import StorageError, UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.lock import lock_tree
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.splitting.slice_directory import slice_name, step_of
from ms_recover.splitting.slices import SliceStore
from ms_recover.testing.trees import slice_bytes
from tests.support.faults import Faults

NAME, STEP = slice_name(0), step_of(0)
BESIDE = (NAME + MANIFEST_SUFFIX, "group_info.pb", "strategy.ckpt")
NAMES = [{"0.weight": 64, "0.bias": 8}, {"1.weight": 96}, {"2.weight": 16, "2.bias": 4, "2.scale": 4}]


def content(part, seed=0):
    return slice_bytes(NAMES[part], 10 * seed + part)


def writer(data):
    def write(path):
        with open(path, "wb") as file:
            file.write(data)

    return write


def fill(store, parts=3, seed=0):
    for part in range(parts):
        store.save(part, writer(content(part, seed)), NAMES[part])
    return store


@pytest.fixture
def store(tmp_path):
    made = fill(SliceStore(tmp_path / "slices", 3))
    yield made
    made.close()


def at(store, rank):
    return Path(store.directory) / f"rank_{rank}" / NAME


def sound(directory):
    found = api.verify(api.scan(directory), deep=True)
    return bool(found.checks) and not found.wrong and not found.missing


def damage(path, change=lambda data: data[:70] + bytes([data[70] ^ 4]) + data[71:]):
    data = change(path.read_bytes())
    path.unlink()
    path.write_bytes(data)


def drop(path):
    path.unlink()
    path.with_name(NAME + MANIFEST_SUFFIX).unlink()


def test_each_part_has_two_slices_with_manifests_and_rank_lists(store):
    for rank in range(6):
        assert at(store, rank).read_bytes() == content(rank // 2)
        assert read_group_info(at(store, rank).with_name("group_info.pb"), owner=rank).restore_ranks == (
            rank // 2 * 2,
            rank // 2 * 2 + 1,
        )
        manifest = read_manifest(f"{at(store, rank)}{MANIFEST_SUFFIX}")
        assert (manifest.rank, manifest.world_size, manifest.step, manifest.provenance.kind) == (rank, 6, STEP, "saved")
        assert (manifest.run_id, manifest.group) == (store.run_id, (rank // 2 * 2, rank // 2 * 2 + 1))
        assert set(os.listdir(at(store, rank).parent)) == {NAME, *BESIDE}
    assert store.path(1) == (str(at(store, 2)), None)
    plan = api.plan(api.scan(store.directory))
    assert (plan.recoverable, plan.actions, plan.notes, plan.run_id) == (True, (), (), store.run_id)


def test_it_is_written_once_and_all_copies_have_its_bytes(tmp_path):
    calls = []

    def write(path):
        calls.append(path)
        writer(content(0, len(calls)))(path)

    store = SliceStore(tmp_path, 1, 3)
    store.save(0, write, NAMES[0])
    assert len(calls) == 1
    assert {at(store, rank).read_bytes() for rank in range(3)} == {content(0, 1)}


@pytest.mark.parametrize(("parts", "replicas"), [(1, 1), (1, 2), (1, 3), (3, 1), (2, 2), (3, 3)])
def test_every_number_of_parts_and_replicas_is_understood(tmp_path, parts, replicas):
    store = fill(SliceStore(tmp_path, parts, replicas), parts)
    plan = api.plan(api.scan(tmp_path))
    assert (plan.recoverable, plan.actions, plan.world_size) == (True, (), parts * replicas)
    assert sound(tmp_path)
    if replicas == 1:
        assert not list(tmp_path.rglob("group_info.pb"))
        return
    for part in range(parts):
        drop(at(store, part * replicas))
        assert store.path(part)[0] == str(at(store, part * replicas))
        assert at(store, part * replicas).read_bytes() == content(part)
    assert api.plan(api.scan(tmp_path)).actions == ()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (damage, "its contents are not those of its manifest, in"),
        (lambda path: damage(path, lambda data: data[:-9]), "rank_2/split-1_0.ckpt"),
        (lambda path: damage(path, lambda data: b""), "rank_2/split-1_0.ckpt"),
        (lambda path: path.unlink(), "no slice of step 1_0"),
        (drop, "no slice of step 1_0"),
        (lambda path: shutil.rmtree(path.parent), "no directory"),
        (lambda path: path.with_name(NAME + MANIFEST_SUFFIX).unlink(), "its manifest is missing"),
        (lambda path: path.with_name(NAME + MANIFEST_SUFFIX).write_text("{"), "not committed"),
        (lambda path: shutil.copy(path.parents[1] / "rank_4" / NAME, damage(path, bytes) or path), "it has"),
    ],
)
def test_a_bad_first_copy_is_restored_from_its_replica(store, spoil, said):
    spoil(at(store, 2))
    path, words = store.path(1)
    assert path == str(at(store, 2))
    assert "part 1: rank_2/split-1_0.ckpt restored from rank_3/split-1_0.ckpt" in words
    assert said in words
    assert Path(path).read_bytes() == content(1)
    assert (at(store, 2).parent / "group_info.pb").exists()
    assert store.path(1) == (path, None)
    assert api.plan(api.scan(store.directory)).actions == ()
    assert sound(store.directory)


def test_a_bad_replica_of_a_good_first_copy_is_left_to_verify(store):
    damage(at(store, 3))
    assert store.path(1) == (str(at(store, 2)), None)
    assert not sound(store.directory)


def test_the_good_one_of_three_is_found(tmp_path):
    store = fill(SliceStore(tmp_path, 2, 3), 2)
    drop(at(store, 3))
    damage(at(store, 4))
    _, words = store.path(1)
    assert "rank_3/split-1_0.ckpt restored from rank_5/" in words
    assert "rank_4/split-1_0.ckpt restored from rank_5/" in words
    assert {at(store, rank).read_bytes() for rank in (3, 4, 5)} == {content(1)}


def test_slices_of_other_parts_are_not_needed_for_it(store):
    for rank in (0, 1, 4, 5):
        shutil.rmtree(at(store, rank).parent)
    drop(at(store, 2))
    assert store.path(1)[0] == str(at(store, 2))
    (at(store, 2).parents[1] / "rank_0").mkdir()
    (at(store, 0).parent / "group_info.pb").write_bytes(b"nonsense")
    damage(at(store, 2))
    assert store.path(1)[0] == str(at(store, 2))


@pytest.mark.parametrize("spoil", [damage, drop, lambda path: shutil.rmtree(path.parent)])
def test_a_part_without_a_whole_slice_is_unrecoverable(store, spoil):
    spoil(at(store, 2))
    spoil(at(store, 3))
    with pytest.raises(
        UnrecoverableError, match=r"part 1: none of its 2 slice\(s\) in .* is whole: .* Split the model"
    ):
        store.path(1)
    assert store.path(0) == (str(at(store, 0)), None)
    store.save(1, writer(content(1)), NAMES[1])
    assert store.path(1) == (str(at(store, 2)), None)


def test_a_directory_that_is_gone_is_a_clear_error(store):
    shutil.rmtree(store.directory)
    with pytest.raises(UnrecoverableError, match="part 0: none of its 2"):
        store.path(0)


def test_slices_without_any_manifest_are_compared_with_the_saved_digest(store):
    for rank in (2, 3):
        at(store, rank).with_name(NAME + MANIFEST_SUFFIX).unlink()
    assert store.path(1)[1] is not None
    damage(at(store, 2))
    path, words = store.path(1)
    assert Path(path).read_bytes() == content(1)
    assert words


def test_slices_of_another_run_are_not_taken(store, tmp_path):
    other = fill(SliceStore(tmp_path / "other", 3), seed=7)
    for rank in (2, 3):
        shutil.rmtree(at(store, rank).parent)
        shutil.copytree(at(other, rank).parent, at(store, rank).parent)
    with pytest.raises(UnrecoverableError):
        store.path(1)


def test_a_replica_serves_where_nothing_can_be_written(store, monkeypatch):
    drop(at(store, 2))

    def refuse(*_, **__):
        raise StorageError("the file system is mounted read-only")

    monkeypatch.setattr(api, "apply", refuse)
    assert store.path(1) == (str(at(store, 3)), "part 1: not restored: the file system is mounted read-only")


def test_a_repair_waits_for_another_recovery(store):
    drop(at(store, 2))
    with lock_tree(store.directory):
        found = []
        thread = threading.Thread(target=lambda: found.append(store.path(1)))
        thread.start()
        time.sleep(0.3)
        assert not found
    thread.join(timeout=30)
    assert found[0][0] == str(at(store, 2))


def test_parts_are_asked_for_by_several_threads(store):
    for rank in (0, 2, 4):
        drop(at(store, rank))
    answers = []
    threads = [threading.Thread(target=lambda part=n % 3: answers.append(store.path(part))) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(path for path, _ in answers) == sorted(str(at(store, n % 3 * 2)) for n in range(9))
    assert sum(words is not None for _, words in answers) == 3


def test_parts_are_saved_by_several_threads(tmp_path):
    store = SliceStore(tmp_path, 3)
    threads = [
        threading.Thread(target=store.save, args=(part, writer(content(part)), NAMES[part])) for part in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [store.path(part)[1] for part in range(3)] == [None] * 3


def test_saving_again_replaces_it(store):
    store.save(1, writer(content(1, 4)), NAMES[1])
    assert {at(store, rank).read_bytes() for rank in (2, 3)} == {content(1, 4)}
    assert store.path(1) == (str(at(store, 2)), None)
    assert sound(store.directory)


def test_a_save_that_fails_leaves_the_slices_before_it(store):
    def fail(path):
        writer(b"half")(path)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        store.save(1, fail, NAMES[1])
    assert Path(store.path(1)[0]).read_bytes() == content(1)
    with pytest.raises(VerificationError, match="not whole"):
        store.save(1, writer(content(1)[:-2]), NAMES[1])
    with pytest.raises(VerificationError, match="not whole"):
        store.save(1, writer(content(1)), ["1.weight", "1.bias"])
    assert Path(store.path(1)[0]).read_bytes() == content(1)


def test_a_copy_that_differs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ms_recover.splitting.slices._copy", lambda source, target: writer(content(0, 3))(target))
    store = SliceStore(tmp_path, 1)
    with pytest.raises(VerificationError, match="of which it is a copy"):
        store.save(0, writer(content(0)), NAMES[0])
    assert not at(store, 2).exists()
    assert store.path(0)[1] is None


def test_invalid_part_and_replica_numbers_are_refused(store, tmp_path):
    for parts, replicas in ((0, 2), (2, 0)):
        with pytest.raises(UsageError, match="at least 1"):
            SliceStore(tmp_path / "new", parts, replicas)
    with pytest.raises(UsageError, match="no part 3: the parts are 0 to 2"):
        store.path(3)
    with pytest.raises(UsageError, match="no part -1"):
        store.save(-1, writer(b""), [])
    with closing(SliceStore(tmp_path / "new", 2)) as empty, pytest.raises(UsageError, match="part 1 was never saved"):
        empty.path(1)


def test_close_removes_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = fill(SliceStore(None, 3))
    assert Path(store.directory).stat().st_mode & 0o777 == 0o700
    assert Path(store.directory).parent == tmp_path
    store.close()
    store.close()
    assert list(tmp_path.iterdir()) == []
    for call in (lambda: store.path(0), lambda: store.save(0, writer(content(0)), NAMES[0])):
        with pytest.raises(UsageError, match="closed"):
            call()
    forgotten = fill(SliceStore(None, 3))
    assert os.path.isdir(forgotten.directory)
    del forgotten
    gc.collect()
    assert list(tmp_path.iterdir()) == []


IMPORTS = """
from tests.support.faults import OPENING, WRITING
from tests.unit.splitting.test_slices import *
"""


def python(code, *arguments, **more):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{IMPORTS}\n{code}",
            *map(str, arguments),
        ],
        cwd=Path(__file__).parents[3],
        **more,
    )


@pytest.mark.processes
def test_the_end_of_the_interpreter_removes_a_temporary_directory(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    assert python("store = fill(SliceStore(None, 3))", env=env).wait(timeout=60) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_a_forked_child_removes_nothing(tmp_path):
    code = (
        "store = fill(SliceStore(None, 3))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    store.close()\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "store.path(0)\n"
    )
    assert python(code, env={**os.environ, "TMPDIR": str(tmp_path)}).wait(timeout=60) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_given_directory_stays(store, tmp_path):
    store.close()
    assert sorted(os.listdir(store.directory)) == [f"rank_{rank}" for rank in range(6)]
    assert Path(store.directory).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("parts", "replicas"), [(1, 1), (2, 2), (3, 2), (3, 3)])
def test_slices_of_an_earlier_splitter_are_replaced_at_the_first_save(store, parts, replicas):
    store.close()
    later = SliceStore(store.directory, parts, replicas)
    assert len(os.listdir(store.directory)) == 7  # nothing is touched before there is something better
    fill(later, parts, seed=5)
    plan = api.plan(api.scan(store.directory))
    assert (plan.world_size, plan.run_id, plan.actions) == (parts * replicas, later.run_id, ())
    assert len(os.listdir(store.directory)) == parts * replicas + 1
    assert sound(store.directory)


def test_an_earlier_splitter_is_withdrawn_manifests_first(store):
    store.close()
    later = SliceStore(store.directory, 1, 1)
    faults = Faults(store.directory, 0, "none")
    with faults.installed():
        later.save(0, writer(content(0)), NAMES[0])
    removed = [call for call in faults.trace if call.startswith("unlink rank") and NAME in call]
    assert all(call.endswith(MANIFEST_SUFFIX) for call in removed[:6])
    assert not any(call.endswith(MANIFEST_SUFFIX) for call in removed[6:12])


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "rank_0/test-1_1.ckpt",
        "rank_0/strategy.txt",
        "rank_00/split-1_0.ckpt",
        "ckpt_dir0/split-1_0.ckpt",
        "rank_0/split-1_0.ckpt/x",
        "rank_7",
        ".hidden",
    ],
)
def test_a_directory_with_foreign_files_is_refused(store, name):
    store.close()
    path = Path(store.directory) / name
    if "split-1_0.ckpt/" in name:
        path.parent.unlink()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"precious")
    before = sorted(Path(store.directory).rglob("*"))
    with pytest.raises(UsageError, match=r"holds files that are not a splitter's: .*Give a directory that is empty"):
        SliceStore(store.directory, 3)
    assert sorted(Path(store.directory).rglob("*")) == before


def test_a_directory_with_links_is_refused(store, tmp_path):
    store.close()
    outside = tmp_path / "outside"
    shutil.move(at(store, 0).parent, outside)
    at(store, 0).parent.symlink_to(outside)
    with pytest.raises(UsageError, match="rank_0"):
        SliceStore(store.directory, 3)


def test_a_foreign_file_that_appears_later_is_not_removed(store):
    store.close()
    later = SliceStore(store.directory, 3)
    precious = at(store, 0).with_name("precious")
    precious.touch()
    with pytest.raises(UsageError, match="rank_0/precious"):
        fill(later)
    assert at(store, 0).read_bytes() == content(0)
    precious.unlink()
    fill(later)


def test_a_file_as_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="File exists"):
        SliceStore(tmp_path / "file", 3)


@pytest.mark.processes
def test_only_one_store_can_use_a_directory(store, tmp_path):
    for name in (store.directory, os.path.relpath(store.directory)):
        with pytest.raises(UsageError, match="another splitter keeps its slices in"):
            SliceStore(name, 3)
    done = python(f"SliceStore({store.directory!r}, 3)", stderr=subprocess.PIPE, text=True)
    assert "UsageError: another splitter keeps its slices in" in done.communicate(timeout=60)[1]
    fill(store, seed=3)
    store.close()
    SliceStore(store.directory, 3).close()


@pytest.mark.processes
def test_a_killed_process_leaves_no_lock(tmp_path):
    code = f"store = fill(SliceStore({str(tmp_path)!r}, 3))\nprint('ready', flush=True)\ntime.sleep(60)"
    holder = python(code, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"ready\n"
    with pytest.raises(UsageError, match="another splitter"):
        SliceStore(tmp_path, 3)
    holder.kill()
    holder.wait(timeout=30)
    holder.stdout.close()
    fill(SliceStore(tmp_path, 3), seed=2)
    assert sound(tmp_path)


KILLED = """
strike, directory = int(sys.argv[1]), sys.argv[2]
with Faults(directory, strike, "kill", (*WRITING, *OPENING)).installed() as faults:
    fill(SliceStore(directory, 2), 2)
print(faults.count)
"""


@pytest.mark.processes
def test_killed_at_any_call_the_next_store_works(tmp_path):
    fill(SliceStore(tmp_path, 3), seed=9)
    counted = python(KILLED, 0, tmp_path, stdout=subprocess.PIPE, text=True)
    total = int(counted.communicate(timeout=60)[0])
    assert total > 50
    for strike in random.Random(6).sample(range(1, total + 1), 12):
        fill(SliceStore(tmp_path, 3), seed=9)
        struck = python(KILLED, strike, tmp_path)
        assert struck.wait(timeout=60) == -signal.SIGKILL
        store = fill(SliceStore(tmp_path, 2), 2, seed=strike)
        assert sound(tmp_path)
        assert api.scan(tmp_path).notes == ()
        assert [Path(store.path(part)[0]).read_bytes() for part in range(2)] == [
            content(0, strike),
            content(1, strike),
        ]
        store.close()
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == sorted(
            f"rank_{rank}/{name}" for rank in range(4) for name in (NAME, *BESIDE)
        )


@pytest.mark.mindspore
def test_mindspore_saves_and_loads_them(tmp_path):
    ms = pytest.importorskip("mindspore")
    import numpy as np

    cells = [ms.nn.Dense(4, 3), ms.nn.Conv2d(2, 3, 3, has_bias=True), ms.nn.BatchNorm2d(5), ms.nn.ReLU()]
    with closing(SliceStore(tmp_path, len(cells))) as store:
        for part, cell in enumerate(cells):
            mark = {f"split.part.{part}": part}
            names = [*(parameter.name for parameter in cell.get_parameters()), *mark]
            store.save(part, lambda path, cell=cell, mark=mark: ms.save_checkpoint(cell, path, append_dict=mark), names)
        drop(at(store, 2))
        for part, cell in enumerate(cells):
            loaded = ms.load_checkpoint(store.path(part)[0])
            assert loaded[f"split.part.{part}"].asnumpy() == part
            for parameter in cell.get_parameters():
                assert np.array_equal(loaded[parameter.name].asnumpy(), parameter.asnumpy())
    assert api.plan(api.scan(tmp_path)).actions == ()


def test_the_next_store_removes_temporary_directories_of_killed_splitters(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(fill(SliceStore(None, 3))) as used:
        killed, foreign, young = (tmp_path / f"ms_recover-split-{name}" for name in ("killed", "foreign", "young"))
        for made in (killed, foreign, young):
            shutil.copytree(used.directory, made)
        (foreign / "thesis.tex").write_text("words")
        next(young.glob(".splitter*")).unlink()  # it is about to be claimed
        for old in (killed, foreign, Path(used.directory)):
            os.utime(old, (0, 0))
        with closing(SliceStore(None, 3)):
            assert not killed.exists()
            assert foreign.exists()
            assert young.exists()
            assert sound(used.directory)


@pytest.mark.processes
def test_the_next_store_removes_what_a_splitter_left_that_was_killed_just_now(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = python("store = fill(SliceStore(None, 3)); os.kill(os.getpid(), signal.SIGKILL)", env=env)
    assert killed.wait(timeout=60) == -signal.SIGKILL
    (left,) = tmp_path.glob("ms_recover-split-*")
    assert list(left.glob("rank_*/*.ckpt"))
    assert python("store = fill(SliceStore(None, 3))", env=env).wait(timeout=60) == 0
    assert list(tmp_path.iterdir()) == []
