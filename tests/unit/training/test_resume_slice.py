"""All ranks resume from one step, each with a slice that is proven."""

import logging
import os
import shutil

import numpy as np
import pytest

from ms_recover.api import scan
from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.training.deciding.agreement import agree
from ms_recover.training.own_steps import OwnSteps
from ms_recover.training.search import Search
from ms_recover.training.tree_view import see_trees
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.ranks import on_all, thread_jobs
from tests.support.unprivileged import as_nobody, close_to_all, open_to_all, reachable_folder

OLD, MIDDLE, NEW = Step(1, 8), Step(2, 8), Step(3, 8)


def path_of(root, rank, step):
    return root / f"ckpt_dir{rank}" / f"test-{step}.ckpt"


def flip(path, offset=-3):
    """Change one bit of the contents; size and time of modification stay."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def tree(tmp_path):
    """Three steps of two pairs of ranks, 0 = 2 and 1 = 3, with manifests."""
    make_tree(tmp_path / "tree", steps=(OLD, MIDDLE, NEW))
    save_manifests(tmp_path / "tree")
    return tmp_path / "tree"


def steps_of(root, rank, size, **options):
    search = Search(str(root), ScanOptions(), PlanOptions(world_size=size, **options), "refuse")
    return OwnSteps.judged(rank, search, see_trees(search.root, search.scanning, None).place, ())


def obtained(roots, **options):
    """Obtain the slices of all ranks; return the step and each rank's source, or what each raised."""
    if not isinstance(roots, list):
        roots = [roots] * 4
    jobs = thread_jobs(len(roots))

    def work(rank):
        steps = steps_of(roots[rank], rank, len(roots), **options)
        own = agree(jobs[rank], steps).obtained
        return own, steps.source_ranks.get(own.step)

    outcomes = on_all(len(roots), work)
    if any(isinstance(outcome, Exception) for outcome in outcomes):
        return None, outcomes
    (step,) = {own.step for own, _ in outcomes}
    for rank, (own, _) in enumerate(outcomes):
        assert own.rank == rank
    return step, [source for _, source in outcomes]


def test_all_have_their_slice(tree):
    assert obtained(tree) == (NEW, [None] * 4)


def test_a_damaged_slice_is_not_used_but_replaced_by_a_peers(tree, caplog):
    whole = path_of(tree, 1, NEW).read_bytes()
    flip(path_of(tree, 3, NEW))
    assert obtained(tree) == (NEW, [None, None, None, 1])
    assert path_of(tree, 3, NEW).read_bytes() == whole
    assert read_manifest(f"{path_of(tree, 3, NEW)}{MANIFEST_SUFFIX}").rank == 3
    assert "rank 3, step 3_8: ckpt_dir3/test-3_8.ckpt: its contents are not those of its manifest" in caplog.text
    assert "copied from rank 1" in caplog.text


def test_a_lost_rank_gets_its_slice_and_manifest(tree):
    shutil.rmtree(tree / "ckpt_dir2")
    assert obtained(tree) == (NEW, [None, None, 0, None])
    assert path_of(tree, 2, NEW).read_bytes() == path_of(tree, 0, NEW).read_bytes()
    assert read_manifest(f"{path_of(tree, 2, NEW)}{MANIFEST_SUFFIX}").provenance.sources[0].rank == 0


def test_where_no_peer_has_a_sound_one_all_go_back(tree, caplog):
    flip(path_of(tree, 0, NEW))
    flip(path_of(tree, 2, NEW), -9)
    flip(path_of(tree, 1, MIDDLE))
    assert obtained(tree) == (MIDDLE, [None, 3, None, None])
    assert "holds other bytes" in caplog.text
    assert "trying an older step" in caplog.text


def test_damage_that_is_the_same_on_both_is_damage_too(tree):
    flip(path_of(tree, 0, NEW))
    flip(path_of(tree, 2, NEW))
    assert obtained(tree) == (MIDDLE, [None] * 4)


def test_a_damaged_slice_and_a_lost_peer(tree):
    flip(path_of(tree, 0, NEW))
    shutil.rmtree(tree / "ckpt_dir2")
    assert obtained(tree) == (MIDDLE, [None, None, 0, None])


def test_when_nothing_is_sound_all_stop(tree):
    for step in (OLD, MIDDLE, NEW):
        flip(path_of(tree, 0, step))
        flip(path_of(tree, 2, step), -9)
    _, outcomes = obtained(tree)
    assert all(isinstance(outcome, UnrecoverableError) for outcome in outcomes)
    assert "rank(s) 1, 3: 3_8, 2_8, 1_8" in str(outcomes[0])
    assert "rank 0 lacks step 3_8: " in str(outcomes[0])
    assert "its contents are not those of its manifest" in str(outcomes[0])


def test_a_copy_that_fails_for_want_of_space_is_not_a_reason_to_go_back(tree, monkeypatch):
    from ms_recover.errors import StorageError
    from ms_recover.execution import write

    def full(*arguments, **options):
        raise StorageError("copying: No space left on device; free some space there")

    shutil.rmtree(tree / "ckpt_dir2")
    monkeypatch.setattr(write, "copy_slice", full)
    _, outcomes = obtained(tree)
    assert "rank 2, step 3_8" in str(outcomes[2])
    assert "No space left" in str(outcomes[2])
    assert all("getting the slice of step 3_8 failed on rank(s) 2" in str(outcomes[rank]) for rank in (0, 1, 3))


def test_a_source_that_turns_bad_while_it_is_copied(tree, monkeypatch):
    from ms_recover.execution import write

    real = write.copy_slice

    def altered(action, *given):
        flip(tree / action.source)
        return real(action, *given)

    shutil.rmtree(tree / "ckpt_dir2")
    monkeypatch.setattr(write, "copy_slice", altered)
    with monkeypatch.context() as patch:
        patch.setattr(write, "copy_slice", lambda *given: altered(*given) if "3_8" in given[0].source else real(*given))
        assert obtained(tree) == (MIDDLE, [None, None, 0, None])


def test_replicas_that_differ_with_nothing_to_say_who_is_right(tree):
    """Each has a manifest of its own, so the two saved different contents: going back further would hide it."""
    manifests = [tree / f"ckpt_dir{rank}" / f"test-{NEW}.ckpt{MANIFEST_SUFFIX}" for rank in range(4)]
    for path in manifests:
        path.unlink()
    flip(path_of(tree, 0, NEW))
    save_manifests(tree)
    _, outcomes = obtained(tree)
    assert all(isinstance(outcome, MsRecoverError) for outcome in outcomes)
    refused = [outcome for outcome in outcomes if isinstance(outcome, VerificationError)]
    assert refused
    assert "step 3_8" in str(refused[0])
    assert "nothing shows which is right" in str(refused[0])
    assert obtained(tree, tolerate=["global_step"]) == (NEW, [None] * 4)


def test_without_manifests_a_lost_rank_needs_peers_that_agree(tmp_path):
    tree = make_tree(tmp_path, data_parallel=3, model_parallel=1, steps=(OLD, NEW))
    shutil.rmtree(tree / "ckpt_dir2")
    flip(path_of(tree, 1, NEW))
    _, outcomes = obtained([tree] * 3)
    assert isinstance(outcomes[2], VerificationError)
    assert "global_step" in str(outcomes[2])
    flip(path_of(tree, 1, NEW))
    assert obtained([tree] * 3) == (NEW, [None, None, 0])


def test_runs_are_never_mixed(tmp_path, caplog):
    """The ranks share no disk, and each has the newest step of another run."""
    roots = []
    for rank, run in enumerate(("night-7", "night-8")):
        tree = make_tree(tmp_path / str(rank), model_parallel=1, steps=(OLD, NEW))
        save_manifests(tree, "night-6")
        path = tree / f"ckpt_dir{rank}" / f"test-{NEW}.ckpt{MANIFEST_SUFFIX}"
        path.write_text(path.read_text().replace("night-6", run))
        shutil.rmtree(tree / f"ckpt_dir{1 - rank}")
        roots.append(tree)
    assert obtained(roots) == (OLD, [None, None])
    assert "of different runs" in caplog.text


def test_the_higher_step_of_an_older_run_is_not_resumed_from(tmp_path):
    tree = make_tree(tmp_path / "tree", steps=(OLD, MIDDLE))
    for rank in range(4):
        older = tree / f"ckpt_dir{rank}" / f"baseline-{NEW}.ckpt"
        shutil.copy(path_of(tree, rank, MIDDLE), older)
        os.utime(older, (1, 1))
    steps = steps_of(tree, 0, 4).steps
    assert steps.available == [MIDDLE, OLD]
    assert "of an older run" in steps.unavailable[NEW]
    assert obtained(tree) == (MIDDLE, [None] * 4)


def test_newer_slices_are_renamed_with_their_manifests(tree, caplog):
    folder = tree / "ckpt_dir1"
    for double in ("test_1-3_8.ckpt", "test_2-3_8.ckpt"):
        shutil.copy(path_of(tree, 1, NEW), folder / double)
    (folder / "test-3_8.ckpt.superseded").write_bytes(b"of an earlier resume")
    others = {path: path.read_bytes() for rank in (0, 2, 3) for path in (tree / f"ckpt_dir{rank}").iterdir()}
    steps_of(tree, 1, 4).set_newer_aside(MIDDLE)
    assert sorted(path.name for path in folder.iterdir()) == [
        "group_info.pb",
        "test-1_8.ckpt",
        f"test-1_8.ckpt{MANIFEST_SUFFIX}",
        "test-2_8.ckpt",
        f"test-2_8.ckpt{MANIFEST_SUFFIX}",
        "test-3_8.ckpt.2.superseded",
        f"test-3_8.ckpt.2.superseded{MANIFEST_SUFFIX}",
        "test-3_8.ckpt.superseded",
        "test_1-3_8.ckpt.superseded",
        "test_2-3_8.ckpt.superseded",
    ]
    assert {path: path.read_bytes() for path in others} == others
    (said,) = [one.getMessage() for one in caplog.records if "renamed to" in one.getMessage()]
    assert "ckpt_dir1: 3 slice(s) up to step 3_8, newer than step 2_8, from which training goes on, renamed to" in said
    assert said.endswith("to test-3_8.ckpt.2.superseded, test_1-3_8.ckpt.superseded, test_2-3_8.ckpt.superseded")


def test_a_slice_that_was_copied_in_vain_is_renamed_too(tree):
    """Rank 2 gets the newest from rank 0, but rank 1 and rank 3 cannot have it."""
    shutil.rmtree(tree / "ckpt_dir2")
    flip(path_of(tree, 1, NEW))
    flip(path_of(tree, 3, NEW), -9)
    jobs = thread_jobs(4)

    def work(rank):
        steps = steps_of(tree, rank, 4)
        own = agree(jobs[rank], steps).obtained
        steps.set_newer_aside(own.step)
        return own.step

    assert on_all(4, work) == [MIDDLE] * 4
    assert not any(path_of(tree, rank, NEW).exists() for rank in range(4))
    assert path_of(tree, 2, NEW).with_name(f"test-{NEW}.ckpt.superseded").exists()


def test_a_state_goes_with_its_slice(tree):
    folder = tree / "ckpt_dir1"
    (folder / f"test-3_8.ckpt{STATE_SUFFIX}").write_bytes(b"state")
    (folder / f"test-3_8.ckpt.superseded{STATE_SUFFIX}").write_bytes(b"of an earlier resume")
    steps_of(tree, 1, 4).set_newer_aside(MIDDLE)
    names = [path.name for path in folder.glob("test-3_8*")]
    assert sorted(names) == [
        *(f"test-3_8.ckpt.2.superseded{end}" for end in ("", MANIFEST_SUFFIX, STATE_SUFFIX)),
        f"test-3_8.ckpt.superseded{STATE_SUFFIX}",
    ]
    assert [note.path for note in scan(tree).notes] == ["ckpt_dir1/test-3_8.ckpt.2.superseded"]


def test_renaming_that_was_killed_half_way_is_finished(tree):
    folder = tree / "ckpt_dir1"
    name = folder / f"test-3_8.ckpt{MANIFEST_SUFFIX}"
    name.rename(folder / f"test-3_8.ckpt.superseded{MANIFEST_SUFFIX}")
    steps_of(tree, 1, 4).set_newer_aside(MIDDLE)
    names = [path.name for path in folder.glob("test-3_8*")]
    assert sorted(names) == ["test-3_8.ckpt.superseded", f"test-3_8.ckpt.superseded{MANIFEST_SUFFIX}"]


def test_what_a_slice_rests_on_is_logged(tree, caplog):
    caplog.set_level(logging.INFO)
    obtained(tree)
    assert "rank 3, step 3_8" in caplog.text
    assert "sound by its manifest" in caplog.text


@pytest.mark.parametrize("manifests", [True, False])
def test_a_slice_without_replica_is_composed(tmp_path, manifests):
    """Rank 0 holds its columns with rank 2 and its rows with rank 1; nobody has both."""
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    tensors = {
        "columns": CutTensor("Float32", array, cut_layout("columns", (2, 2), (), (0,))),
        "rows": CutTensor("Float32", array + 100, cut_layout("rows", (2, 2), (1,), ())),
    }
    tree = make_cut_tree(tmp_path / "tree", tensors, 4, steps=(OLD, NEW), manifests=manifests)
    path = path_of(tree, 0, NEW)
    truth = path.read_bytes()
    shutil.rmtree(path.parent)
    step, (source, *others) = obtained(tree)
    assert (step, others) == (NEW, [None] * 3)
    assert source in (1, 2)
    assert path.read_bytes() == truth
    assert read_manifest(f"{path}{MANIFEST_SUFFIX}").recovered


def test_a_slice_that_cannot_be_put_where_nothing_may_be_written_is_that_of_an_older_step(caplog):
    with reachable_folder() as top:
        root = top / "tree"
        make_tree(root, steps=(OLD, NEW))
        save_manifests(root)
        flip(path_of(root, 3, NEW))
        close_to_all(root)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        try:
            with as_nobody():
                assert obtained(root) == (OLD, [None] * 4)
            assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
        finally:
            open_to_all(root)
    assert f"{root}/ckpt_dir3 may only be read, so the slice cannot be put there" in caplog.text
