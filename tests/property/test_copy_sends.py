"""A backup holds under a name that counts its bytes and no others, whatever becomes of the tree meanwhile."""

import os
import random
import threading
from contextlib import suppress

import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.model.backup import BackupOutcome
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_of
from ms_recover.stores.urls import open_store
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.examples import examples
from tests.support.law_files import make
from tests.support.law_scenes import random_scene

STEPS = (Step(1, 7), Step(1, 8))


@pytest.fixture
def tree(tmp_path):
    """Two groups of two ranks that hold the same, with the manifests of training."""
    return saved(tmp_path / "tree")


def saved(root):
    tree = make_tree(root, data_parallel=2, model_parallel=2, steps=STEPS, parameters={"w": 50_000, "b": 7})
    save_manifests(tree)
    for path in tree.rglob("*.ckpt"):
        path.chmod(0o600)
    return tree


def flip(path, at):
    """Change a byte, and nothing that a scan sees."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def slice_of(tree, rank, step=STEPS[-1]):
    return tree / f"ckpt_dir{rank}" / f"test-{step}.ckpt"


def check_objects(backup):
    """Check that every object holds the bytes that its name names."""
    found = [path for path in backup.glob("objects/*/*") if not path.name.startswith(".")]
    for path in found:
        assert path.name == f"{digest_of(path.read_bytes()).partition(':')[2]}-{path.stat().st_size}"
    return found


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_source_that_flipped_is_passed_over_for_its_replica(tree, tmp_path, jobs):
    before = slice_of(tree, 0).read_bytes()
    inventory = api.scan(tree)
    flip(slice_of(tree, 0), 100_000)
    outcome = api.copy(inventory, str(tmp_path / "backup"), jobs=jobs)
    assert [note.path for note in outcome.passed_over] == ["ckpt_dir0/test-1_8.ckpt"]
    assert outcome.exit_code == VerificationError.exit_code
    check_objects(tmp_path / "backup")
    assert api.verify(api.scan(tmp_path / "backup")).ok
    assert slice_of(tree, 2).read_bytes() == before


def test_the_command_names_the_slice_that_was_passed_over(recover_ckpt, tree, tmp_path):
    flip(slice_of(tree, 0), 100_000)
    done = recover_ckpt("copy", tree, tmp_path / "backup")
    assert done.code == 5
    assert "ckpt_dir0/test-1_8.ckpt" in done.out
    assert f"repair them with: recover-ckpt apply {tree}" in done.out
    assert recover_ckpt("apply", tree).code == 0
    assert recover_ckpt("copy", tree, tmp_path / "backup").code == 0


def test_contents_that_no_rank_holds_are_not_committed(tree, tmp_path):
    """Both replicas of the newest step are damaged: it does not count, and the step before is taken."""
    inventory = api.scan(tree)
    for rank in (0, 2):
        flip(slice_of(tree, rank), 100_000)
    assert api.copy(inventory, str(tmp_path / "backup"), jobs=2).step == STEPS[0]
    check_objects(tmp_path / "backup")
    assert api.scan(tmp_path / "backup").steps == (STEPS[0],)
    assert api.verify(api.scan(tmp_path / "backup")).ok


def test_a_step_that_no_rank_holds_is_refused_where_it_is_named(recover_ckpt, tree, tmp_path):
    for rank in (0, 2):
        flip(slice_of(tree, rank), 100_000)
    done = recover_ckpt("copy", tree, tmp_path / "backup", "--step", "1_8")
    assert done.code == UnrecoverableError.exit_code
    assert "rank 0" in done.err
    assert not list(tmp_path.glob("backup/steps/*"))
    check_objects(tmp_path / "backup")


def test_with_verify_a_damaged_replica_is_refused(recover_ckpt, tree, tmp_path):
    flip(slice_of(tree, 2), 100_000)
    assert recover_ckpt("copy", tree, tmp_path / "backup").code == 0  # it gives nothing
    done = recover_ckpt("copy", tree, tmp_path / "other", "--verify")
    assert done.code == VerificationError.exit_code
    assert "rank 2" in done.err
    assert not (tmp_path / "other").exists()


def test_a_slice_without_a_manifest_that_flips_is_refused(tree, tmp_path):
    """It was read to prove it, and what is sent is something else."""
    for path in tree.rglob("*.manifest.json"):
        path.unlink()
    inventory = api.scan(tree)
    flipped = []

    def progress(count):
        if not flipped:  # at the first bytes that are read
            flipped.append([flip(slice_of(tree, rank), 200_000) for rank in range(4)])

    with pytest.raises(MsRecoverError):
        api.copy(inventory, str(tmp_path / "backup"), progress=progress)
    check_objects(tmp_path / "backup")
    assert not list(tmp_path.glob("backup/steps/*"))


@pytest.mark.parametrize("seed", range(examples(8)))
def test_whatever_flips_meanwhile_no_wrong_byte_gets_a_name(tmp_path, seed):
    """A device that flips bytes of some replicas, forth and back, while they are copied."""
    draw = random.Random(seed)
    tree = saved(tmp_path / "tree")
    victims = draw.sample([slice_of(tree, rank, step) for rank in range(4) for step in STEPS], draw.randint(1, 6))
    inventory, done = api.scan(tree), threading.Event()

    def spoil():
        places = [(draw.choice(victims), draw.randrange(1000, 200_000)) for _ in range(3)]
        while not done.wait(draw.random() * 0.003):
            flip(*draw.choice(places))

    spoiling = threading.Thread(target=spoil)
    spoiling.start()
    try:
        with suppress(MsRecoverError):
            api.copy(inventory, str(tmp_path / "backup"), jobs=draw.randint(1, 4))
    finally:
        done.set()
        spoiling.join()
    check_objects(tmp_path / "backup")
    if list(tmp_path.glob("backup/steps/*")):
        assert api.verify(api.scan(tmp_path / "backup")).ok


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_copy_that_presumes_is_the_copy_that_reads(tmp_path, seed):
    """Over random trees: where every slice holds what its manifest says, both do the same; neither gives a wrong byte.

    The slices of a backup are those of the tree, or what a manifest proves of one that is damaged there. A copy that
    reads refuses such a step, and one that presumes need not know of it; it refuses what the other one refuses.
    """
    tree = make(random_scene(seed), tmp_path / "tree").root
    inventory = api.scan(tree, ScanOptions(may_be_empty=True))

    def copied(verify):
        try:
            return api.copy(inventory, str(tmp_path / f"backup{verify}"), jobs=2, verify=verify)
        except MsRecoverError as error:
            return type(error)

    reads, presumes = copied(True), copied(None)
    if not isinstance(presumes, BackupOutcome):
        assert presumes is reads
        return
    manifests = {file.path: file.manifest for file in inventory.slices if file.manifest is not None}
    digests = {file.path: digest_of((tree / file.path).read_bytes()) for file in inventory.slices}
    newer = [file.path for file in inventory.slices if file.step >= presumes.step and file.path in manifests]
    if all(manifests[path].digests.file == digests[path] for path in newer):
        assert (reads.index, reads.step, reads.bytes) == (presumes.index, presumes.step, presumes.bytes)
        assert presumes.exit_code == 0
    check_objects(tmp_path / "backupNone")
    backup = api.scan(tmp_path / "backupNone")
    assert api.verify(backup).ok
    with open_store(tmp_path / "backupNone") as store:
        for file in backup.slices:
            with store.open(file.path) as opened:
                data = opened.read_at(0, opened.size)
            proven = manifests[file.path].digests.file if file.path in manifests else None
            assert digest_of(data) in (digests[file.path], proven)
