"""Real files, real failures."""

import errno
import os
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, UnrecoverableError, VerificationError
from ms_recover.execution import targets
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.system_errors import denied_text
from ms_recover.testing.trees import make_tree, slice_bytes
from tests.support.convert import as_safetensors
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.faulty_disk import in_a_child
from tests.support.mishaps import overwrite

NAME = "test-1_8.ckpt"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2)


def plan_without(tree, *ranks):
    for rank in ranks:
        shutil.rmtree(tree / f"ckpt_dir{rank}")
    return api.plan(api.scan(tree))


def test_recovers_slices_and_rank_lists(tree):
    truth = (tree / "ckpt_dir0" / NAME).read_bytes()
    listed = (tree / "ckpt_dir0" / "group_info.pb").read_bytes()
    seen = []
    outcome = api.apply(plan_without(tree, 0, 1), jobs=2, progress=seen.append)
    assert outcome.exit_code == 0
    assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth
    assert (tree / "ckpt_dir0" / "group_info.pb").read_bytes() == listed
    assert sum(seen) == 2 * len(truth)
    assert [result.status for result in outcome.results] == ["copied", "copied"]
    assert not api.plan(api.scan(tree)).actions


def test_only_the_named_ranks_are_recovered(tree):
    outcome = api.apply(plan_without(tree, 0, 1), ranks={1})
    assert [result.rank for result in outcome.results] == [1]
    assert not (tree / "ckpt_dir0").exists()
    assert (tree / "ckpt_dir1" / "group_info.pb").exists()


def test_applying_a_plan_twice_redoes_nothing(tree):
    plan = plan_without(tree, 0)
    api.apply(plan)
    before = (tree / "ckpt_dir0" / NAME).stat()
    outcome = api.apply(plan)
    assert [result.status for result in outcome.results] == ["already there"]
    after = (tree / "ckpt_dir0" / NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_changed_source_is_refused(tree):
    plan = plan_without(tree, 0)
    source = tree / "ckpt_dir2" / NAME
    os.utime(source, ns=(5, 5))
    with pytest.raises(VerificationError, match="plan again"):
        api.check(plan)
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert not (tree / "ckpt_dir0" / NAME).exists()


def test_a_vanished_source_is_missing_input(tree):
    plan = plan_without(tree, 0)
    (tree / "ckpt_dir2" / NAME).unlink()
    with pytest.raises(MissingInputError):
        api.check(plan)
    assert api.apply(plan).exit_code == 3


def test_a_target_that_appeared_meanwhile_is_not_replaced(tree):
    plan = plan_without(tree, 0)
    (tree / "ckpt_dir0").mkdir()
    target = tree / "ckpt_dir0" / NAME
    target.write_bytes(slice_bytes({"other": 4}, 1))
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert "nothing was replaced" in outcome.results[0].error
    assert target.read_bytes() == slice_bytes({"other": 4}, 1)


def test_a_damaged_target_is_replaced(tree):
    target = tree / "ckpt_dir0" / NAME
    truth = target.read_bytes()
    target.chmod(0o600)
    target.write_bytes(truth[:-3])
    target.chmod(0o400)
    outcome = api.apply(api.plan(api.scan(tree)))
    assert outcome.exit_code == 0
    assert target.read_bytes() == truth


def test_a_lost_slice_with_the_right_bytes_is_left_alone(tree):
    before = (tree / "ckpt_dir0" / NAME).stat().st_ino
    outcome = api.apply(api.plan(api.scan(tree), PlanOptions(lost=frozenset((0,)))))
    assert [result.status for result in outcome.results] == ["already there"]
    assert (tree / "ckpt_dir0" / NAME).stat().st_ino == before


def test_a_source_damaged_in_its_contents_is_caught_by_its_crc(tmp_path):
    tree = make_tree(tmp_path / "tree", crc=True)
    plan = plan_without(tree, 0)
    source = tree / "ckpt_dir2" / NAME
    stat = source.stat()
    data = bytearray(source.read_bytes())
    data[60] ^= 1
    source.chmod(0o600)
    source.write_bytes(data)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert "damaged" in outcome.results[0].error
    assert os.listdir(tree / "ckpt_dir0") == []
    assert "CRC" in api.plan(api.scan(tree)).ranks[2].reason


def test_one_failing_action_does_not_stop_the_others(tree):
    plan = plan_without(tree, 0, 1)
    (tree / "ckpt_dir2" / NAME).unlink()
    outcome = api.apply(plan)
    assert [result.status for result in outcome.results] == ["failed", "copied"]
    assert outcome.exit_code == 3
    assert outcome.group_files == ("ckpt_dir1/group_info.pb",)


def test_an_unrecoverable_plan_is_not_applied(tree):
    plan = plan_without(tree, 0, 2)
    assert not plan.recoverable
    with pytest.raises(UnrecoverableError):
        api.apply(plan)
    with pytest.raises(UnrecoverableError):
        api.check(plan)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failing_writes_leave_nothing_behind(tree, monkeypatch, code):
    plan = plan_without(tree, 0)
    real = os.write

    def fail(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".ms_recover.tmp"):
            raise OSError(code, os.strerror(code))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", fail)
    outcome = api.apply(plan)
    assert outcome.exit_code == 1
    assert os.strerror(code) in outcome.results[0].error
    assert os.listdir(tree / "ckpt_dir0") == []


def test_a_copy_that_reads_back_differently_gets_no_final_name(tree, monkeypatch):
    plan = plan_without(tree, 0)
    monkeypatch.setattr(targets, "digest_bytes", lambda *arguments, **options: "xxh3_128:0")
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert os.listdir(tree / "ckpt_dir0") == []
    assert api.apply(replace(plan), verify=False).exit_code == 0


def test_no_thread_is_left(tree):
    before = threading.active_count()
    api.apply(plan_without(tree, 0, 1), jobs=8)
    assert threading.active_count() == before


def test_many_actions_share_their_sources(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=8, model_parallel=2, steps=[Step(3, 8)])
    truth = {rank: (tree / f"ckpt_dir{rank}" / "test-3_8.ckpt").read_bytes() for rank in range(16)}
    outcome = api.apply(plan_without(tree, *range(10)), jobs=4)
    assert outcome.exit_code == 0
    assert all((tree / f"ckpt_dir{rank}" / "test-3_8.ckpt").read_bytes() == data for rank, data in truth.items())


def test_a_source_of_another_format_than_the_targets_name_is_dropped(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=3, model_parallel=1)
    target = tree / "ckpt_dir0" / NAME
    target.chmod(0o600)
    target.write_bytes(b"damaged")
    plan = api.plan(api.scan(tree))
    (action,) = plan.actions
    other = as_safetensors(tree / action.source)
    state = FileState(other.stat().st_size, other.stat().st_mtime_ns)
    odd = Replica(action.source_rank, str(other.relative_to(tree)), state)
    outcome = api.apply(replace(plan, actions=(replace(action, replica=odd, alternatives=()),)))
    assert outcome.exit_code == 5
    assert "ends in .ckpt" in outcome.results[0].error
    assert target.read_bytes() == b"damaged"
    assert not list(tree.rglob("*.tmp"))
    outcome = api.apply(replace(plan, actions=(replace(action, replica=odd, alternatives=(action.replica,)),)))
    assert outcome.results[0].status == "copied"
    assert "ends in .ckpt" in outcome.results[0].dropped[0]
    assert target.read_bytes() == (tree / action.source).read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run as another user")
@pytest.mark.parametrize("composed", [False, True], ids=["copy", "compose"])
def test_a_slice_that_cannot_be_opened_is_replaced(composed):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        tree = cut_tree(root / "tree") if composed else make_tree(root / "tree", data_parallel=2, model_parallel=1)
        truth = (tree / "ckpt_dir0" / NAME).read_bytes()
        overwrite(tree / "ckpt_dir0" / NAME, truth[:-3])
        plan = api.plan(api.scan(tree))
        assert len(plan.actions) == 1
        for path in (tree, *tree.rglob("*")):
            os.chown(path, 65534, 65534)
        os.chown(tree / "ckpt_dir0" / NAME, 0, 0)
        (tree / "ckpt_dir0" / NAME).chmod(0)

        def work():
            os.setgid(65534)
            os.setuid(65534)
            assert not os.access(tree / "ckpt_dir0" / NAME, os.R_OK)
            assert api.apply(plan).exit_code == 0

        assert in_a_child(work) == 0
        assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run as another user")
def test_a_directory_without_permission_is_one_error_with_path_and_user_and_the_others_go_on(tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        tree = make_tree(root / "tree", data_parallel=2, model_parallel=2)
        for rank in (0, 1):
            (tree / f"ckpt_dir{rank}" / NAME).unlink()
        plan = api.plan(api.scan(tree))
        for path in (tree, *tree.rglob("*")):
            os.chown(path, 65534, 65534)
        os.chown(tree / "ckpt_dir0", 0, 0)
        (tree / "ckpt_dir0").chmod(0o755)

        def work():
            os.setgid(65534)
            os.setuid(65534)
            outcome = api.apply(plan)
            (first, second) = outcome.results
            assert (first.status, second.status, outcome.exit_code) == ("failed", "copied", 1)
            assert str(tree / "ckpt_dir0") in first.error
            assert denied_text() in first.error
            assert "\n" not in first.error

        assert in_a_child(work) == 0


def test_a_target_whose_name_is_too_long_is_one_error_and_the_others_go_on(tree):
    plan = plan_without(tree, 0, 1)
    first, second = plan.actions
    long = replace(first, target=f"ckpt_dir0/{'n' * 250}-1_8.ckpt")
    outcome = api.apply(replace(plan, actions=(long, second)))
    assert [result.status for result in outcome.results] == ["failed", "copied"]
    assert outcome.exit_code == 1
    assert "has 259 bytes" in outcome.results[0].error


def test_a_partial_that_lies_there_with_other_contents_is_kept(tmp_path):
    tree = cut_tree(tmp_path / "tree")
    for rank in (0, 1):
        (tree / f"ckpt_dir{rank}" / NAME).unlink()
    plan = api.plan(api.scan(tree), PlanOptions(world_size=4))
    assert plan.partials
    target = tree / plan.partials[0].target
    target.write_bytes(b"an older one")
    outcome = api.apply(plan, partial=True)
    assert outcome.exit_code == 5
    assert "move it away" in outcome.results[0].error
    assert target.read_bytes() == b"an older one"
    target.unlink()
    assert api.apply(plan, partial=True).exit_code == 4
    assert [result.status for result in api.apply(plan, partial=True).results] == ["already there"] * len(plan.partials)


def cut_tree(folder):
    """Four ranks; each part of a slice is on two of them, and no other rank holds all of it."""
    source = np.random.default_rng(7)
    rows = CutTensor("Float32", source.random((8, 6), np.float32), cut_layout("rows", (2, 2), (1,), ()))
    columns = CutTensor("Float32", source.random((8, 12), np.float32), cut_layout("columns", (2, 2), (), (0,)))
    return make_cut_tree(folder, {"rows": rows, "columns": columns, "global_step": CutTensor("Int64", np.int64(8))}, 4)


def test_a_composed_slice_takes_the_place_of_one_that_is_kept_with_its_manifest(tmp_path):
    source, matrix = np.random.default_rng(7), (2, 2)
    rows = CutTensor("Float32", source.random((8, 6), np.float32), cut_layout("rows", matrix, (1,), ()))
    columns = CutTensor("Float32", source.random((8, 12), np.float32), cut_layout("columns", matrix, (), (0,)))
    tree = make_cut_tree(tmp_path / "tree", {"rows": rows, "columns": columns}, 4)
    path = tree / "ckpt_dir0" / NAME
    whole = path.read_bytes()
    overwrite(path, whole[:-1] + bytes([whole[-1] ^ 1]))
    old, manifest = path.read_bytes(), path.with_name(f"{NAME}.manifest.json")
    manifest.write_bytes(b"of another tool")
    plan = api.plan(api.scan(tree), PlanOptions(lost=frozenset((0,))))
    (action,) = plan.actions
    action = replace(action, set_aside=f"{action.target}.outvoted")
    plan = replace(plan, actions=(action,))
    outcome = api.apply(plan)
    assert [(one.status, one.set_aside) for one in outcome.results] == [("composed", action.set_aside)]
    assert (path.read_bytes(), path.with_name(f"{NAME}.outvoted").read_bytes()) == (whole, old)
    assert path.with_name(f"{NAME}.outvoted.manifest.json").read_bytes() == b"of another tool"
    assert manifest.read_bytes() != b"of another tool"
    again = api.apply(plan)
    assert [(one.status, one.set_aside) for one in again.results] == [("already there", action.set_aside)]
