import fcntl
import os
import stat
from dataclasses import replace

import pytest

from ms_recover.errors import FormatError, MissingInputError, StorageError, VerificationError
from ms_recover.execution.save_slice import SliceOrder, clear_leftovers, commit_slice, withdraw
from ms_recover.execution.state_files import read_state
from ms_recover.file_names import MANIFEST_SUFFIX, SAVING_DIRECTORY, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.state import encode_state
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_file
from ms_recover.testing.trees import PARAMETERS, slice_bytes
from tests.support.damage import strategy_bytes
from tests.support.faults import WRITING, Faults

WHOLE = slice_bytes(PARAMETERS, 5)


@pytest.fixture
def order(tmp_path):
    return SliceOrder(str(tmp_path / "test-2_8.ckpt"), 3, 8, Step(2, 8), 16, "run-1", (3, 7), frozenset(PARAMETERS))


def writer(content):
    def write(path):
        with open(path, "wb") as file:
            file.write(content)

    return write


def test_a_committed_slice_has_its_manifest(order, tmp_path):
    (tmp_path / "strategy.ckpt").write_bytes(strategy_bytes([2, 4], ["dense.weight"]))
    manifest = commit_slice(order, writer(WHOLE))
    path = tmp_path / "test-2_8.ckpt"
    assert path.read_bytes() == WHOLE
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert read_manifest(order.path + MANIFEST_SUFFIX) == manifest
    assert (manifest.rank, manifest.world_size, manifest.step, manifest.cumulative_step) == (3, 8, Step(2, 8), 16)
    assert (manifest.file, manifest.run_id, manifest.group) == ("test-2_8.ckpt", "run-1", (3, 7))
    assert (manifest.provenance.kind, manifest.size) == ("saved", len(WHOLE))
    assert manifest.digests.file == digest_file(path).file
    assert len(manifest.digests.parameters) == len(PARAMETERS)
    assert manifest.strategy_digest == digest_file(tmp_path / "strategy.ckpt").file
    assert not (tmp_path / SAVING_DIRECTORY).exists()


def test_another_slice_of_that_name_is_never_touched(order, tmp_path):
    (tmp_path / "test-2_8.ckpt").write_bytes(b"somebody's")
    with pytest.raises(StorageError, match="is there already: does another training save to this directory"):
        commit_slice(order, writer(WHOLE))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("test-2_8.ckpt", b"somebody's")]


def test_a_manifest_whose_slice_is_gone_does_not_meet_the_new_one(order, tmp_path):
    (tmp_path / f"test-2_8.ckpt{MANIFEST_SUFFIX}").write_text("of another slice")
    faults = Faults(str(tmp_path), 0, "none")
    with faults.installed():
        manifest = commit_slice(order, writer(WHOLE))
    renames = [call for call in faults.trace if call.startswith(("unlink", "rename"))]
    assert renames[0] == f"unlink test-2_8.ckpt{MANIFEST_SUFFIX}"
    assert renames[-1] == f"rename {SAVING_DIRECTORY}/test-2_8.ckpt"
    assert read_manifest(order.path + MANIFEST_SUFFIX) == manifest


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE[:-1], "not whole"),
        (slice_bytes({"embedding": 48, "dense.weight": 96}, 5), "not whole: .*global_step"),
        (b"", "not whole"),
    ],
)
def test_what_is_not_whole_is_not_committed(order, tmp_path, content, said):
    with pytest.raises(VerificationError, match=said):
        commit_slice(order, writer(content))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_never_written_is_an_error(order, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"test-2_8\.ckpt"):
        commit_slice(order, lambda path: None)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_gone_is_an_error(order, tmp_path):
    tmp_path.rmdir()
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        commit_slice(order, writer(WHOLE))


def test_leftovers_of_a_killed_save_are_removed_and_nothing_else(order, tmp_path):
    stale = tmp_path / f".test-1_8.ckpt{MANIFEST_SUFFIX}.ms_recover.tmp"
    stale.write_text("cut o")
    (tmp_path / SAVING_DIRECTORY).mkdir()
    (tmp_path / SAVING_DIRECTORY / "test-1_8.tmp").write_bytes(b"cut off")
    others = {"test-1_4.ckpt", "test-1_4.tmp", ".test-1_4.ckpt.ms_recover.tmp", "group_info.pb"}
    for name in others:
        (tmp_path / name).write_bytes(b"other")
    commit_slice(order, writer(WHOLE))
    assert {path.name for path in tmp_path.iterdir()} == others | {"test-2_8.ckpt", f"test-2_8.ckpt{MANIFEST_SUFFIX}"}


def test_a_manifest_that_another_process_is_writing_is_left_alone(tmp_path):
    path = tmp_path / f".test-1_8.ckpt{MANIFEST_SUFFIX}.ms_recover.tmp"
    path.write_text("half")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clear_leftovers(str(tmp_path))
        assert path.exists()
    clear_leftovers(str(tmp_path))
    assert not path.exists()


def test_a_slice_is_withdrawn_before_what_proves_it(order, tmp_path):
    commit_slice(order, writer(WHOLE))
    faults = Faults(str(tmp_path.parent), 0, "none")
    with faults.installed():
        withdraw([order.path])
    names = [os.path.relpath(order.path, faults.root) + suffix for suffix in ("", MANIFEST_SUFFIX)]
    folder = os.path.dirname(names[0])
    assert faults.trace == [f"unlink {names[0]}", f"fsync {folder}", f"unlink {names[1]}", f"fsync {folder}"]
    withdraw([order.path])


def test_a_slice_gets_its_name_when_its_state_and_its_manifest_lie_there(order, tmp_path):
    data = encode_state({"scale": 2.0})
    faults = Faults(str(tmp_path), 0, "none")
    with faults.installed():
        manifest = commit_slice(replace(order, state=data), writer(WHOLE))
    renames = [call.split()[1] for call in faults.trace if call.startswith("rename")]
    names = [f".test-2_8.ckpt{suffix}.ms_recover.tmp" for suffix in (STATE_SUFFIX, MANIFEST_SUFFIX)]
    assert renames == [*names, f"{SAVING_DIRECTORY}/test-2_8.ckpt"]
    assert read_manifest(order.path + MANIFEST_SUFFIX) == manifest
    assert read_state(order.path, manifest.training.state_digest) == {"scale": 2.0}
    assert stat.S_IMODE((tmp_path / f"test-2_8.ckpt{STATE_SUFFIX}").stat().st_mode) == 0o400
    withdraw([order.path])
    assert list(tmp_path.iterdir()) == []


def test_a_kill_never_leaves_a_slice_without_its_manifest_and_state(order, tmp_path):
    """Killed before every call of a save and of a removal; the save after it leaves nothing else."""
    whole, at = replace(order, state=encode_state({"scale": 2.0})), 0
    places = {"kill": 0, "named": 0}
    while True:
        at, folder = at + 1, tmp_path / str(at)
        folder.mkdir()
        here = replace(whole, path=str(folder / "test-2_8.ckpt"))
        process = os.fork()
        if not process:
            with Faults(str(folder), at, "kill", (*WRITING, "rmdir")).installed():
                commit_slice(here, writer(WHOLE))
                withdraw([here.path])
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            break
        places["kill"] += 1
        if os.path.exists(here.path):
            places["named"] += 1
            digest = read_manifest(here.path + MANIFEST_SUFFIX).training.state_digest
            assert read_state(here.path, digest) == {"scale": 2.0}
        else:
            commit_slice(replace(here, path=str(folder / "test-3_8.ckpt"), state=None), writer(WHOLE))
            left = {path.name for path in folder.iterdir()}
            removing = (
                {f"test-2_8.ckpt{suffix}" for suffix in (MANIFEST_SUFFIX, STATE_SUFFIX)} if places["named"] else {}
            )
            assert left - {"test-3_8.ckpt", f"test-3_8.ckpt{MANIFEST_SUFFIX}"} <= set(removing), at
    assert places["kill"] > 15
    assert places["named"] > 0


def test_a_state_that_is_not_the_named_one_is_refused(order, tmp_path):
    digest = commit_slice(replace(order, state=encode_state({})), writer(WHOLE)).training.state_digest
    path = tmp_path / f"test-2_8.ckpt{STATE_SUFFIX}"
    path.chmod(0o600)
    path.write_bytes(encode_state({"other": 1}))
    with pytest.raises(VerificationError, match=r"test-2_8\.ckpt\.state: its contents are not those"):
        read_state(order.path, digest)
    path.write_bytes(b"{}")
    with pytest.raises(FormatError, match=r"test-2_8\.ckpt\.state is not a state file that can be read: .*length"):
        read_state(order.path, digest_file(path).file)
    path.unlink()
    with pytest.raises(MissingInputError, match="a state file was expected there"):
        read_state(order.path, digest)


def test_a_stale_state_does_not_meet_a_new_slice(order, tmp_path):
    (tmp_path / f"test-2_8.ckpt{STATE_SUFFIX}").write_text("of another slice")
    (tmp_path / f".test-2_4.ckpt{STATE_SUFFIX}.ms_recover.tmp").write_text("cut o")
    assert commit_slice(order, writer(WHOLE)).training is None
    assert {path.name for path in tmp_path.iterdir()} == {"test-2_8.ckpt", f"test-2_8.ckpt{MANIFEST_SUFFIX}"}


def test_without_its_state_a_slice_is_not_committed(order, tmp_path):
    """The last write to the disk that can fail for want of space, but for the manifest's."""
    walked = Faults(str(tmp_path), 0, "none")
    with walked.installed():
        commit_slice(replace(order, state=encode_state({})), writer(WHOLE))
    withdraw([order.path])
    at = next(n for n, call in enumerate(walked.trace, 1) if call.startswith("rename") and STATE_SUFFIX in call)
    with Faults(str(tmp_path), at, "ENOSPC").installed(), pytest.raises(StorageError):
        commit_slice(replace(order, state=encode_state({})), writer(WHOLE))
    assert list(tmp_path.iterdir()) == []
