"""The position in the dataset at which training goes on."""

from dataclasses import replace

import pytest

from ms_recover.errors import InputError
from ms_recover.model.manifest import Digests, Manifest, TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.training.deciding.position import Feed, find_position

EPOCH = 8
BATCH = 16


def saved(text, *, steps=EPOCH, batch=BATCH, cumulative=None, old=False):
    step = Step.parse(text)
    trained = cumulative if cumulative is not None else (step.epoch - 1) * steps + step.step
    made = Manifest("run", 0, 1, step, trained, "x", 1, Digests("d"), (), (0,))
    return step, made if old else replace(made, training=TrainingRecord(1, None, steps, batch))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("step", "done"), [("1_1", 1), ("1_8", 8), ("3_4", 20)])
def test_the_same_dataset_goes_on_behind_the_step(step, done, old):
    position = find_position(*saved(step, old=old), Feed(EPOCH, BATCH))
    assert (position.done, position.change) == (done, None)


def test_without_a_manifest_the_name_of_the_step_counts():
    assert find_position(Step(3, 4), None, Feed(EPOCH, BATCH)).done == 20


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("now", [4, 16])
def test_another_length_is_refused_with_both_numbers(now, old):
    with pytest.raises(InputError, match=rf"this dataset has {now} steps, and had 8 when .*allow_dataset_change=True"):
        find_position(*saved("3_4", old=old), Feed(now, BATCH))


def test_another_batch_size_is_refused_also_where_the_epochs_are_as_long():
    with pytest.raises(InputError, match="a batch of this dataset has 8 samples, and had 16 when"):
        find_position(*saved("3_4"), Feed(EPOCH, 8))


def test_both_changes_are_named():
    with pytest.raises(InputError, match=r"has 4 steps, and had 8 when .*; a batch of this dataset has 32 samples"):
        find_position(*saved("3_4"), Feed(4, 32))


def test_what_a_dataset_does_not_tell_is_not_compared():
    assert find_position(*saved("3_4"), Feed(EPOCH, None)).done == 20
    assert find_position(*saved("3_4", batch=None), Feed(EPOCH, 5)).done == 20


@pytest.mark.parametrize("record", [None, TrainingRecord(None, host="node1", machine="m")])
@pytest.mark.parametrize(("text", "cumulative"), [("1_9", None), ("0_3", None), ("3_4", 12), ("3_4", 19)])
def test_numbers_of_a_step_that_no_epoch_of_this_dataset_gives_are_refused(text, cumulative, record):
    """Also where the manifest states nothing of the training but the host."""
    step, manifest = saved(text, cumulative=cumulative, old=True)
    with pytest.raises(InputError, match="an epoch of this dataset has 8 steps, "):
        find_position(step, replace(manifest, training=record), Feed(EPOCH, BATCH))


@pytest.mark.parametrize(
    ("text", "feed", "position"),
    [
        ("2_3", Feed(16, 8), (22, "epoch 2 behind its first 6 of 16 steps")),
        ("2_3", Feed(4, 32), (5, "epoch 2 behind its first 1 of 4 steps")),
        ("2_8", Feed(4, 32), (8, "epoch 3 behind its first 0 of 4 steps")),
        ("2_8", Feed(16, 16), (32, "epoch 3 behind its first 0 of 16 steps")),
        ("2_3", Feed(16, 16), (19, "epoch 2 behind its first 3 of 16 steps")),
        ("2_7", Feed(4, 16), (8, "epoch 3 behind its first 0 of 4 steps")),
        ("2_3", Feed(16, None), (19, "epoch 2 behind its first 3 of 16 steps")),
    ],
)
def test_a_change_that_is_allowed_states_the_position(text, feed, position):
    found = find_position(*saved(text), feed, allow_change=True)
    assert found.done == position[0]
    assert position[1] in found.change


def test_sink_mode_begins_at_the_end_of_a_sink_only():
    assert find_position(*saved("2_8"), Feed(EPOCH, BATCH, sinks=True)).done == 16
    with pytest.raises(InputError, match="middle of an epoch of 8 steps, where sink mode cannot resume"):
        find_position(*saved("2_5"), Feed(EPOCH, BATCH, sinks=True))


def test_a_step_of_no_epoch_has_no_position():
    with pytest.raises(InputError):
        find_position(Step(0, 3), None, Feed(8, 1), allow_change=True)
