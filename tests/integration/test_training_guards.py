"""Mistakes around a resume: each ends with its reason before a step is trained, and harms nothing."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ms_recover.errors import InputError, UsageError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402
from mindspore.train import Model  # noqa: E402

from ms_recover.training import SliceSaver, recover_train, resume  # noqa: E402
from tests.support import trainings  # noqa: E402
from tests.support.sample import REPOSITORY  # noqa: E402
from tests.support.trainings import (  # noqa: E402
    EPOCHS,
    STEPS,
    Losses,
    StoppedError,
    checkpoint,
    files,
    make_dataset,
    make_model,
    values,
)
from tests.support.unprivileged import reachable_folder  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that was never interrupted."""
    root = tmp_path_factory.mktemp("whole")
    model, losses = make_model(), Losses()
    model.train(EPOCHS, make_dataset(), callbacks=[losses, checkpoint(root)])
    return root, losses.seen, values(model)


@pytest.fixture
def tree(whole, tmp_path):
    return shutil.copytree(whole[0], tmp_path / "tree")


@pytest.mark.parametrize(
    "options",
    [
        {"group_info": ["nowhere/{rank}.pb"]},
        {"strategy": ["nowhere.ckpt"]},
        {"pattern": "rank{rank}/{prefix}-{epoch}_{step}.ckpt"},
    ],
)
def test_a_fresh_start_does_not_train_over_slices(tree, options):
    before, losses = files(tree), Losses()
    with pytest.raises(InputError, match=r"rank 0: .*test-\d_\d.ckpt.*fresh='start' trains over no slices"):
        recover_train(make_model(), make_dataset(), tree, EPOCHS, [losses, checkpoint(tree)], fresh="start", **options)
    assert (losses.seen, files(tree)) == ({}, before)


def test_slices_in_a_folder_of_another_name_are_no_empty_tree(tree, tmp_path):
    (tree / "ckpt_dir0").rename(tree / "of this rank")
    before = files(tree)
    with pytest.raises(InputError, match="of this rank/test-"):
        recover_train(make_model(), make_dataset(), tree, EPOCHS, [checkpoint(tree)], fresh="start")
    assert files(tree) == before
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="nowhere is not a directory"):
        resume(make_model().train_network, tmp_path / "link", fresh="start")


def test_slices_of_which_only_manifests_are_left_are_no_empty_tree(tree):
    for path in (tree / "ckpt_dir0").glob("*.ckpt"):
        path.unlink()
    with pytest.raises(InputError, match=r"holds manifests of slices that are gone, .*test-1_3.ckpt"):
        recover_train(make_model(), make_dataset(), tree, EPOCHS, [checkpoint(tree)], fresh="start")


def test_a_fresh_start_where_nothing_lies(tmp_path):
    root = tmp_path / "new"
    (root / "ckpt_dir0").mkdir(parents=True)
    (root / "pretrained.ckpt").write_bytes(b"of another program")
    for top in (root, root / "not there"):
        losses = Losses()
        resumed = recover_train(
            make_model(), make_dataset(), top, 1, losses, group_info=["nowhere/{rank}.pb"], fresh="start"
        )
        assert (resumed.step, len(losses.seen)) == (None, STEPS)


def test_a_start_with_another_number_of_ranks_changes_nothing(tree, monkeypatch):
    before = files(tree)
    for rank in range(4):
        monkeypatch.setenv("RANK_ID", str(rank))
        monkeypatch.setenv("RANK_SIZE", "4")
        with pytest.raises(UsageError, match=r"mindspore.communication.init\(\)"):
            recover_train(make_model(), make_dataset(), tree, EPOCHS, [checkpoint(tree, group=range(4))])
    assert files(tree) == before
    assert [path.name for path in tree.iterdir()] == ["ckpt_dir0"]


class Odd(nn.Cell):
    """A network with one more parameter."""

    def __init__(self, name, dtype):
        super().__init__()
        self.dense = nn.Dense(3, 2)
        self.odd = ms.Parameter(ms.Tensor(np.zeros(2, dtype)), name=name, requires_grad=False)

    def construct(self, x):
        return self.dense(x)


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [
        ("phase", np.complex64, "parameter phase is of type Complex64, which MindSpore cannot load"),
        ("a.__param_key__3", np.float32, "a.__param_key__3' has a name that means something else"),
        ("format", np.float32, "'format' has a name that means something else"),
    ],
)
def test_what_could_be_saved_and_never_loaded_is_refused_before_the_first_step(tmp_path, form, name, dtype, said):
    if (name, form) == ("format", "ckpt"):
        pytest.skip("such a slice can be loaded")
    network, losses = Odd(name, dtype), Losses()
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(UsageError, match=said):
        model.train(1, make_dataset(), callbacks=[losses, checkpoint(tmp_path, format=form)])
    with pytest.raises(UsageError, match=said):
        SliceSaver(network, str(tmp_path / "loop"), format=form)
    assert (losses.seen, list(tmp_path.iterdir())) == ({}, [])


def test_after_an_error_the_same_dataset_and_program_go_on(whole, tmp_path):
    _, expected, last = whole
    dataset, model = make_dataset(), make_model()
    with pytest.raises(StoppedError):
        model.train(EPOCHS, dataset, callbacks=[checkpoint(tmp_path), Losses(stop_at=7)])
    for stop_at in (13, None):
        model, losses = make_model(), Losses(stop_at)
        dataset.__dict__.pop("__model_hash__", None)  # MindSpore ties a dataset to a model
        try:
            recover_train(model, dataset, tmp_path, EPOCHS, [checkpoint(tmp_path), losses])
        except StoppedError:
            assert dataset.get_init_step() == 0
        else:
            assert stop_at is None
    assert losses.seen == {step: loss for step, loss in expected.items() if step > 12}
    assert values(model) == last


def test_a_slice_that_does_not_fit_leaves_the_dataset_as_it_was(tree):
    dataset = make_dataset()
    dataset.set_init_step(5)
    network = nn.Dense(3, 2)
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(InputError, match="lacks"):
        recover_train(model, dataset, tree, EPOCHS + 1)
    assert dataset.get_init_step() == 5


def test_when_all_epochs_are_done_the_weights_are_loaded(whole, tree):
    model, losses, before = make_model(seed=9), Losses(), files(tree)
    resumed = recover_train(model, make_dataset(), tree, EPOCHS, [losses, checkpoint(tree)])
    assert (str(resumed.step), resumed.trained, losses.seen) == ("3_8", False, {})
    assert values(model) == whole[2]
    assert files(tree) == before


@pytest.mark.parametrize(("epochs", "level"), [(EPOCHS, "INFO"), (EPOCHS - 1, "WARNING")])
def test_a_training_that_is_done_as_asked_is_no_warning_and_one_printed_line(tree, caplog, capfd, epochs, level):
    """A script with two trainings is started again behind the first of them; one that asks for less is warned."""
    caplog.set_level("INFO", "ms_recover")
    assert not recover_train(make_model(seed=9), make_dataset(), tree, epochs, [checkpoint(tree)]).trained
    told = [one for one in caplog.records if "nothing is left to train" in one.getMessage()]
    assert [one.levelname for one in told] == [level]
    assert {one.levelname for one in caplog.records} == {"INFO", level}
    printed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ms_recover: ")]
    path = tree / "ckpt_dir0/test-3_8.ckpt"
    line = f"step 3_8 is loaded, and nothing is left to train: all {epochs} epochs are done ({path})"
    assert printed == [f"ms_recover: {line}"]


def test_what_the_network_lacks_is_named(tree, caplog, capfd):
    network = trainings.make_network()
    network[0].weight.requires_grad = False
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
    recover_train(model, make_dataset(), tree, EPOCHS + 1)
    (record,) = [record for record in caplog.records if "the network has no" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "rank 0, step 3_8" in record.getMessage()
    assert "parameters moment1.0.weight, moment2.0.weight, so what the slice holds" in record.getMessage()
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover: resumed from")]
    assert "optimizer not proven: the network has no parameters moment1.0.weight, moment2.0.weight" in line


def test_the_home_directory(whole, tree, monkeypatch):
    monkeypatch.setenv("HOME", str(tree.parent))
    assert str(resume(make_model().train_network, "~/tree").step) == "3_8"


UNPRIVILEGED = """
import json, os, pathlib, sys
import mindspore as ms
from ms_recover.errors import MsRecoverError
from ms_recover.training import recover_train
from tests.support.trainings import *

root = pathlib.Path(sys.argv[1])
outcomes = {}

def attempt(name, work):
    try:
        outcomes[name] = work()
    except MsRecoverError as error:
        outcomes[name] = f"{type(error).__name__}: {error}"

def train(tree, epochs, **options):
    losses = Losses()
    recover_train(make_model(), make_dataset(), tree, epochs, losses, **options)
    return sorted(losses.seen)

train_once = make_model().train(1, make_dataset())
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
attempt("resumed", lambda: train(root / "read only", EPOCHS + 1))
attempt("newer", lambda: train(root / "newer", EPOCHS))
attempt("denied", lambda: train(root / "denied", 1, fresh="start"))
attempt("closed", lambda: train(root / "closed", 1, fresh="start"))
attempt("saving", lambda: checkpoint(root / "read only") and "made")
print(json.dumps(outcomes))
"""


def test_trees_that_cannot_be_written_or_read(whole):
    """As a user without rights, also where the tests run as root."""
    with reachable_folder() as top:
        for tree in ("read only", "newer", "denied", "closed"):
            shutil.copytree(whole[0], top / tree)
        damaged = top / "newer" / "ckpt_dir0" / "test-3_8.ckpt"
        damaged.unlink()
        damaged.write_bytes(b"cut off")
        for path in (top, *top.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (top / "denied" / "ckpt_dir0").chmod(0)
        (top / "closed").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(top)],
            cwd=REPOSITORY,
            env={**os.environ, "GLOG_v": "3"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        for path in (top / "closed", top / "denied" / "ckpt_dir0", *top.rglob("*")):
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes["resumed"] == list(range(EPOCHS * STEPS + 1, (EPOCHS + 1) * STEPS + 1))
    before = "3_5"  # the newest step that is whole, where nothing can be set aside
    assert outcomes["newer"] == list(range(2 * STEPS + int(before[2:]) + 1, EPOCHS * STEPS + 1))
    assert "permission denied" in outcomes["denied"]
    assert "permission denied" in outcomes["closed"]
    assert "choose another directory" in outcomes["saving"]
