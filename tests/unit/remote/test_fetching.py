"""Slices of other hosts, with hosts that are made up."""

import errno
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ms_recover.errors import StorageError, VerificationError
from ms_recover.execution.elsewhere import Elsewhere
from ms_recover.execution.runner import run_plan
from ms_recover.file_names import FETCHED_DIRECTORY
from ms_recover.model.compose import ComposeAction
from ms_recover.model.options import ScanOptions
from ms_recover.planning.planner import make_plan
from ms_recover.remote.union import cut_down, unite
from ms_recover.scanning.scan import scan
from ms_recover.storage.transfer import Writing
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree

NAME = "test-1_8.ckpt"


class Host(Elsewhere):
    """Another tree; slices of ranks in ``bad`` come with an error or other bytes."""

    def __init__(self, tree, holders, bad=()):
        self.tree, self.holders, self.bad = tree, holders, dict(bad)
        self.fetched = []

    def where(self, path):
        return "host:1" if path in self.holders else None

    def manifest(self, path):
        return next(file.manifest for file in scan(self.tree).slices if file.path == path)

    def fetch(self, replica, take, stop):
        self.fetched.append(replica.rank)
        what = self.bad.get(replica.rank)
        if isinstance(what, Exception):
            raise what
        data = what if what is not None else (self.tree / replica.path).read_bytes()
        for start in range(0, len(data), 1000):
            take(memoryview(data[start : start + 1000]))
        return 0o440


@pytest.fixture
def nodes(tmp_path):
    """A plan for rank 0, of which ranks 1 and 2 elsewhere hold the same."""
    there = make_tree(tmp_path / "there", data_parallel=3, model_parallel=1)
    save_manifests(there)
    truth = (there / "ckpt_dir0" / NAME).read_bytes()
    for path in (there / "ckpt_dir0").iterdir():
        path.unlink()
    (there / "ckpt_dir0").rmdir()
    here = tmp_path / "here"
    here.mkdir()
    union = unite(scan(here, ScanOptions(may_be_empty=True)), [replace(scan(there), root="host:1")])
    plan = cut_down(make_plan(union.inventory), union, None, ["host:1"], {})
    return plan, there, union.holders, here / "ckpt_dir0" / NAME, truth


def test_a_slice_is_written_as_it_is_there(nodes):
    plan, there, holders, target, truth = nodes
    told = []
    outcome = run_plan(plan, elsewhere=Host(there, holders), progress=told.append)
    assert outcome.exit_code == 0
    assert target.read_bytes() == truth
    assert sum(told) == len(truth)
    status = target.stat()
    assert status.st_mode & 0o777 == 0o440
    assert status.st_mtime_ns == (there / "ckpt_dir1" / NAME).stat().st_mtime_ns
    assert target.with_name(f"{NAME}.manifest.json").exists()


def test_what_is_there_already_is_not_fetched_again(nodes):
    plan, there, holders, target, truth = nodes
    target.parent.mkdir()
    target.write_bytes(truth)
    host = Host(there, holders)
    [result] = run_plan(plan, elsewhere=host).results
    assert result.status == "already there"
    assert not host.fetched
    target.write_bytes(truth[:-1])
    outcome = run_plan(plan, elsewhere=host)
    assert outcome.exit_code == 5
    assert "appeared or changed" in outcome.results[0].error


@pytest.mark.parametrize(
    "bad", [b"", b"\0" * 10, StorageError("gone"), VerificationError("refused"), lambda truth: truth[:-1] + b"\1"]
)
def test_a_bad_source_is_dropped(nodes, bad):
    plan, there, holders, target, truth = nodes
    host = Host(there, holders, {1: bad(truth) if callable(bad) else bad})
    outcome = run_plan(plan, elsewhere=host)
    assert host.fetched == [1, 2]
    assert target.read_bytes() == truth
    assert outcome.exit_code == 5
    assert outcome.results[0].source_rank == 2
    assert outcome.results[0].dropped[0].startswith("rank 1: ")


def test_where_no_source_is_left_nothing_is_written(nodes):
    plan, there, holders, target, _ = nodes
    outcome = run_plan(plan, elsewhere=Host(there, holders, {1: StorageError("gone"), 2: b"\0"}))
    assert outcome.exit_code == 5
    assert not target.exists()
    assert not list(target.parent.glob(".*.tmp"))


def test_a_full_disk_is_no_fault_of_the_source(nodes, monkeypatch):
    plan, there, holders, target, _ = nodes

    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Writing, "write", full)
    host = Host(there, holders)
    outcome = run_plan(plan, elsewhere=host)
    assert outcome.exit_code == 1
    assert "free some space" in outcome.results[0].error
    assert host.fetched == [1]
    assert not list(target.parent.iterdir())


@pytest.fixture
def parts(tmp_path):
    """A plan for rank 0 of eight, whose slice is on no other rank whole and whose parts are on three others each."""
    matrix, source = (2, 2, 2), np.random.default_rng(3)

    def tensor(name, axis):
        layout = cut_layout(name, matrix, (axis,), ())
        return CutTensor("Float32", source.random((8, 6), np.float32), layout)

    named = {name: tensor(name, axis) for axis, name in enumerate(("near", "middle", "far"))}
    there = make_cut_tree(tmp_path / "there", named, 8, manifests=True)
    truth = (there / "ckpt_dir0" / NAME).read_bytes()
    here = tmp_path / "here"
    here.mkdir()
    shutil.rmtree(there / "ckpt_dir0")
    union = unite(scan(here, ScanOptions(may_be_empty=True)), [replace(scan(there), root="host:1")])
    plan = cut_down(make_plan(union.inventory), union, None, ["host:1"], {})
    [action] = plan.actions
    assert isinstance(action, ComposeAction)
    return plan, action, there, union.holders, here, truth


def test_parts_are_staged_for_as_long_as_they_are_needed(parts):
    plan, action, there, holders, here, truth = parts
    (here / FETCHED_DIRECTORY).mkdir()
    (here / FETCHED_DIRECTORY / "left behind").write_bytes(b"by one that was killed")
    host = Host(there, holders)
    outcome = run_plan(plan, elsewhere=host)
    assert outcome.exit_code == 0, outcome
    assert sorted(host.fetched) == list(action.source_ranks)
    assert (here / "ckpt_dir0" / NAME).read_bytes() == truth
    assert [path.name for path in here.iterdir()] == ["ckpt_dir0"]
    assert FETCHED_DIRECTORY not in outcome.results[0].source


@pytest.mark.parametrize("bad", [StorageError("gone"), b"short"])
def test_a_part_that_cannot_be_had_comes_from_another(parts, bad):
    plan, action, there, holders, here, truth = parts
    host = Host(there, holders, {action.source_ranks[0]: bad})
    outcome = run_plan(plan, elsewhere=host)
    assert (here / "ckpt_dir0" / NAME).read_bytes() == truth
    assert outcome.exit_code == 5
    assert len(host.fetched) > len(action.source_ranks)
    assert outcome.results[0].dropped


def test_where_a_part_is_nowhere_nothing_is_written(parts):
    plan, _, there, holders, here, _ = parts
    outcome = run_plan(plan, elsewhere=Host(there, holders, {rank: StorageError("gone") for rank in range(1, 8)}))
    assert outcome.exit_code == 1
    assert "gone" in outcome.results[0].error
    assert not list(here.rglob("*.ckpt"))
    assert not list(here.glob(".*"))
