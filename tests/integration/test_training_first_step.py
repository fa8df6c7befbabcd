"""What callbacks write as a resumed training begins: compared with what was resumed, before anything is trained."""

from contextlib import suppress

import numpy as np
import pytest

from ms_recover.errors import InputError, UsageError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import ops  # noqa: E402
from mindspore.train import BackupAndRestore, Callback  # noqa: E402

from ms_recover.training import recover_train  # noqa: E402
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

with suppress(SystemError):  # MindSpore's first product with a Python number fails with numpy 2, the second does not
    ms.Tensor(1.0) * 0.5

MODES = pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])


class Writing(Callback):
    """Writes a parameter at the events that its class names."""

    def __init__(self, name="learning_rate"):
        super().__init__()
        self.name, self.acts = name, True

    def write(self, run_context, factor):
        params = run_context.original_args()
        for one in params.train_network.get_parameters():
            if one.name == self.name and self.acts:
                ops.assign(one, ms.Tensor(np.full(one.shape, 0.02 * factor, np.float32)))


class AtBegin(Writing):
    def on_train_begin(self, run_context):
        self.write(run_context, 1)


class AtBeginAndSteps(AtBegin):
    """Warms the rate up: what it writes as training begins is gone at the first step."""

    def on_train_step_begin(self, run_context):
        self.write(run_context, 1 + run_context.original_args().cur_step_num % 5)


class Plateau(AtBegin):
    def on_train_step_begin(self, run_context):
        self.write(run_context, min(5, run_context.original_args().cur_step_num))


class AtEpochs(Writing):
    def on_train_epoch_begin(self, run_context):
        self.write(run_context, run_context.original_args().cur_epoch_num)


class InItsState(Writing):
    """Gives its parameter other values where its own state is restored."""

    def on_train_begin(self, run_context):
        self._context = run_context

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        self.write(self._context, 3)


def train(root, stop_at, callback, mode="PYNATIVE_MODE"):
    """Train from the beginning, up to a step; return the losses and the model."""
    ms.set_context(mode=getattr(ms, mode))
    model, losses = make_model(), Losses(stop_at)
    with suppress(StoppedError):
        model.train(EPOCHS, make_dataset(), callbacks=[losses, callback, checkpoint(root)], dataset_sink_mode=False)
    return losses.seen, model


def go_on(root, callback, **options):
    model, losses = make_model(), Losses()
    recover_train(model, make_dataset(), root, EPOCHS, [losses, callback, checkpoint(root)], **options)
    return losses.seen, model


@MODES
def test_pretrained_weights_that_a_callback_loads_as_training_begins_are_refused_or_allowed(tmp_path, caplog, mode):
    quiet = AtBegin("0.weight")
    quiet.acts = False
    train(tmp_path, 11, quiet, mode)
    before = files(tmp_path)
    with pytest.raises(InputError) as refused:
        go_on(tmp_path, AtBegin("0.weight"))
    said = str(refused.value)
    for word in ("rank 0, step 2_1", "0.weight", "on_train_begin (AtBegin)", "allow=['0.weight']"):
        assert word in said
    assert files(tmp_path) == before
    seen, _ = go_on(tmp_path, AtBegin("0.weight"), allow=["0.weight"])
    assert min(seen) == 10
    warned = [one.getMessage() for one in caplog.records if "as allow= says" in one.getMessage()]
    assert len(warned) == 1
    assert "0.weight: written by a callback in on_train_begin (AtBegin)" in warned[0]


def test_backup_and_restore_of_mindspore_is_refused(tmp_path):
    """It loads the weights of the last epoch's end when training begins, behind the resume."""
    root, backup = tmp_path / "tree", tmp_path / "backup"
    train(root, 11, BackupAndRestore(str(backup), delete_checkpoint=False))
    assert list(backup.iterdir())
    before = files(root)
    with pytest.raises(InputError, match=r"0\.bias.*BackupAndRestore"):
        go_on(root, BackupAndRestore(str(backup), delete_checkpoint=False))
    assert files(root) == before


@MODES
def test_a_learning_rate_that_is_set_as_training_begins_is_refused_or_allowed(tmp_path, mode):
    train(tmp_path, 11, AtEpochs(), mode)
    with pytest.raises(InputError, match=r"learning_rate would not be what was resumed.*allow=\['learning_rate'\]"):
        go_on(tmp_path, AtBegin())
    _, model = go_on(tmp_path, AtBegin(), allow="learning_rate")
    rate = next(one for one in model.train_network.get_parameters() if one.name == "learning_rate")
    assert float(rate.asnumpy()) == np.float32(0.02)


@MODES
@pytest.mark.parametrize("kind", [AtBeginAndSteps, AtEpochs, InItsState])
def test_what_callbacks_write_as_an_epoch_or_a_step_begins_belongs_to_the_training(tmp_path, caplog, mode, kind):
    seen, model = train(tmp_path / "whole", None, kind(), mode)
    train(tmp_path / "cut", 11, kind(), mode)
    again, resumed = go_on(tmp_path / "cut", kind())
    assert sorted(again) == list(range(10, EPOCHS * STEPS + 1))
    if kind is not InItsState:  # which writes at a resume alone
        assert again == {step: seen[step] for step in again}
        assert values(resumed) == values(model)
    assert not [one for one in caplog.records if "on_train_begin" in one.getMessage()]


def test_a_rate_that_is_written_once_more_with_the_same_value_is_no_reason_to_refuse(tmp_path, caplog):
    """The plateau of a warm-up: nothing shows that the callback writes it at the step, so its place is kept."""
    seen, model = train(tmp_path / "whole", None, Plateau())
    train(tmp_path / "cut", 11, Plateau())
    again, resumed = go_on(tmp_path / "cut", Plateau())
    assert again == {step: seen[step] for step in again}
    assert values(resumed) == values(model)
    said = [one.getMessage() for one in caplog.records if "and put back: training goes on" in one.getMessage()]
    assert len(said) == 1
    assert "learning_rate: written by a callback in on_train_begin (Plateau)" in said[0]


def test_nothing_is_set_aside_where_a_callback_is_refused(tmp_path):
    """Newer slices than the one that is resumed keep their names until it is proven that training goes on."""
    train(tmp_path, None, AtEpochs())
    newest = max(tmp_path.glob("ckpt_dir0/*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.chmod(0o600)
    newest.write_bytes(data)
    before = files(tmp_path)
    for kind in (AtBegin, AtBegin):
        with pytest.raises(InputError, match="learning_rate"):
            go_on(tmp_path, kind())
        assert files(tmp_path) == before
    again, _ = go_on(tmp_path, AtBeginAndSteps())  # at step 22 it writes the value that was saved
    assert min(again) == 22
    assert newest.with_name(f"{newest.name}.superseded").exists()


@pytest.mark.parametrize("allow", [7, [7], {"learning_rate": 1}.values()])
def test_names_that_are_none_are_an_error(tmp_path, allow):
    with pytest.raises(UsageError, match=r"allow=.*give the names of parameters"):
        go_on(tmp_path, AtBegin(), allow=allow)


class Teacher(Callback):
    """Resumes another network as its own training begins."""

    stateless = True

    def __init__(self, root):
        super().__init__()
        self.root, self.resumed = root, None

    def on_train_step_begin(self, run_context):
        if self.resumed is None:
            saver = checkpoint(self.root)
            self.resumed = recover_train(make_model(), make_dataset(), self.root, more_epochs=1, callbacks=[saver])


def test_another_training_that_is_resumed_meanwhile_settles_nothing_of_the_first(tmp_path):
    """What a callback wrote over the weights is refused, and nothing is renamed, whatever else is resumed before."""
    other, root = tmp_path / "other", tmp_path / "root"
    quiet = AtBegin("0.weight")
    quiet.acts = False
    for place in (other, root):
        train(place, 11, quiet)
    before, teacher, model = files(root), Teacher(other), make_model()
    with pytest.raises(InputError, match=r"0\.weight would not be what was resumed.*\(AtBegin\)"):
        recover_train(model, make_dataset(), root, EPOCHS, [AtBegin("0.weight"), teacher, checkpoint(root)])
    assert teacher.resumed.trained
    assert files(root) == before
