"""Slices of other hosts, with hosts that are made up."""

import errno
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ms_recover.errors import StorageError, VerificationError
from ms_recover.execution.apply import ApplyOptions, apply_plan
from ms_recover.formats.manifest import read_manifest
from ms_recover.joint.shares import share_here
from ms_recover.joint.union import unite
from ms_recover.model.compose import ComposeAction
from ms_recover.model.options import ScanOptions
from ms_recover.scanning.scan import scan
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import OpenFile, Store
from ms_recover.stores.transfer import Writing
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.plans import make_plan

NAME = "test-1_8.ckpt"


class HostSlice(OpenFile):
    """A slice of `Host`."""

    near = False

    def __init__(self, host, rank, path, expected):
        super().__init__(f"host:1/{path}", expected.bytes)
        self.of, self.rank, self.path, self.expected = host, rank, path, expected

    def read_range(self, start, end, take, stop):
        self.of.fetched.append(self.rank)
        bad = self.of.bad.get(self.rank)
        if isinstance(bad, Exception):
            raise bad
        data = bad if bad is not None else (self.of.tree / self.path).read_bytes()
        for offset in range(start, min(end, len(data)), 1000):
            take(memoryview(data[offset : min(offset + 1000, end)]))

    def check_unchanged(self):
        self.read_range(self.size, self.size, lambda data: None, lambda: False)

    def form(self):
        return FileForm(0o440, self.expected.mtime_ns)


class Host(Store):
    """Another tree; slices of ranks in ``bad`` come with an error or other bytes."""

    host = "host:1"

    def __init__(self, tree, bad=()):
        super().__init__("host:1")
        self.tree, self.bad, self.fetched = tree, dict(bad), []
        self.files = {file.path: file for file in scan(tree).slices}

    def list(self, folder):
        return LocalStore(str(self.tree)).list(folder)

    def stat(self, path):
        return LocalStore(str(self.tree)).stat(path)

    def open(self, path, expected=None):
        if path not in self.files:
            return LocalStore(str(self.tree)).open(path)
        return HostSlice(self, self.files[path].rank, path, expected)

    def sources(self, holders):
        return dict.fromkeys(holders, self)


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
    plan = share_here(make_plan(union.inventory), union, None, {})
    return plan, there, union.holders, here / "ckpt_dir0" / NAME, truth


def test_a_slice_is_written_as_it_is_there(nodes):
    plan, there, holders, target, truth = nodes
    told = []
    outcome = apply_plan(plan, ApplyOptions(sources=Host(there).sources(holders), progress=told.append))
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
    host = Host(there)
    [result] = apply_plan(plan, ApplyOptions(sources=host.sources(holders))).results
    assert result.status == "already there"
    assert not host.fetched
    target.write_bytes(truth[:-1])
    outcome = apply_plan(plan, ApplyOptions(sources=host.sources(holders)))
    assert outcome.exit_code == 5
    assert "appeared or changed" in outcome.results[0].error


@pytest.mark.parametrize(
    "bad", [b"", b"\0" * 10, StorageError("gone"), VerificationError("refused"), lambda truth: truth[:-1] + b"\1"]
)
def test_a_bad_source_is_dropped(nodes, bad):
    plan, there, holders, target, truth = nodes
    host = Host(there, {1: bad(truth) if callable(bad) else bad})
    outcome = apply_plan(plan, ApplyOptions(sources=host.sources(holders)))
    assert sorted(set(host.fetched)) == [1, 2]
    assert host.fetched[0] == 1
    assert target.read_bytes() == truth
    assert outcome.exit_code == 5
    assert outcome.results[0].source_rank == 2
    assert outcome.results[0].dropped[0].startswith("rank 1: ")


def test_where_no_source_is_left_nothing_is_written(nodes):
    plan, there, holders, target, _ = nodes
    outcome = apply_plan(plan, ApplyOptions(sources=Host(there, {1: StorageError("gone"), 2: b"\0"}).sources(holders)))
    assert outcome.exit_code == 5
    assert not target.exists()
    assert not list(target.parent.glob(".*.tmp"))


def test_a_full_disk_is_no_fault_of_the_source(nodes, monkeypatch):
    plan, there, holders, target, _ = nodes

    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Writing, "write", full)
    host = Host(there)
    outcome = apply_plan(plan, ApplyOptions(sources=host.sources(holders)))
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
    plan = share_here(make_plan(union.inventory), union, None, {})
    [action] = plan.actions
    assert isinstance(action, ComposeAction)
    return plan, action, there, union.holders, here, truth


def test_a_slice_is_composed_from_ranges_of_others_and_names_their_host(parts):
    plan, action, there, holders, here, truth = parts
    host = Host(there)
    outcome = apply_plan(plan, ApplyOptions(sources=host.sources(holders)))
    assert outcome.exit_code == 0, outcome
    assert set(host.fetched) == set(action.source_ranks)
    target = here / "ckpt_dir0" / NAME
    assert target.read_bytes() == truth
    assert target.stat().st_mode & 0o777 == 0o440
    assert [path.name for path in here.iterdir()] == ["ckpt_dir0"]
    origins = read_manifest(f"{target}.manifest.json").provenance.sources
    assert {(one.rank, one.path, one.host) for one in origins} == {
        (source.rank, source.path, "host:1") for source in action.sources
    }


@pytest.mark.parametrize("bad", [StorageError("gone"), b"short"])
def test_a_part_that_cannot_be_had_comes_from_another(parts, bad):
    plan, action, there, holders, here, truth = parts
    host = Host(there, {action.source_ranks[0]: bad})
    outcome = apply_plan(plan, ApplyOptions(sources=host.sources(holders)))
    assert (here / "ckpt_dir0" / NAME).read_bytes() == truth
    assert outcome.exit_code == 5
    assert len(set(host.fetched)) > len(action.source_ranks)
    assert outcome.results[0].dropped


def test_where_a_part_is_nowhere_nothing_is_written(parts):
    plan, _, there, holders, here, _ = parts
    host = Host(there, {rank: StorageError("gone") for rank in range(1, 8)})
    outcome = apply_plan(plan, ApplyOptions(sources=host.sources(holders)))
    assert outcome.exit_code == 1
    assert "gone" in outcome.results[0].error
    assert not list(here.rglob("*.ckpt"))
    assert not list(here.glob(".*"))
