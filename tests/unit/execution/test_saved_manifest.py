import os

import pytest

from ms_recover.errors import VerificationError
from ms_recover.execution import saved_manifest
from ms_recover.execution.manifests import NamedSlice
from ms_recover.execution.saved_manifest import commit_manifest, prove_saved
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_file
from ms_recover.testing.trees import slice_bytes


@pytest.fixture
def order(tmp_path):
    path = tmp_path / "net-1_4.ckpt"
    path.write_bytes(slice_bytes({"w": 6, "b": 2}, seed=1))
    return NamedSlice(path=str(path), rank=1, world_size=4, step=Step(1, 4), cumulative_step=4, run_id="run-1")


def replace(order, seed=2):
    """Put another slice under the same name, as MindSpore does."""
    fresh = f"{order.path}.tmp"
    with open(fresh, "wb") as file:
        file.write(slice_bytes({"w": 6, "b": 2}, seed=seed))
    os.rename(fresh, order.path)


def group(parameters):
    return (1, 3)


def test_a_manifest_states_what_training_saved(order):
    proven = prove_saved(order, group, "xxh3_128:" + "0" * 32)
    assert commit_manifest(proven)
    found = read_manifest(order.path + MANIFEST_SUFFIX)
    assert found == proven.manifest
    assert (found.rank, found.world_size, found.step, found.run_id) == (1, 4, Step(1, 4), "run-1")
    assert (found.group, found.provenance.kind, found.cumulative_step) == ((1, 3), "saved", 4)
    assert found.digests.file == digest_file(order.path).file
    assert [parameter.name for parameter in found.parameters] == ["w", "b"]


def test_a_slice_that_is_gone_is_no_error(order):
    proven = prove_saved(order, group)
    os.unlink(order.path)
    assert prove_saved(order, group) is None
    assert not commit_manifest(proven)
    assert not os.path.exists(order.path + MANIFEST_SUFFIX)


def test_a_directory_that_is_gone_is_no_error(order, tmp_path):
    proven = prove_saved(order, group)
    os.unlink(order.path)
    os.rmdir(tmp_path)
    assert prove_saved(order, group) is None
    assert not commit_manifest(proven)


def test_a_slice_that_is_replaced_while_it_is_read_gets_none(order, monkeypatch):
    def digest_and_replace(path, contents, **options):
        found = digest_file(path, contents, **options)
        replace(order)
        return found

    monkeypatch.setattr(saved_manifest, "digest_file", digest_and_replace)
    assert prove_saved(order, group) is None


def test_a_slice_that_is_replaced_before_the_manifest_gets_none(order):
    proven = prove_saved(order, group)
    replace(order)
    assert not commit_manifest(proven)
    assert not os.path.exists(order.path + MANIFEST_SUFFIX)


def test_a_slice_that_is_replaced_while_the_manifest_is_written_keeps_none(order, monkeypatch):
    proven = prove_saved(order, group)
    write = saved_manifest.write_manifest

    def replace_and_write(path, manifest):
        replace(order)
        write(path, manifest)

    monkeypatch.setattr(saved_manifest, "write_manifest", replace_and_write)
    assert not commit_manifest(proven)
    assert not os.path.exists(order.path + MANIFEST_SUFFIX)


def test_a_damaged_slice_is_refused(order):
    os.truncate(order.path, 40)
    with pytest.raises(VerificationError, match="the slice is not whole"):
        prove_saved(order, group)


def test_reading_can_be_stopped(order):
    assert prove_saved(order, group, stop=lambda: True) is None


def test_a_slice_that_has_taken_the_place_of_another_keeps_its_own_manifest(order):
    proven = prove_saved(order, group)
    replace(order)
    newer = prove_saved(order, group)
    assert commit_manifest(newer)
    assert not commit_manifest(proven)
    assert read_manifest(order.path + MANIFEST_SUFFIX) == newer.manifest
