"""Options of training, and what cannot be trained."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting import stages  # noqa: E402
from ms_recover.splitting.options import Options  # noqa: E402
from ms_recover.splitting.training.options import check_trainable, training_options  # noqa: E402
from ms_recover.splitting.training.step_loss import StepLoss  # noqa: E402


def options(**given):
    return training_options(Options(num_devices=1, split="layers", **{"loss_fn": abs, "optimizer": abs, **given}))


def test_nothing_given_trains_nothing():
    assert options(loss_fn=None, optimizer=None) is None


def test_saves_need_a_directory_that_stays(tmp_path):
    with pytest.raises(UsageError, match="save_steps needs a directory"):
        options(save_steps=3)
    assert options(save_steps=3, directory=tmp_path).save_steps == 3


def test_a_clip_without_a_training_is_refused():
    with pytest.raises(UsageError, match="give loss_fn and optimizer"):
        options(loss_fn=None, optimizer=None, clip_norm=1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss_fn": None}, "training needs loss_fn too"),
        ({"optimizer": None}, "training needs optimizer too"),
        ({"loss_fn": 3}, "invalid loss_fn 3"),
        ({"optimizer": "adam"}, "invalid optimizer 'adam'"),
        ({"snapshot_steps": 0}, "invalid snapshot_steps 0"),
        ({"snapshot_steps": True}, "invalid snapshot_steps True"),
        ({"recompute": 1}, "invalid recompute 1"),
        *(({"clip_norm": wrong}, "invalid clip_norm") for wrong in (0, -1.0, 1e-60, np.inf, np.nan, True, "1")),
        ({"loss_fn": nn.MSELoss(reduction="none")}, "reduction 'none'"),
    ],
)
def test_invalid_options_are_refused(given, words):
    with pytest.raises(UsageError, match=words):
        options(**given)


def test_an_optimizer_that_is_already_made_is_refused():
    with pytest.raises(UsageError, match="a function that makes one"):
        options(optimizer=nn.Momentum(nn.Dense(2, 2).trainable_params(), 0.1, 0.9))


@pytest.mark.parametrize(
    ("loss", "reduction"), [(nn.CrossEntropyLoss(), "mean"), (nn.MSELoss("sum"), "sum"), (abs, "mean")]
)
def test_the_reduction_is_that_of_the_loss(loss, reduction):
    assert options(loss_fn=loss).reduction == reduction


def test_means_over_anything_but_rows_are_refused():
    weighted = nn.CrossEntropyLoss(weight=ms.Tensor(np.ones(3, np.float32)))
    with pytest.raises(UsageError, match="class weights"):
        options(loss_fn=weighted)
    made = options(loss_fn=nn.CrossEntropyLoss(ignore_index=2))
    made.check_targets([np.array([0, 1], np.int32), np.array([2.0])])
    with pytest.raises(UsageError, match="targets 2, which CrossEntropyLoss leaves out"):
        made.check_targets([np.array([0, 2], np.int32)])
    options(loss_fn=nn.CrossEntropyLoss(ignore_index=2, reduction="sum")).check_targets([np.array([2], np.int32)])


def given(split, num_devices, remote=0):
    return Options(num_devices=num_devices, split=split, remote=remote)


def parts_of(*cells):
    model = nn.SequentialCell(*cells)
    model.set_train(False)
    return [[stage] for stage in stages.stages_of(model)]


def test_a_weight_of_two_parts_is_refused():
    dense = nn.Dense(2, 2)
    with pytest.raises(UsageError, match="weight is used by parts 0 and 2"):
        check_trainable(parts_of(dense, nn.ReLU(), dense), given("layers", 3))


def test_what_has_no_weights_and_what_is_elsewhere_is_refused():
    with pytest.raises(UsageError, match="no weights to train"):
        check_trainable(parts_of(nn.ReLU()), given("layers", 1))
    with pytest.raises(UsageError, match="other hosts"):
        check_trainable(parts_of(nn.Dense(2, 2)), given("batch", 2, remote=1))
    with pytest.raises(UsageError, match="2 devices for 1 stages"):
        check_trainable(parts_of(nn.Dense(2, 2)), given("layers", 2))
    check_trainable(parts_of(nn.Dense(2, 2)), given("batch", 2))


def test_a_loss_is_a_number_with_its_rows():
    loss = StepLoss(0.5, rows=3, total=4, step=7)
    assert (loss, loss.rows, loss.total, loss.step, loss.item(), float(loss.asnumpy())) == (0.5, 3, 4, 7, 0.5, 0.5)
    assert f"{loss:.2f}" == "0.50"
