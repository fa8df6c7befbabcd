"""One rank, saved and resumed in one process: exactness, and what is refused."""

import logging
import os
import shutil
import time

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import InputError, MissingInputError, UnrecoverableError, UsageError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint  # noqa: E402

from ms_recover.training import SliceCheckpoint, obtained, recover_train, slice_saver  # noqa: E402

STEPS, EPOCHS = 8, 4


class Rows:
    def __init__(self):
        rng = np.random.default_rng(5)
        self._x, self._y = rng.random((4 * STEPS, 3), np.float32), rng.random((4 * STEPS, 2), np.float32)

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


def make_dataset(batch=4):
    ds.config.set_seed(11)
    return ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=True).batch(batch, drop_remainder=True)


def make_model(optimizer=nn.Adam):
    rng = np.random.default_rng(3)
    weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((16, 3), (2, 16))]
    dense = nn.SequentialCell(nn.Dense(3, 16, weights[0], "zeros"), nn.Tanh(), nn.Dense(16, 2, weights[1], "zeros"))
    return Model(dense, nn.MSELoss(), optimizer(dense.trainable_params(), 0.01))


class Losses(Callback):
    """Losses to the last bit, by epoch, step and cumulative step."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.seen = {}
        self._stop_at = stop_at

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        step = (params.cur_step_num - 1) % params.batch_num + 1
        self.seen[params.cur_epoch_num, step, params.cur_step_num] = params.net_outputs.asnumpy().tobytes()
        if params.cur_step_num == self._stop_at:
            run_context.request_stop()


def checkpoint(root, save_steps, keep=20, **options):
    return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", "test", save_steps, keep, **options)


def saved(root):
    return sorted(path.name for path in (root / "ckpt_dir0").glob("*.ckpt"))


def manifests(root):
    found = [read_manifest(path) for path in (root / "ckpt_dir0").glob(f"*.ckpt{MANIFEST_SUFFIX}")]
    return {manifest.file: manifest for manifest in found}


def sound(root):
    """Whether every slice is what its manifest says."""
    checks = api.verify(api.scan(root)).checks
    return checks and all((check.status, check.evidence) == ("sound", "manifest") for check in checks)


def flip(path):
    """Change one bit of the contents; size and time of modification stay."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def train(root, save_steps, stop_at=None):
    losses = Losses(stop_at)
    make_model().train(EPOCHS, make_dataset(), callbacks=[losses, checkpoint(root, save_steps)])
    return losses.seen


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, mode):
    """A run that was never interrupted, with a slice every three steps: most of them in the middle of an epoch."""
    root = tmp_path_factory.mktemp("whole")
    return root, train(root, 3)


def test_slices_have_the_names_of_model_checkpoint(whole):
    names = saved(whole[0])
    cumulative = [*range(3, EPOCHS * STEPS + 1, 3), EPOCHS * STEPS]
    assert names == sorted(f"test-{(done - 1) // STEPS + 1}_{(done - 1) % STEPS + 1}.ckpt" for done in cumulative)


@pytest.mark.parametrize("async_save", [False, True])
def test_slices_have_the_names_and_bytes_of_model_checkpoint(tmp_path, async_save):
    config = CheckpointConfig(save_checkpoint_steps=3, keep_checkpoint_max=20, integrated_save=False)
    theirs = ModelCheckpoint("test", str(tmp_path / "theirs"), config)
    callbacks = [theirs, checkpoint(tmp_path, 3, async_save=async_save)]
    make_model().train(EPOCHS, make_dataset(), callbacks=callbacks)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "theirs").glob("*.ckpt")}
    assert len(expected) == 11
    assert {path.name: path.read_bytes() for path in (tmp_path / "ckpt_dir0").glob("*.ckpt")} == expected
    modes = {path.stat().st_mode for folder in ("theirs", "ckpt_dir0") for path in (tmp_path / folder).glob("*.ckpt")}
    assert len(modes) == 1
    assert (tmp_path / "theirs").stat().st_mode == (tmp_path / "ckpt_dir0").stat().st_mode


def test_every_slice_is_committed_with_its_manifest(whole):
    root, _ = whole
    found = manifests(root)
    assert sorted(found) == saved(root)
    assert len({manifest.run_id for manifest in found.values()}) == 1
    for manifest in found.values():
        assert manifest.cumulative_step == (manifest.step.epoch - 1) * STEPS + manifest.step.step
        assert {parameter.name for parameter in manifest.parameters} >= {"0.weight", "moment1.0.weight", "global_step"}
    assert sound(root)
    assert {path.suffix for path in (root / "ckpt_dir0").iterdir()} == {".ckpt", ".json", ".pb", ".state"}


@pytest.mark.parametrize("stop_at", [3, 9, 16, 24, 30])
def test_goes_on_to_the_last_bit(whole, tmp_path, stop_at):
    """In the middle of an epoch, at its end, and one step before the end of the training."""
    root, losses = whole
    train(tmp_path, 3, stop_at)
    resumed_losses = Losses()
    model = make_model()
    resumed = recover_train(model, make_dataset(), tmp_path, EPOCHS, [resumed_losses, checkpoint(tmp_path, 3)])
    assert (resumed.step.epoch - 1) * STEPS + resumed.step.step == stop_at
    assert resumed_losses.seen == {key: loss for key, loss in losses.items() if key[2] > stop_at}
    last = f"{EPOCHS}_{STEPS}.ckpt"
    assert (tmp_path / "ckpt_dir0" / f"test_1-{last}").read_bytes() == (
        root / "ckpt_dir0" / f"test-{last}"
    ).read_bytes()
    whole_names = {name.removeprefix("test-") for name in saved(root)}
    names = {name.removeprefix("test-") for name in saved(tmp_path)}
    assert {name for name in names if not name.startswith("test_1")} <= whole_names | {f"{resumed.step}.ckpt"}
    assert {name.removeprefix("test_1-") for name in names if name.startswith("test_1")} <= whole_names
    found = manifests(tmp_path)
    assert found.keys() == set(saved(tmp_path))
    assert all(entry.cumulative_step == (entry.step.epoch - 1) * STEPS + entry.step.step for entry in found.values())
    assert len({entry.run_id for entry in found.values()}) == 2
    assert sound(tmp_path)


class PowerFailureError(Exception):
    pass


class Fail(Callback):
    def __init__(self, at):
        super().__init__()
        self._at = at

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self._at:
            raise PowerFailureError


@pytest.mark.parametrize(
    ("optimizer", "async_save", "form"),
    [(nn.Adam, False, "ckpt"), (nn.SGD, True, "safetensors")],
    ids=["sync ckpt", "async safetensors"],
)
def test_a_retry_with_the_model_that_has_run(tmp_path, monkeypatch, optimizer, async_save, form):
    """What MindSpore compiled for the optimizer goes on with the loaded values; a write in flight ends before."""
    committed = slice_saver.commit_staged

    def slowly(staged, training):
        time.sleep(0.3 if str(staged.order.step) == "2_1" else 0)
        return committed(staged, training)

    expected = Losses()
    whole = make_model(optimizer)
    whole.train(EPOCHS, make_dataset(), callbacks=[expected])
    monkeypatch.setattr(slice_saver, "commit_staged", slowly)
    model, dataset, losses = make_model(optimizer), make_dataset(), Losses()
    saver = checkpoint(tmp_path, 3, async_save=async_save, format=form)
    with pytest.raises(PowerFailureError):
        model.train(EPOCHS, dataset, callbacks=[losses, saver, Fail(10)])
    assert recover_train(model, dataset, tmp_path, EPOCHS, [losses, saver]).step == Step(2, 1)
    assert losses.seen == expected.seen
    for one, other in zip(whole.train_network.get_parameters(), model.train_network.get_parameters(), strict=True):
        assert one.asnumpy().tobytes() == other.asnumpy().tobytes(), one.name


def test_rotation_keeps_what_is_asked(tmp_path):
    make_model().train(EPOCHS, make_dataset(), callbacks=[checkpoint(tmp_path, None, keep=2)])
    assert saved(tmp_path) == ["test-3_8.ckpt", "test-4_8.ckpt"]


def test_nothing_left_to_train(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    losses = Losses()
    resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, losses)
    assert not resumed.trained
    assert str(resumed.step) == "4_8"
    assert losses.seen == {}


def test_newer_damaged_slices_are_passed_over_and_set_aside(whole, tmp_path, caplog):
    root, losses = whole
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    for name in ("test-4_8.ckpt", "test-4_6.ckpt"):
        path = tmp_path / "ckpt_dir0" / name
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[:-3])
    resumed_losses = Losses()
    resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, [resumed_losses, checkpoint(tmp_path, 3)])
    assert str(resumed.step) == "4_3"
    for step in ("4_8", "4_6"):
        assert f"rank 0: step {step} is given up for step 4_3: ckpt_dir0/test-{step}.ckpt: " in caplog.text
    assert resumed_losses.seen == {key: loss for key, loss in losses.items() if key[2] > 27}
    aside = sorted(path.name for path in (tmp_path / "ckpt_dir0").glob("*.superseded*"))
    names = ["test-4_6.ckpt.superseded", "test-4_8.ckpt.superseded"]
    assert aside == sorted([*names, *(name + end for name in names for end in (MANIFEST_SUFFIX, STATE_SUFFIX))])
    again = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS)
    assert str(again.step) == "4_8"


def test_refuses_a_slice_of_another_optimizer_and_trains_nothing(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    losses = Losses()
    with pytest.raises(InputError, match=r"rank 0, step 4_8, .*lacks parameters? .*stat\."):
        recover_train(make_model(nn.SGD), make_dataset(), tmp_path, EPOCHS + 1, losses)
    assert losses.seen == {}


def test_refuses_a_dataset_of_another_size(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"step 4_8, .* an epoch of this dataset has 4 steps"):
        recover_train(make_model(), make_dataset(batch=8), tmp_path, EPOCHS + 1)


def test_without_any_slice(tmp_path):
    with pytest.raises(MissingInputError, match=r"no rank has a slice .*fresh='start'"):
        recover_train(make_model(), make_dataset(), tmp_path, EPOCHS)
    losses = Losses()
    resumed = recover_train(make_model(), make_dataset(), tmp_path, 1, losses, fresh="start")
    assert resumed.trained
    assert resumed.step is None
    assert len(losses.seen) == STEPS


def test_damaged_slices_are_no_reason_to_start_afresh(tmp_path):
    (tmp_path / "ckpt_dir0").mkdir()
    (tmp_path / "ckpt_dir0" / "test-1_8.ckpt").write_bytes(b"garbage")
    with pytest.raises(UnrecoverableError, match=r"rank 0 lacks step 1_8: .*test-1_8.ckpt"):
        recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, fresh="start")


@pytest.mark.parametrize("arguments", [{"epochs": 0}, {"epochs": 2, "fresh": "maybe"}])
def test_invalid_arguments_are_refused_and_do_not_break_the_world(tmp_path, arguments):
    with pytest.raises(UsageError, match="must be"):
        recover_train(make_model(), make_dataset(), tmp_path, **arguments)


def test_a_slice_whose_contents_changed_is_not_resumed_from(whole, tmp_path, caplog):
    """MindSpore would load it without a word."""
    root, losses = whole
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    flip(tmp_path / "ckpt_dir0" / "test-4_8.ckpt")
    flip(tmp_path / "ckpt_dir0" / "test-4_6.ckpt")
    resumed_losses = Losses()
    resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, resumed_losses)
    assert str(resumed.step) == "4_3"
    for step in ("4_8", "4_6"):
        assert f"rank 0: step {step} is given up for step 4_3: ckpt_dir0/test-{step}.ckpt: " in caplog.text
    assert resumed_losses.seen == {key: loss for key, loss in losses.items() if key[2] > 27}
    assert "test-4_8.ckpt: its contents are not those of its manifest" in caplog.text


def test_what_the_network_holds_is_proven_before_the_first_step(whole, tmp_path, monkeypatch, caplog):
    root, _ = whole
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    caplog.set_level(logging.INFO)
    load = obtained.load_into_network

    def altered(network, *arguments, **options):
        load(network, *arguments, **options)
        for parameter in network.get_parameters():
            if parameter.name in ("0.weight", "moment2.2.bias"):
                parameter.asnumpy().reshape(-1).view(np.uint32)[1] ^= 1

    resumed_losses = Losses()
    with monkeypatch.context() as patch:
        patch.setattr(obtained, "load_into_network", altered)
        with pytest.raises(VerificationError, match=r"rank 0, step 4_8, .* parameters 0.weight, moment2.2.bias differ"):
            recover_train(make_model(), make_dataset(), tmp_path, EPOCHS + 1, resumed_losses)
    assert resumed_losses.seen == {}
    assert saved(tmp_path) == saved(root)
    recover_train(make_model(), make_dataset(), tmp_path, EPOCHS + 1, resumed_losses)
    assert len(resumed_losses.seen) == STEPS
    assert "parameters of the network have the digests of the manifest" in caplog.text


def test_without_a_manifest_the_log_says_what_it_rests_on(whole, tmp_path, caplog):
    root, _ = whole
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "ckpt_dir0").glob(f"*{MANIFEST_SUFFIX}"):
        path.unlink()
    resumed_losses = Losses()
    resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS + 1, resumed_losses)
    assert str(resumed.step) == "4_8"
    assert len(resumed_losses.seen) == STEPS
    assert "it has no manifest, so the loaded values rest on the structure of the slice only" in caplog.text


def test_what_a_killed_save_left_is_no_obstacle(whole, tmp_path):
    root, losses = whole
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "ckpt_dir0"
    (folder / ".saving.ms_recover.tmp").mkdir()
    (folder / ".saving.ms_recover.tmp" / "test-4_8.tmp").write_bytes(b"cut off")
    for name in (f"test-4_8.ckpt{MANIFEST_SUFFIX}", f"test-4_8.ckpt{STATE_SUFFIX}", "test-4_8.ckpt"):
        (folder / name).unlink()
    resumed_losses = Losses()
    callbacks = [resumed_losses, checkpoint(tmp_path, 1, async_save=True)]
    resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, callbacks)
    assert str(resumed.step) == "4_6"
    assert resumed_losses.seen == {key: loss for key, loss in losses.items() if key[2] > 30}
    assert (folder / "test_1-4_8.ckpt").read_bytes() == (root / "ckpt_dir0" / "test-4_8.ckpt").read_bytes()
    assert api.scan(tmp_path).notes == ()
