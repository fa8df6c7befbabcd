"""Manifests beside a training, without MindSpore."""

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ms_recover import api
from ms_recover.errors import StorageError, VerificationError
from ms_recover.execution.manifests import NamedSlice
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.testing.trees import slice_bytes
from ms_recover.training import manifest_queue
from ms_recover.training.manifest_queue import ManifestQueue, Save
from ms_recover.training.same_ranks import SameRanks, compiled_ranks, listed_ranks

WAIT = 20


def write(path, seed=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(slice_bytes({"w": 6, "b": 2}, seed=seed))
    path.chmod(0o400)


def order(path, step, rank=0):
    return NamedSlice(path=str(path), rank=rank, world_size=2, step=step, cumulative_step=step.step, run_id="run-1")


def legacy(folder, number, *, same=None, rank=0):
    """One save of MindSpore's, which is on the disk."""
    path = folder / f"net-1_{number}.ckpt"
    write(path, seed=number)
    same = same or SameRanks(rank, (0, 1))
    return Save(series=0, number=number, slices=(order(path, Step(1, number), rank),), same=same, kept=None)


def iteration(root, number, kept):
    paths = [root / f"iteration_{number:08d}" / f"CKP-{kind}-0000000-0000002.safetensors" for kind in ("model", "opt")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"ms"}}'.ljust(88)
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    slices = tuple(order(path, Step.iteration(number)) for path in paths)
    return Save(series=0, number=number, slices=slices, same=SameRanks(0), kept=kept)


def sealed(folder):
    return sorted(path.name.removesuffix(MANIFEST_SUFFIX) for path in Path(folder).glob(f"*{MANIFEST_SUFFIX}"))


@pytest.fixture
def queue():
    """A queue whose thread does not outlast the test."""
    queue = ManifestQueue()
    yield queue
    queue.close()


@pytest.fixture
def gate(monkeypatch, queue):
    """Hold the reading of slices until it is opened; a stop opens it too."""
    opened, begun = threading.Event(), threading.Event()
    prove = manifest_queue.prove_saved

    def wait_and_prove(one, group_of, strategy, stop):
        begun.set()
        for _ in range(WAIT * 1000):
            if opened.wait(0.001) or stop():
                break
        return prove(one, group_of, strategy, stop)

    monkeypatch.setattr(manifest_queue, "prove_saved", wait_and_prove)
    opened.begun = begun
    yield opened
    opened.set()


def test_saves_are_worked_off_in_their_order_beside_the_training(tmp_path, gate, queue):
    for number in (1, 2, 3):
        queue.put(legacy(tmp_path, number))
    assert gate.begun.wait(WAIT)
    assert sealed(tmp_path) == []
    gate.set()
    queue.join()
    assert sealed(tmp_path) == ["net-1_1.ckpt", "net-1_2.ckpt", "net-1_3.ckpt"]
    assert queue.failures() == []
    assert read_group_info(str(tmp_path / "group_info.pb")).restore_ranks == (0, 1)
    queue.close()
    assert not any(thread.name == "slice-manifests" for thread in threading.enumerate())
    queue.put(legacy(tmp_path, 4))  # another training
    queue.close()
    assert "net-1_4.ckpt" in sealed(tmp_path)


def test_what_is_sealed_counts_as_saved(tmp_path, queue):
    for rank in (0, 1):
        queue.do_now(legacy(tmp_path / f"ckpt_dir{rank}", 1, rank=rank))
    found = api.verify(api.scan(tmp_path))
    assert {(check.status, check.evidence) for check in found.checks} == {("sound", "manifest")}
    assert api.plan(api.scan(tmp_path)).actions == ()


def test_manifests_of_rotated_slices_are_removed(tmp_path, queue):
    for number in (1, 2):
        queue.do_now(legacy(tmp_path, number))
    (tmp_path / "net-1_1.ckpt").unlink()
    other = tmp_path / f"net-9_9.ckpt{MANIFEST_SUFFIX}"  # of a lost slice of an earlier run: it may prove a recovery
    other.write_text("{}")
    queue.do_now(legacy(tmp_path, 3))
    assert sealed(tmp_path) == ["net-1_2.ckpt", "net-1_3.ckpt", "net-9_9.ckpt"]


def test_a_slice_that_was_rotated_away_before_is_no_error(tmp_path, queue):
    save = legacy(tmp_path, 1)
    (tmp_path / "net-1_1.ckpt").unlink()
    queue.do_now(save)
    shutil.rmtree(tmp_path)
    queue.do_now(save)
    assert queue.failures() == []


def test_a_manifest_that_lay_there_before_goes_first(tmp_path, gate, queue):
    """The file was replaced under its name: until it is read nothing must vouch for it."""
    save = legacy(tmp_path, 1)
    (tmp_path / f"net-1_1.ckpt{MANIFEST_SUFFIX}").write_text("of the file before")
    queue.put(save)
    assert gate.begun.wait(WAIT)
    assert sealed(tmp_path) == []


def test_an_error_names_rank_step_and_path_and_others_go_on(tmp_path, caplog, queue):
    bad, good = legacy(tmp_path, 1), legacy(tmp_path, 2)
    (tmp_path / "net-1_1.ckpt").chmod(0o600)
    os.truncate(tmp_path / "net-1_1.ckpt", 50)
    queue.put(bad)
    queue.put(good)
    queue.join()
    (error,) = queue.failures()
    assert isinstance(error, VerificationError)
    assert str(error).startswith(f"rank 0, step 1_1, {tmp_path}/net-1_1.ckpt got no manifest: ")
    assert str(error) in caplog.text
    assert queue.failures() == []
    assert sealed(tmp_path) == ["net-1_2.ckpt"]


def test_a_full_disk_is_reported(tmp_path, monkeypatch, queue):
    def full(path, manifest):
        raise StorageError(f"writing {path}: No space left on device")

    monkeypatch.setattr("ms_recover.execution.saved_manifest.write_manifest", full)
    queue.do_now(legacy(tmp_path, 1))
    (error,) = queue.failures()
    assert isinstance(error, StorageError)
    assert sealed(tmp_path) == []


def test_a_list_that_says_something_else_is_replaced(tmp_path, queue):
    write_group_info(tmp_path / "group_info.pb", [0])
    queue.do_now(legacy(tmp_path, 1))
    assert read_group_info(str(tmp_path / "group_info.pb")).restore_ranks == (0, 1)


def test_without_layouts_the_list_beside_the_slices_counts(tmp_path, queue):
    """MindSpore's compiler may have written it: a manifest must not contradict it."""
    queue.do_now(legacy(tmp_path, 1, same=SameRanks(0)))
    assert not (tmp_path / "group_info.pb").exists()
    assert read_manifest(tmp_path / f"net-1_1.ckpt{MANIFEST_SUFFIX}").group == (0,)
    write_group_info(tmp_path / "group_info.pb", [0, 1])
    queue.do_now(legacy(tmp_path, 2, same=SameRanks(0)))
    assert read_manifest(tmp_path / f"net-1_2.ckpt{MANIFEST_SUFFIX}").group == (0, 1)


@pytest.mark.parametrize(
    ("number", "newest", "kept", "safe"),
    [
        (3, 3, None, True),  # a directory of the rank's own
        (1, 9, None, True),
        (3, 3, 1, False),  # the next save removes it
        (3, 3, 2, True),
        (2, 3, 2, False),
        (1, 3, 5, True),
    ],
)
def test_directories_that_may_be_removed_are_left_alone(tmp_path, number, newest, kept, safe):
    assert iteration(tmp_path, number, kept).is_safe(newest) == safe


def test_an_iteration_that_is_removed_before_long_is_let_go(tmp_path, gate, caplog, queue):
    """MindFormers removes the directory: no file in it may be open, and none be added."""
    caplog.set_level("INFO")
    first, second = iteration(tmp_path, 1, kept=2), iteration(tmp_path, 2, kept=2)
    queue.put(first)
    assert gate.begun.wait(WAIT)
    queue.drop_unsafe(0, 2)  # returns although the reading is held
    shutil.rmtree(tmp_path / "iteration_00000001")
    queue.put(second)
    gate.set()
    queue.join()
    assert queue.failures() == []
    assert not (tmp_path / "iteration_00000001").exists()
    assert len(sealed(tmp_path / "iteration_00000002")) == 2
    assert "because it is removed before long" in caplog.text


def test_iterations_get_no_rank_lists(tmp_path, queue):
    queue.do_now(iteration(tmp_path, 200, kept=5))
    folder = tmp_path / "iteration_00000200"
    assert sealed(folder) == [f"CKP-{kind}-0000000-0000002.safetensors" for kind in ("model", "opt")]
    assert not (folder / "group_info.pb").exists()
    found = read_manifest(folder / f"CKP-opt-0000000-0000002.safetensors{MANIFEST_SUFFIX}")
    assert (found.step, found.cumulative_step) == (Step.iteration(200), 200)


def parameter(name, *shape):
    return Parameter(name, "Float32", shape, 4)


def test_holders_of_a_slice_hold_each_of_its_parameters():
    same = SameRanks(0, by_parameter={"w": frozenset({0, 2}), "m.w": frozenset({0}), "b": frozenset({0, 1, 2, 3})})
    assert same.holders([parameter("w", 4), parameter("b", 4)]) == (0, 2)
    assert same.holders([parameter("w", 4), parameter("m.w", 2)]) == (0,)
    assert same.holders([parameter("b", 4), parameter("global_step", 1), parameter("scale")]) == (0, 1, 2, 3)
    assert same.holders([parameter("b", 4), parameter("unknown", 2)]) == (0,)  # its layout is not known
    assert SameRanks(3).holders([parameter("b", 4)]) == (3,)
    assert SameRanks(0, (0, 1)).holders([parameter("b", 4)]) == (0, 1)


def test_a_rank_list_of_another_rank_is_not_used(tmp_path, caplog):
    path = tmp_path / "group_info.pb"
    assert listed_ranks(str(path), 0, 4) is None
    write_group_info(path, [2, 0])
    assert listed_ranks(str(path), 0, 4) == SameRanks(0, (0, 2))
    assert listed_ranks(str(path), 1, 4) is None
    assert "rank 1: the manifests cannot name its group" in caplog.text


@pytest.mark.mindspore
def test_layouts_of_the_compiler_say_who_holds_the_same(monkeypatch):
    """Data parallel 2 x model parallel 2 in each of two stages: device matrix, tensor map, and more."""
    pytest.importorskip("mindspore")

    layouts = {"w": [[2, 2], [0, -1], [4, 8], 0, True, ""], "b": [[2, 2], [-1], [4], 0, True, ""]}
    monkeypatch.setattr("mindspore.get_auto_parallel_context", lambda name: 2)
    held = compiled_ranks(SimpleNamespace(parameter_layout_dict=layouts), 5, 8).by_parameter
    assert held == {"w": {5, 7}, "b": {4, 5, 6, 7}}
    assert compiled_ranks(SimpleNamespace(parameter_layout_dict={}), 5, 8) is None
    assert compiled_ranks(SimpleNamespace(), 5, 8) is None
