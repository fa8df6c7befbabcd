"""A fresh start: where there are no slices, and nowhere else."""

import shutil

import pytest

from ms_recover.errors import InputError, MissingInputError, MsRecoverError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from ms_recover.training.found_slice import find_slice  # noqa: E402
from ms_recover.training.held_directories import Held  # noqa: E402
from ms_recover.training.search import Search  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402


def found(roots, fresh="start", **scanning):
    jobs = thread_jobs(len(roots))

    def work(rank):
        options = ScanOptions(**scanning), PlanOptions(world_size=len(roots))
        with Held() as held:
            return find_slice(jobs[rank], Search(str(roots[rank]), *options, fresh), held)

    return on_all(len(roots), work)


def test_all_ranks_start_afresh_where_none_has_a_slice(tmp_path, caplog):
    (tmp_path / "empty").mkdir()
    assert found([tmp_path / "empty", tmp_path / "none"]) == [None, None]
    assert "rank 1: no slices under" in caplog.text
    refused = found([tmp_path / "empty", tmp_path / "none"], "refuse")
    assert all(isinstance(error, MissingInputError) for error in refused)


def test_rank_lists_of_a_larger_job_that_saved_nothing_keep_no_smaller_one_from_starting(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"ckpt_dir{rank}").mkdir()
        write_group_info(tmp_path / f"ckpt_dir{rank}" / "group_info.pb", (0, 1))
    assert found([tmp_path]) == [None]
    (refused,) = found([tmp_path], "refuse")
    assert isinstance(refused, MissingInputError)
    assert "no rank has a slice under" in str(refused)


def test_where_one_rank_sees_files_that_may_be_slices_none_starts(tmp_path):
    tree = make_tree(tmp_path / "tree", steps=(Step(1, 8),), data_parallel=1, model_parallel=2)
    (tree / "ckpt_dir1").rename(tree / "another name")
    shutil.rmtree(tree / "ckpt_dir0")
    outcomes = found([tmp_path / "none", tree])
    assert isinstance(outcomes[1], InputError)
    assert "rank 1: " in str(outcomes[1])
    assert "another name/test-1_8.ckpt has the name of a slice" in str(outcomes[1])
    assert isinstance(outcomes[0], MsRecoverError)
    assert "looking for slices failed on rank(s) 1" in str(outcomes[0])


@pytest.mark.parametrize("name", ["model.ckpt", "epoch3.safetensors", "test-1_8.ckpt.superseded", ".test-1_8.ckpt"])
def test_files_with_other_names_are_no_slices(tmp_path, name):
    (tmp_path / name).write_bytes(b"of another program")
    assert found([tmp_path]) == [None]


def test_a_manifest_makes_a_slice_of_any_name(tmp_path):
    tree = make_tree(tmp_path, steps=(Step(1, 8),), data_parallel=1, model_parallel=1)
    save_manifests(tree)
    (path,) = (tree / "ckpt_dir0").glob("*.ckpt")
    (tree / "kept").mkdir()
    path.rename(tree / "kept" / "best.ckpt")
    (manifest,) = (tree / "ckpt_dir0").glob("*.json")
    manifest.rename(tree / "kept" / "best.ckpt.manifest.json")
    (outcome,) = found([tree])
    assert isinstance(outcome, InputError)
    assert "best.ckpt" in str(outcome)


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "root").write_text("")
    (outcome,) = found([tmp_path / "root"])
    assert isinstance(outcome, InputError)


def test_a_fact_holds_everywhere_or_not_at_all():
    jobs = thread_jobs(3)
    assert on_all(3, lambda rank: jobs[rank].holds_everywhere(True)) == [True] * 3
    assert on_all(3, lambda rank: jobs[rank].holds_everywhere(rank != 1)) == [False] * 3
