"""No training begins over slices of its experiment that another number of ranks saved."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

pytestmark = pytest.mark.mindspore

pytest.importorskip("mindspore")

from ms_recover.training.deciding.job import TrainingJob  # noqa: E402
from ms_recover.training.found_slice import find_slice  # noqa: E402
from ms_recover.training.held_directories import Held  # noqa: E402
from ms_recover.training.in_process import of_process  # noqa: E402
from ms_recover.training.number_of_ranks import check_number_of_ranks  # noqa: E402
from ms_recover.training.run import Runs  # noqa: E402
from ms_recover.training.search import Search  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402
from tests.support.sized_runs import two_then_one  # noqa: E402


@pytest.fixture
def root(tmp_path):
    make_tree(tmp_path, data_parallel=2, model_parallel=2, steps=(Step(1, 4), Step(1, 8)))
    save_manifests(tmp_path)
    return tmp_path


def refused(root, size, base="test", template="ckpt_dir{rank}"):
    found = []
    for rank in range(size):
        try:
            check_number_of_ranks(TrainingJob(rank, size), f"{root}/{template}", base)
        except UsageError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_another_number_of_ranks_is_refused(root, size):
    assert len(refused(root, size)) == min(size, 4)
    for text in ("slices of a job of 4 rank(s), the newest of step 1_8", f"this job has {size}", "reshard=True"):
        assert text in refused(root, size)[0]


def test_the_same_number_is_not(root):
    assert refused(root, 4) == []


def test_a_fresh_folder_is_not(tmp_path):
    assert refused(tmp_path, 2) == []
    assert refused(tmp_path / "none", 2) == []


def test_another_experiment_is_not(root):
    assert refused(root, 2, base="other") == []


def test_slices_that_were_set_aside_are_not(root):
    for path in list(root.rglob("*.ckpt")):
        path.rename(f"{path}.superseded")
        Path(f"{path}{MANIFEST_SUFFIX}").rename(f"{path}.superseded{MANIFEST_SUFFIX}")
    assert refused(root, 2) == []


def test_slices_without_a_manifest_state_no_number(root):
    for path in root.rglob(f"*{MANIFEST_SUFFIX}"):
        path.unlink()
    assert refused(root, 2) == []


def test_directories_of_ranks_that_the_job_does_not_have_are_seen(root):
    shutil.rmtree(root / "ckpt_dir0")
    shutil.rmtree(root / "ckpt_dir1")
    assert len(refused(root, 1)) == 1
    assert len(refused(root, 2)) == 2


def test_behind_a_resume_the_resume_has_judged(root, monkeypatch):
    monkeypatch.setattr(of_process(Runs), "resumed", object())
    assert refused(root, 2) == []


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize(("run_id", "size", "step"), [("A", 2, "1_4"), ("B", 1, "1_3")])
def test_a_run_that_is_chosen_is_resumed_as_it_is_planned(tmp_path, aside, run_id, size, step):
    """Where a start with one rank has saved into the folder of two, and set their slices aside."""
    two_then_one(tmp_path, aside=aside)
    jobs = thread_jobs(size)
    search = Search(str(tmp_path), ScanOptions(), PlanOptions(world_size=size, run=run_id), "refuse")
    planned = api.plan(api.scan(tmp_path), PlanOptions(run=run_id))
    with ExitStack() as ends:
        held = [ends.enter_context(Held()) for _ in jobs]
        found = on_all(size, lambda rank: find_slice(jobs[rank], search, held[rank]))
    assert [str(one.own.step) for one in found] == [step] * size == [str(planned.step)] * len(planned.ranks)


def test_the_resume_of_no_run_names_those_that_are_there_with_their_sizes(tmp_path):
    two_then_one(tmp_path, aside=True)
    for size in (1, 2):
        jobs = thread_jobs(size)
        search = Search(str(tmp_path), ScanOptions(), PlanOptions(world_size=size), "refuse")
        with ExitStack() as ends:
            held = [ends.enter_context(Held()) for _ in jobs]
            errors = on_all(size, lambda rank: find_slice(jobs[rank], search, held[rank]))  # noqa: B023
        for text in ("run B, ", "of 1 rank(s), up to step 1_3", "run A, ", "of 2 rank(s), up to step 1_4"):
            assert all(text in str(error) for error in errors), errors
