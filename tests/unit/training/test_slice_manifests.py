"""`SliceManifests` beside MindSpore's own callback in real trainings, and beside records as MindFormers makes them."""

import contextlib
import os
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError, StorageError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

pytestmark = [pytest.mark.mindspore, pytest.mark.filterwarnings("ignore:getName:DeprecationWarning")]  # MindSpore's
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint  # noqa: E402

from ms_recover.training import SliceManifests, cut  # noqa: E402
from ms_recover.training.foreign_saves import is_saving  # noqa: E402
from ms_recover.training.host import this_host  # noqa: E402
from tests.support.trainings import files  # noqa: E402


def train(tmp_path, manifests, epochs=1, behind=True, callbacks=(), saver=None, **options):
    """Train a small network for some epochs of four steps; `manifests` stands behind the saver, or before it."""
    config = CheckpointConfig(**{"save_checkpoint_steps": 2, "keep_checkpoint_max": 2, **options})
    saver = saver or ModelCheckpoint("net", str(tmp_path / "rank_0"), config)
    network = nn.Dense(3, 2)
    rows = [(np.ones(3, np.float32), np.ones(2, np.float32))] * 8
    data = ms.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(2)
    model = Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.1, 0.9))
    both = [saver, manifests] if behind else [manifests, saver]
    model.train(epochs, data, callbacks=[*both, *callbacks], dataset_sink_mode=False)
    return saver


@pytest.mark.parametrize("prefix", ["test", "other"])
def test_a_training_does_not_begin_over_slices_of_another_number_of_ranks(tmp_path, prefix):
    make_tree(tmp_path, data_parallel=2, model_parallel=1, steps=(Step(1, 4),))
    save_manifests(tmp_path)
    before = files(tmp_path)
    saver = ModelCheckpoint(prefix, str(tmp_path / "ckpt_dir0"), CheckpointConfig(2, keep_checkpoint_max=20))
    if prefix == "other":
        train(tmp_path, SliceManifests(), saver=saver)
        assert files(tmp_path).items() >= {one for one in before.items() if "test-" in one[0]}
        return
    with pytest.raises(UsageError, match=r"slices of a job of 2 rank\(s\), the newest of step 1_4 .* this job has 1"):
        train(tmp_path, SliceManifests(), saver=saver)
    assert files(tmp_path) == before


def sealed(folder):
    """The steps whose slice and manifest are there; there is no manifest without a slice."""
    found = [read_manifest(path) for path in folder.glob(f"*{MANIFEST_SUFFIX}")]
    names = {path.name for path in folder.iterdir() if path.suffix in (".ckpt", ".safetensors")}
    assert {one.file for one in found} == names
    return sorted(str(one.step) for one in found)


@pytest.mark.parametrize(
    ("options", "behind"),
    [
        ({}, True),
        ({}, False),
        ({"async_save": True}, True),
        ({"async_save": True}, False),
        ({"async_save": "process"}, True),
        ({"format": "safetensors"}, False),
        ({"crc_check": True}, True),
    ],
    ids=str,
)
def test_beside_the_callback_of_mindspore(tmp_path, options, behind):
    """Five saves, of which MindSpore keeps two; the last is made at the very end."""
    manifests = SliceManifests()
    train(tmp_path, manifests, epochs=2, behind=behind, save_checkpoint_steps=3, **options)
    folder = tmp_path / "rank_0"
    assert sealed(folder) == ["2_2", "2_4"]
    assert read_group_info(str(folder / "group_info.pb")).restore_ranks == (0,)
    one = read_manifest(next(folder.glob(f"*2_4.*{MANIFEST_SUFFIX}")))
    assert (one.step, one.cumulative_step, one.rank, one.world_size) == (Step(2, 4), 8, 0, 1)
    assert (one.run_id, one.group, one.provenance.kind) == (manifests.run_id, (0,), "saved")
    assert one.training.host == socket.gethostname()
    assert len(one.run_id) == 32
    found = api.verify(api.scan(tmp_path))
    assert {(check.status, check.evidence) for check in found.checks} == {("sound", "manifest")}
    assert not any(thread.name == "slice-manifests" for thread in threading.enumerate())


def test_a_second_training_over_the_same_names(tmp_path):
    """MindSpore replaces the slices; their manifests follow."""
    manifests = SliceManifests()
    saver = train(tmp_path, manifests)
    run = manifests.run_id
    saver._last_triggered_step = 0
    train(tmp_path, manifests, saver=saver)
    folder = tmp_path / "rank_0"
    assert sealed(folder) == ["1_2", "1_4"]
    assert {read_manifest(path).run_id for path in folder.glob(f"*{MANIFEST_SUFFIX}")} == {manifests.run_id} != {run}
    assert not api.verify(api.scan(tmp_path)).wrong


def test_a_restart_leaves_the_slices_of_the_run_before(tmp_path):
    train(tmp_path, SliceManifests())
    train(tmp_path, SliceManifests())
    assert sealed(tmp_path / "rank_0") == ["1_2", "1_2", "1_4", "1_4"]  # net-1_2 and net_1-1_2
    told = [read_manifest(path).training for path in (tmp_path / "rank_0").glob(f"*-1_4.*{MANIFEST_SUFFIX}")]
    assert sorted((one.base_prefix, one.start_number) for one in told) == [("net", 0), ("net", 1)]
    assert not api.verify(api.scan(tmp_path)).wrong


class Breaking(Callback):
    """Fails at a step, once what MindSpore saves in the background is saved."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self.step:
            deadline = time.monotonic() + 60
            while is_saving() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise KeyError("something else")


@pytest.mark.parametrize("options", [{}, {"async_save": True}], ids=["plain", "async"])
def test_a_training_that_fails_leaves_manifests_of_what_was_saved(tmp_path, options):
    with pytest.raises(KeyError):
        train(tmp_path, SliceManifests(), callbacks=[Breaking(3)], **options)
    assert sealed(tmp_path / "rank_0") == ["1_2"]


class Striking(Callback):
    """Damages a slice as soon as it is saved."""

    def on_train_step_end(self, run_context):
        for callback in run_context.original_args().list_callback:
            if isinstance(callback, ModelCheckpoint) and callback.latest_ckpt_file_name.endswith("-1_2.ckpt"):
                path = callback.latest_ckpt_file_name
                if os.path.getsize(path) > 20:
                    os.chmod(path, 0o600)
                    os.truncate(path, 20)


def test_a_damaged_slice_is_raised_with_rank_step_and_path(tmp_path):
    manifests = SliceManifests()
    with pytest.raises(MsRecoverError, match=r"rank 0, step 1_2, .*net-1_2\.ckpt got no manifest: the slice is not"):
        train(tmp_path, manifests, behind=False, callbacks=[Striking()])


def test_errors_may_be_logged_alone(tmp_path, caplog):
    train(tmp_path, SliceManifests(on_error="log"), behind=False, callbacks=[Striking()], keep_checkpoint_max=9)
    assert "rank 0, step 1_2" in caplog.text
    assert [path.name for path in (tmp_path / "rank_0").glob(f"*{MANIFEST_SUFFIX}")] == [
        f"net-1_4.ckpt{MANIFEST_SUFFIX}"
    ]


def test_an_error_of_a_training_is_not_hidden_by_one_of_manifests(tmp_path, caplog):
    """The damaged slice is looked at when the training has failed: at a step its error would come first."""
    with pytest.raises(KeyError):
        train(tmp_path, SliceManifests(), behind=False, callbacks=[Striking(), Breaking(2)])
    assert "net-1_2.ckpt got no manifest: the slice is not whole" in caplog.text


def test_layouts_are_written_beside_the_slices(tmp_path):
    layouts = [cut("weight", {"dp": 1}, None, None), cut("bias", {"dp": 1}, None)]
    train(tmp_path, SliceManifests(layouts=layouts))
    found = api.scan(tmp_path)
    (strategy,) = found.strategy_files
    assert {file.manifest.strategy_digest for file in found.slices} == {strategy.digest}
    assert {layout.parameter for layout in strategy.strategy.layouts} >= {"weight", "bias", "moments.weight"}


def test_refuses_what_cannot_be_meant(tmp_path):
    with pytest.raises(UsageError, match="on_error='maybe'"):
        SliceManifests(on_error="maybe")
    with pytest.raises(UsageError, match="no ModelCheckpoint or CheckpointMonitor"):
        train(tmp_path, SliceManifests(), saver=Callback())


def test_a_callable_prefix_names_no_step(tmp_path, caplog):
    saver = ModelCheckpoint(lambda params: "latest", str(tmp_path), CheckpointConfig(save_checkpoint_steps=2))
    train(tmp_path, SliceManifests(), saver=saver)
    assert "whose name states no step" in caplog.text
    assert not list(tmp_path.glob(f"*{MANIFEST_SUFFIX}"))


class Monitor(ModelCheckpoint):
    """The records of MindFormers' ``CheckpointMonitor`` in its new format; saves nothing by itself."""

    def __init__(self, root, kept=5, async_save=False):
        super().__init__("CKP_rank_0", str(root), CheckpointConfig(keep_checkpoint_max=kept, async_save=async_save))
        self.root, self.origin_prefix = root, "CKP"
        self.use_legacy_format, self.save_optimizer, self.save_network_params = False, True, False
        self.current_ckpt_step_list = []

    def save(self, iteration, late=None):
        """Write as MindFormers does; the model file is there when `late` is set, where it is given."""
        folder = self.root / f"iteration_{iteration:08d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        arrays = [{"name": "w", "data": ms.Tensor([float(iteration)])}]

        def write():
            if late is not None:
                late.wait(20)
            for kind in ("model", "opt"):
                ms.save_checkpoint(arrays, str(folder / f"CKP-{kind}-0000000-0000002"), format="safetensors")

        if late is None:
            write()
        else:
            threading.Thread(target=write, name="asyn_save_ckpt").start()
        self.current_ckpt_step_list.append(str(folder))
        if len(self.current_ckpt_step_list) > self._config.keep_checkpoint_max:
            shutil.rmtree(self.current_ckpt_step_list.pop(0))


@pytest.fixture
def hooks(monkeypatch):
    """Call a callback as a training does."""
    monkeypatch.setenv("RANK_ID", "0")
    monkeypatch.setenv("RANK_SIZE", "2")

    @contextlib.contextmanager
    def begin(manifests, monitor):
        params = SimpleNamespace(list_callback=[monitor, manifests], cur_step_num=0, train_network=nn.Dense(1, 1))
        context = SimpleNamespace(original_args=lambda: params)
        with manifests:
            manifests.on_train_begin(context)

            def step():
                params.cur_step_num += 1
                manifests.on_train_step_end(context)

            yield step
            manifests.on_train_end(context)

    return begin


def both(folder):
    return [f"CKP-{kind}-0000000-0000002.safetensors{MANIFEST_SUFFIX}" for kind in ("model", "opt")]


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_iterations_of_mindformers(tmp_path, hooks, kept):
    monitor, manifests = Monitor(tmp_path, kept), SliceManifests()
    with hooks(manifests, monitor) as step:
        for iteration in (10, 20, 30):
            monitor.save(iteration)
            step()
            step()
            if kept == 1:  # the next save may remove it: it is done already
                folder = tmp_path / f"iteration_{iteration:08d}"
                assert sorted(path.name for path in folder.glob(f"*{MANIFEST_SUFFIX}")) == both(folder)
            manifests._queue.join()
    folders = sorted(tmp_path.iterdir())
    assert [folder.name for folder in folders] == [f"iteration_{n:08d}" for n in (10, 20, 30)[-kept:]]
    for folder in folders:
        assert sorted(path.name for path in folder.glob(f"*{MANIFEST_SUFFIX}")) == both(folder)
    found = read_manifest(folders[-1] / both(folders[-1])[0])
    assert (found.step, found.cumulative_step, found.world_size, found.group) == (Step.iteration(30), 30, 2, (0,))
    assert found.training == TrainingRecord(
        None, host=socket.gethostname(), machine=this_host()[1], base_prefix="CKP", start_number=0
    )
    assert found.training.names_host_alone


def test_an_iteration_that_is_still_being_saved_waits(tmp_path, hooks):
    monitor, manifests, late = Monitor(tmp_path, async_save=True), SliceManifests(), threading.Event()
    with hooks(manifests, monitor) as step:
        monitor.save(10, late)
        step()
        step()
        manifests._queue.join()
        folder = tmp_path / "iteration_00000010"
        assert list(folder.iterdir()) == []
        late.set()
        for thread in threading.enumerate():
            if thread.name == "asyn_save_ckpt":
                thread.join()
        step()
        manifests._queue.join()
        assert sorted(path.name for path in folder.glob(f"*{MANIFEST_SUFFIX}")) == both(folder)


def test_the_training_waits_for_no_manifest(tmp_path, hooks, monkeypatch):
    from ms_recover.training import manifest_queue

    prove = manifest_queue.prove_saved

    def slowly(*arguments):
        time.sleep(0.3)
        return prove(*arguments)

    monkeypatch.setattr(manifest_queue, "prove_saved", slowly)
    monitor, manifests = Monitor(tmp_path), SliceManifests()
    with hooks(manifests, monitor) as step:
        for iteration in (10, 20):
            monitor.save(iteration)
            step()
        assert len(manifests.waits) == 2
        assert sum(manifests.waits) < 0.25
    assert len(list(tmp_path.rglob(f"*{MANIFEST_SUFFIX}"))) == 4


def test_a_full_disk_is_raised_at_the_next_save(tmp_path, hooks, monkeypatch):
    def full(path, manifest):
        raise StorageError(f"writing {path}: No space left on device")

    monkeypatch.setattr("ms_recover.execution.saved_manifest.write_manifest", full)
    monitor, manifests = Monitor(tmp_path), SliceManifests()
    with pytest.raises(StorageError, match=r"rank 0, step 10, .*No space left"), hooks(manifests, monitor) as step:
        monitor.save(10)
        step()
        step()
        manifests._queue.join()
        step()  # no save, no error
        monitor.save(20)
        step()
        pytest.fail("the second save raises")
