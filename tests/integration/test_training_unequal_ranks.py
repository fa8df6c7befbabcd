"""Ranks with different arguments, or at different places of the program, all end at once with the same reason."""

import json
import re

import pytest

from ms_recover.errors import UsageError
from tests.support.msrun import run_ranks

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from ms_recover.training import SliceCheckpoint, SliceSaver  # noqa: E402
from tests.support.trainings import checkpoint, files, make_dataset, make_model  # noqa: E402

SOON = 5.0


def launched(folder, scenes):
    code, text = run_ranks("unequal_ranks.py", 2, folder, folder, scenes, GLOG_v="3")
    written = [folder / f"seen{rank}.json" for rank in range(2)]
    logs = "".join(one.read_text()[-3000:] for one in folder.rglob("worker_*.log"))
    assert all(one.exists() for one in written), (code, text, logs)
    return [json.loads(one.read_text()) for one in written]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("unequal"), "named")


RESUMES = {
    "run": ("run is not given on rank(s) 0, '", "on rank(s) 1"),
    "another run": ("run is '", "'of_nobody' on rank(s) 1"),
    "variable": ("run is not given on rank(s) 0, '", "by MS_RECOVER_RUN on rank(s) 1"),
    "file": ("ckpt_file is of step 1_4 on rank(s) 0, not given on rank(s) 1",),
    "files of two steps": ("ckpt_file is of step 1_4 on rank(s) 0, of step 1_8 on rank(s) 1",),
    "step": ("step is '1_4' on rank(s) 0, '1_8' on rank(s) 1",),
    "epochs": ("epochs is 3 on rank(s) 0, 4 on rank(s) 1",),
    "change": ("allow_dataset_change is True on rank(s) 0, False on rank(s) 1",),
    "fresh": ("fresh is 'refuse' on rank(s) 0, 'start' on rank(s) 1",),
    "reshard": ("reshard is True on rank(s) 0, False on rank(s) 1",),
    "sink size": ("sink_size is 4 on rank(s) 0, 2 on rank(s) 1",),
    "validation": ("valid_dataset is given on rank(s) 0, not given on rank(s) 1",),
    "its frequency": ("valid_frequency is 1 on rank(s) 0, 2 on rank(s) 1",),
    "saver": ("the number of SliceCheckpoint among the callbacks is 1 on rank(s) 0, 0 on rank(s) 1",),
}
SAVES = {
    "saver's steps": ("save_steps is 4 on rank(s) 0, 6 on rank(s) 1",),
    "saver's way": ("async_save is False on rank(s) 0, True on rank(s) 1",),
    "steps": ("save_steps is 4 on rank(s) 0, 6 on rank(s) 1",),
    "epochs to train": ("epochs is 3 on rank(s) 0, 4 on rank(s) 1",),
    "epochs' steps": ("steps of an epoch is 8 on rank(s) 0, 9 on rank(s) 1",),
    "way": ("async_save is False on rank(s) 0, True on rank(s) 1",),
}


@pytest.mark.parametrize("name", [*RESUMES, *SAVES])
def test_a_different_argument_is_named_with_its_values_and_ranks_at_once_on_all(seen, name):
    one, other = (rank[name] for rank in seen)
    assert one["failure"] == other["failure"]
    doing = "resuming" if name in RESUMES else "beginning to save"
    assert one["failure"].startswith(f"UsageError: {doing}: the ranks were given different arguments: "), one
    for text in (RESUMES | SAVES)[name]:
        assert text in one["failure"]
    assert max(one["seconds"], other["seconds"]) < SOON
    assert one["same"]
    assert other["same"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own loss", "rank 0 is saving step 1_3, rank 1 is saving step 1_5"),
        ("saves and resumes", "rank 0 is saving step 1_7, rank 1 is resuming"),
    ],
)
def test_ranks_that_do_different_things_are_named_with_them_at_once_on_all(seen, name, said):
    one, other = (rank[name] for rank in seen)
    assert one["failure"] == other["failure"]
    assert said in one["failure"]
    assert max(one["seconds"], other["seconds"]) < SOON


REFUSALS = {
    "extra of one": ("saving step 8", "UsageError", "seen"),
    "step of one": ("saving step 1", "UsageError", "step 1_1 does not come behind step 1_"),
    "first save of one": ("saving step -1", "UsageError", "step=-1: it must be at least 1"),
    "choice of one": ("checking the arguments of a resume", "UsageError", "rank_local='nobody'"),
    "choice of one in a loop": ("checking the arguments of a resume", "UsageError", "fresh='again'"),
    "epochs of one": ("checking the arguments of a resume", "UsageError", "epochs=0: it must be at least 1"),
    "state of one": ("beginning to save step 8", "UsageError", "Odd"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_one_rank_refuses_by_itself_ends_all_at_once_with_the_reason(seen, name):
    one, other = (rank[name] for rank in seen)
    doing, kind, text = REFUSALS[name]
    assert other["failure"].startswith(f"{kind}: ")
    assert text in other["failure"]
    assert one["failure"].startswith(f"MsRecoverError: rank 0 stops because {doing} failed on rank(s) 1: {kind}: ")
    assert text in one["failure"]
    assert max(one["seconds"], other["seconds"]) < SOON


def test_each_rank_may_name_its_own_slice_of_the_step(seen):
    for rank in seen:
        assert rank["own files"]["failure"] == ""
        assert rank["own files"]["step"] == "1_8"


def test_a_saver_on_one_rank_alone_says_that_the_other_does_not_call_it(tmp_path):
    """The other rank never calls anything of this package: MindSpore gives what its training step sends, or nothing."""
    one, other = launched(tmp_path, "alone")
    said = one["alone"]["failure"]
    assert said.startswith("MsRecoverError: rank 0: ")
    assert re.search(r"do(es)? not call this \((beginning to save|comparing the shards)\)", said)
    assert other["alone"]["failure"] in ("RuntimeError", "")
    assert one["alone"]["seconds"] < 45  # of which MindSpore waits 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders")
    return folder, launched(folder, "folders")


def test_a_folder_of_another_training_is_refused_with_both_runs_on_all_ranks(folders):
    one, other = (rank["foreign"] for rank in folders[1])
    ours, others = folders[1][0]["runs"]
    for seen in (one, other):
        assert seen["failure"].startswith("UsageError: the folder of rank(s) 0 is of another training")
        for text in (f"run='{ours}'", f"run='{others}'", "up to step 2_4", "up to step 3_4"):
            assert text in seen["failure"], text
        assert seen["same"]
        assert seen["seconds"] < SOON


def test_the_run_that_is_chosen_then_is_resumed_by_all(folders):
    for rank in folders[1]:
        assert (rank["ours"]["failure"], rank["ours"]["step"]) == ("", "2_4")
        assert (rank["theirs"]["failure"], rank["theirs"]["step"]) == ("", "3_4")


def test_a_folder_that_is_lost_is_given_its_slices_without_a_question(folders):
    for rank in folders[1]:
        assert (rank["lost"]["failure"], rank["lost"]["step"]) == ("", "3_4")


def test_a_start_with_one_rank_in_the_folder_of_two_is_refused_before_anything_is_written(folders):
    root = folders[0] / "other"
    before = files(root)
    for begin in (
        lambda: make_model().train(1, make_dataset(), callbacks=[checkpoint(root, 4)]),
        lambda: SliceSaver(make_model().train_network, f"{root}/ckpt_dir{{rank}}", "test").save(1),
    ):
        with pytest.raises(UsageError, match=r"slices of a job of 2 rank\(s\), the newest of step 3_4 of run") as said:
            begin()
        for text in ("this job has 1", "--worker_num=2", "reshard=True", folders[1][0]["runs"][1]):
            assert text in str(said.value)
        assert files(root) == before
    make_model().train(1, make_dataset(), callbacks=[SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", "another")])
    assert {name: data for name, data in files(root).items() if "test-" in name} == {
        name: data for name, data in before.items() if "test-" in name
    }
