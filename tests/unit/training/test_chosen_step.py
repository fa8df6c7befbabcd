"""A training that is resumed from a chosen step, or from a chosen slice."""

import os
from contextlib import ExitStack

import pytest

from ms_recover.errors import InputError, MissingInputError, MsRecoverError, UnrecoverableError, UsageError
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training import SliceCheckpoint, recover_train  # noqa: E402
from ms_recover.training.found_slice import find_slice  # noqa: E402
from ms_recover.training.held_directories import Held  # noqa: E402
from ms_recover.training.resume_options import ResumeOptions  # noqa: E402
from ms_recover.training.search import step_in_name, step_of  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402
from tests.support.small_training import STEPS, Losses, behind, make_dataset, make_model  # noqa: E402

SAVED = tuple(Step(epoch, 8) for epoch in (1, 2, 3))


@pytest.mark.parametrize("value", ["2_77", (2, 77), Step(2, 77)])
def test_a_step_has_several_names(value):
    assert step_of(value) == Step(2, 77)
    assert step_of(None) is None


@pytest.mark.parametrize("value", ["2_", "last", (2,), (2, -1), ("2", 77), 7.0, True])
def test_what_is_no_step_is_refused(value):
    with pytest.raises(UsageError, match=r"step"):
        step_of(value)


@pytest.mark.parametrize(
    "path", ["ckpt_dir0/test-2_77.ckpt", "/a/ckpt_dir{rank}/test_1-2_77.safetensors", "test-2_77.ckpt.superseded"]
)
def test_the_name_of_a_slice_has_its_step(path):
    assert step_in_name(path) == Step(2, 77)


@pytest.mark.parametrize("path", ["", "model.ckpt", "test-2_77.ckpt.manifest.json", "group_info.pb", 7])
def test_other_files_are_refused(path):
    with pytest.raises(UsageError, match="ckpt_file"):
        step_in_name(path)


def look(root, step=None, ckpt_file=None, ranks=2, **judging):
    options = ResumeOptions.of({"root": root, "step": step, "ckpt_file": ckpt_file, "fresh": "start", **judging}, {})
    jobs = thread_jobs(ranks)
    with ExitStack() as ends:
        held = [ends.enter_context(Held()) for _ in jobs]
        return on_all(ranks, lambda rank: find_slice(jobs[rank], options.search(ranks), held[rank]))


@pytest.fixture
def tree(tmp_path):
    root = make_tree(tmp_path / "tree", steps=SAVED, data_parallel=2, model_parallel=1)
    save_manifests(root)
    return root


def test_the_chosen_step_is_taken_and_recovered_like_the_newest(tree):
    (lost,) = (tree / "ckpt_dir1").glob("*-2_8.ckpt")
    lost.unlink()
    found = look(tree, "2_8")
    assert [one.own.step for one in found] == [Step(2, 8)] * 2
    assert [one.source_rank for one in found] == [None, 0]
    assert lost.exists()


@pytest.mark.parametrize("named", ["ckpt_dir{rank}", "ckpt_dir1"])
def test_a_slice_of_one_rank_chooses_the_step_of_all(tree, named):
    (path,) = (tree / "ckpt_dir0").glob("*-1_8.ckpt")
    found = look(tree, None, tree / named / path.name)
    assert [one.own.step for one in found] == [Step(1, 8)] * 2


def test_a_chosen_step_that_cannot_be_had_is_an_error_and_no_other_is_taken(tree):
    for path in tree.rglob("*-2_8.ckpt"):
        path.unlink()
    for error in look(tree, "2_8"):
        assert isinstance(error, UnrecoverableError), error
    for error in look(tree, "7_8"):
        assert isinstance(error, UnrecoverableError)
        assert "step 7_8: there is no slice of it" in str(error)
        assert "step 3_8, 1_8: step 7_8 was chosen" in str(error)


def test_a_fresh_start_takes_the_place_of_no_chosen_step(tmp_path):
    for error in look(tmp_path, "2_8"):
        assert isinstance(error, MissingInputError)


def test_a_file_that_nobody_sees_is_an_error(tree):
    for error in look(tree, None, tree / "ckpt_dir0" / "test-9_9.ckpt"):
        assert isinstance(error, MissingInputError)
        assert "no rank sees this file" in str(error)


def train(folder, epochs=3):
    losses = Losses()
    saver = SliceCheckpoint(f"{folder}/ckpt_dir{{rank}}", prefix="t", keep=9)
    make_model().train(epochs, make_dataset(), callbacks=[saver, losses])
    return losses.seen


def test_training_goes_on_from_the_chosen_step_to_the_last_bit_and_sets_newer_slices_aside(tmp_path):
    whole = train(tmp_path)
    again = Losses()
    saver = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", prefix="t", keep=9)
    resumed = recover_train(make_model(), make_dataset(), tmp_path, 3, [saver, again], step=f"1_{STEPS}")
    assert resumed.step == Step(1, STEPS)
    assert again.seen == behind(whole, 1, STEPS)
    names = os.listdir(tmp_path / "ckpt_dir0")
    assert {f"t-2_{STEPS}.ckpt.superseded", f"t-3_{STEPS}.ckpt.superseded", f"t_1-3_{STEPS}.ckpt"} <= set(names)
    # a slice that was set aside is chosen again, by its file: its run comes back, the later one is set aside
    third = Losses()
    path = tmp_path / "ckpt_dir{rank}" / f"t-2_{STEPS}.ckpt.superseded"
    resumed = recover_train(make_model(), make_dataset(), tmp_path, 3, [third], ckpt_file=path)
    assert resumed.step == Step(2, STEPS)
    assert third.seen == behind(whole, 2, STEPS)
    assert f"t_1-3_{STEPS}.ckpt.superseded" in os.listdir(tmp_path / "ckpt_dir0")


def test_more_epochs_are_counted_behind_the_slice(tmp_path):
    train(tmp_path, epochs=1)
    losses = Losses()
    resumed = recover_train(make_model(), make_dataset(), tmp_path, callbacks=[losses], more_epochs=2)
    assert (resumed.trained, resumed.epochs) == (True, 3)
    assert sorted({epoch for epoch, _ in losses.seen}) == [2, 3]
    for numbers in ({}, {"epochs": 3, "more_epochs": 2}, {"more_epochs": 0}):
        with pytest.raises(UsageError, match="epochs"):
            recover_train(make_model(), make_dataset(), tmp_path, **numbers)


def test_a_damaged_chosen_slice_is_refused_where_nobody_else_has_it(tmp_path):
    train(tmp_path)
    path = tmp_path / "ckpt_dir0" / f"t-2_{STEPS}.ckpt"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(MsRecoverError, match=f"2_{STEPS}") as caught:
        recover_train(make_model(), make_dataset(), tmp_path, 3, ckpt_file=path)
    assert not isinstance(caught.value, InputError)
