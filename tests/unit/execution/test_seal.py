"""Sealing: manifests that are durable, and none for a slice that is gone."""

from __future__ import annotations

import os

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, StorageError
from ms_recover.execution.seal import ForeseenSeals, seal_slices
from ms_recover.formats.manifest import read_manifest
from ms_recover.scanning.read import read_contents
from ms_recover.stores.digest import digest_of
from ms_recover.testing.trees import make_tree
from tests.support.faults import Faults


@pytest.fixture
def slices(tmp_path):
    make_tree(tmp_path)
    inventory = api.scan(tmp_path)
    return inventory.slices, read_contents(inventory.root, inventory.slices).digests


def seal(root, slices):
    files, digests = slices
    return seal_slices(str(root), [(file, "vote") for file in files], {0: (0, 1)}, 4, digests)


def test_a_manifest_states_the_bytes_that_were_judged(tmp_path, slices):
    files, digests = slices
    assert seal(tmp_path, slices) == [file.path for file in files]
    for file in files:
        manifest = read_manifest(tmp_path / f"{file.path}.manifest.json")
        assert (manifest.rank, manifest.world_size, manifest.step) == (file.rank, 4, file.step)
        assert manifest.group == ((0, 1) if file.rank == 0 else (file.rank,))
        assert (manifest.size, manifest.digests) == (file.size, digests[file.path])
        assert (manifest.parameters, manifest.provenance.evidence) == (file.parameters, "vote")


def test_each_directory_is_synced_after_its_last_rename(tmp_path, slices):
    with Faults(str(tmp_path), 0, "never", ("fsync", "rename")).installed() as faults:
        seal(tmp_path, slices)
    last_rename = max(place for place, call in enumerate(faults.trace) if call.startswith("rename"))
    after = [call for call in faults.trace[last_rename + 1 :] if call.startswith("fsync")]
    assert len(after) == len({os.path.dirname(file.path) for file in slices[0]})


def test_a_slice_that_is_gone_gets_no_manifest(tmp_path, slices):
    gone = tmp_path / slices[0][1].path
    gone.unlink()
    with pytest.raises(MissingInputError, match=str(gone)):
        seal(tmp_path, slices)
    assert not os.path.exists(f"{gone}.manifest.json")


def test_a_full_disk_is_an_error_and_leaves_no_temporary_file(tmp_path, slices):
    with Faults(str(tmp_path), 3, "ENOSPC", ("write",)).installed(), pytest.raises(StorageError, match="No space left"):
        seal(tmp_path, slices)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("here", [True, False])
def test_manifests_are_foreseen_with_their_bytes_and_none_is_written(here, tmp_path, slices):
    """Also of nodes, where nobody looks at strategy files: a digest has the length of any other."""
    files, digests = slices
    found = [(file, "vote") for file in files]
    foreseen = ForeseenSeals(str(tmp_path), here=here)
    assert foreseen(found, {0: (0, 1)}, 4, digests) == [file.path for file in files]
    assert not list(tmp_path.rglob("*.manifest.json"))
    seal(tmp_path, slices)
    assert foreseen.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.manifest.json"))


def test_a_slice_that_is_gone_is_foreseen(tmp_path, slices):
    (tmp_path / slices[0][1].path).unlink()
    with pytest.raises(MissingInputError, match=slices[0][1].path):
        ForeseenSeals(str(tmp_path))([(file, "vote") for file in slices[0]], {}, 4, slices[1])


def test_the_strategy_file_beside_a_slice_is_named(tmp_path, slices):
    (tmp_path / "ckpt_dir1" / "strategy.ckpt").write_bytes(b"layouts")
    seal(tmp_path, slices)
    stated = {file.rank: read_manifest(tmp_path / f"{file.path}.manifest.json").strategy_digest for file in slices[0]}
    assert stated == {file.rank: digest_of(b"layouts") if file.rank == 1 else None for file in slices[0]}
