"""Directories that are made like others, and made durable together."""

from __future__ import annotations

import stat

import pytest

from ms_recover.errors import MissingInputError
from ms_recover.stores.atomic import write_small
from ms_recover.stores.directories import DirectorySyncs, make_directories, make_directory
from tests.support.faults import Faults


def test_directories_get_the_mode_of_their_model(tmp_path):
    like = tmp_path / "ckpt_dir1"
    like.mkdir(mode=0o750)
    like.chmod(0o750)
    make_directory(str(tmp_path / "ckpt_dir0"), str(like), str(tmp_path))
    assert stat.S_IMODE((tmp_path / "ckpt_dir0").stat().st_mode) == 0o750


def test_parents_of_a_directory_get_the_mode_of_the_models_parents_and_the_root_is_never_made(tmp_path):
    like = tmp_path / "checkpoints" / "rank_1"
    like.mkdir(parents=True)
    like.parent.chmod(0o710)
    like.chmod(0o750)
    make_directory(str(tmp_path / "again" / "rank_0"), str(like), str(tmp_path))
    assert stat.S_IMODE((tmp_path / "again").stat().st_mode) == 0o710
    assert stat.S_IMODE((tmp_path / "again" / "rank_0").stat().st_mode) == 0o750
    with pytest.raises(FileNotFoundError):
        make_directory(str(tmp_path / "gone" / "rank_0"), str(tmp_path / "gone"), str(tmp_path / "gone"))
    assert not (tmp_path / "gone").exists()


def test_a_new_directory_and_its_new_parents_are_durable(tmp_path):
    with Faults(str(tmp_path.parent), 0, "never", ("fsync",)).installed() as faults:
        make_directories(str(tmp_path / "a" / "b"))
        make_directories(str(tmp_path / "a" / "b"))
    assert faults.trace == [f"fsync {tmp_path.name}", f"fsync {tmp_path.name}/a"]


def test_directories_noted_for_later_are_not_synced_at_once(tmp_path):
    syncs = DirectorySyncs()
    with Faults(str(tmp_path.parent), 0, "never", ("fsync",)).installed() as faults:
        write_small(tmp_path / "b", b"x", syncs=syncs)
        write_small(tmp_path / "a", b"x", syncs=syncs)
        assert [call for call in faults.trace if call.endswith(tmp_path.name)] == []
        assert syncs.paths == [str(tmp_path)]


def test_every_directory_is_synced_and_those_that_are_gone_are_named(tmp_path):
    syncs = DirectorySyncs()
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        syncs.add(str(tmp_path / name))
    (tmp_path / "b").rmdir()
    with Faults(str(tmp_path), 0, "never", ("fsync",)).installed() as faults:
        errors = syncs.sync_all(2)
    assert [type(error) for error in errors] == [MissingInputError]
    assert f"syncing {tmp_path / 'b'}" in str(errors[0])
    assert len(faults.trace) == 2
