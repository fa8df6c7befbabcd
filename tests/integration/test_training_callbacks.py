"""Callbacks whose state is not saved are named at the first save, and in the line of a resume."""

import logging

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.train import (  # noqa: E402
    Callback,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    Model,
    ReduceLROnPlateau,
    TimeMonitor,
)

from ms_recover.training import recover_train  # noqa: E402
from tests.support.trainings import (  # noqa: E402
    Losses,
    StoppedError,
    checkpoint,
    make_dataset,
    make_network,
    values,
)

NAMED = "what these callbacks remember is not saved, and a resumed training begins them anew: "


def make_model():
    network = make_network()
    return Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.01, 0.9))


class Counting(Callback):
    """Counts in its class; every third step shrinks the weights."""

    count = 0

    def on_train_step_end(self, run_context):
        Counting.count += 1
        if Counting.count % 3 == 0:
            for weight in run_context.original_args().optimizer.parameters:
                ops.assign(weight, weight * 0.9)


class Ramp:
    """A schedule that counts by itself."""

    def __init__(self):
        self.calls = 0

    def __call__(self, rate, step):
        self.calls += 1
        return 0.001 * self.calls


class Freezing(Callback):
    """Freezes a layer; it remembers nothing in itself."""

    def on_train_epoch_end(self, run_context):
        for weight in run_context.original_args().optimizer.parameters[:1]:
            weight.requires_grad = False


class Watching(Callback):
    stateless = True

    def on_train_step_end(self, run_context):
        pass


class Failing(Watching):
    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self._step:
            raise StoppedError


def said(caplog):
    return [(one.levelno, one.getMessage()) for one in caplog.records if NAMED in one.getMessage()]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Counting, "Counting"),
        (lambda: LearningRateScheduler(Ramp()), "LearningRateScheduler (Ramp)"),
        (Freezing, "Freezing"),
    ],
    ids=["a class attribute that counts", "LearningRateScheduler with an object", "a callback that freezes layers"],
)
def test_what_a_callback_remembers_anywhere_is_named_at_the_first_save_and_in_the_line(
    tmp_path, caplog, capfd, make, name
):
    with pytest.raises(StoppedError):
        make_model().train(2, make_dataset(), callbacks=[make(), checkpoint(tmp_path, 2), Failing(1)])
    assert said(caplog) == []  # nothing was saved yet
    with pytest.raises(StoppedError):
        make_model().train(2, make_dataset(), callbacks=[make(), checkpoint(tmp_path, 2), Failing(5)])
    ((level, text),) = said(caplog)
    assert (level, text.startswith(f"step 2: {NAMED}{name}; give them state_dict()")) == (logging.WARNING, True)
    caplog.clear()
    capfd.readouterr()
    with pytest.raises(StoppedError):
        recover_train(make_model(), make_dataset(), tmp_path, 2, [make(), checkpoint(tmp_path, 2), Failing(5)])
    assert said(caplog) == []  # at the resume it is too late for a warning: it is in the line
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover: resumed from")]
    assert line.endswith(f": weights, optimizer and samples proven; callbacks not proven: {name} without state_dict()")


def test_one_line_names_all_and_stock_or_stateless_callbacks_are_not_named(tmp_path, caplog):
    stock = [LossMonitor(9), TimeMonitor(), History(), EarlyStopping("loss", patience=9), ReduceLROnPlateau("loss")]
    stock += [LambdaCallback(on_train_end=lambda run_context: None), LearningRateScheduler(lambda rate, _: rate * 0.9)]
    make_model().train(1, make_dataset(), callbacks=[*stock, Watching(), checkpoint(tmp_path / "silent", 2)])
    assert said(caplog) == []
    odd = [Counting(), Freezing(), Counting(), LearningRateScheduler(Ramp())]
    savers = [checkpoint(tmp_path / "named", 2), checkpoint(tmp_path / "too", 4)]
    make_model().train(1, make_dataset(), callbacks=[*savers, *odd, *stock])
    ((_, text),) = said(caplog)
    assert f"{NAMED}Counting, Freezing, LearningRateScheduler (Ramp); give" in text


def test_a_clean_resume_prints_one_line_and_nothing_where_it_is_turned_off(tmp_path, caplog, capfd, monkeypatch):
    whole = make_model()
    whole.train(2, make_dataset(), callbacks=[LossMonitor(99)])
    with pytest.raises(StoppedError):
        make_model().train(2, make_dataset(), callbacks=[Watching(), checkpoint(tmp_path, 2), Failing(5)])
    capfd.readouterr()
    caplog.clear()
    model = make_model()
    recover_train(model, make_dataset(), tmp_path, 2, [Watching(), checkpoint(tmp_path, 2), Failing(99)])
    assert values(model) == values(whole)
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover:")]
    assert line.startswith("ms_recover: resumed from step 1_4 (run ")
    assert ", 1 of 1 ranks, saved " in line
    assert " by host " in line
    assert line.endswith("): weights, optimizer, callbacks and samples proven")
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    monkeypatch.setenv("MS_RECOVER_QUIET", "1")
    recover_train(make_model(), make_dataset(), tmp_path, 3, [Losses(), checkpoint(tmp_path, 2)])
    assert "ms_recover:" not in capfd.readouterr().err
