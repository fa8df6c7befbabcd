"""The position in a dataset that other ranks share out, counted in samples."""

import pytest

from ms_recover.errors import InputError
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.training.deciding.reshard_position import (
    SharedFeed,
    feed_before,
    find_shared_position,
    micro_batches,
)


def feed(steps, batch, shards, accumulate=1):
    return SharedFeed(epoch_steps=steps, batch_size=batch, shards=shards, accumulate=accumulate)


@pytest.mark.parametrize(
    ("before", "now", "step", "done", "micro"),
    [
        (feed(8, 16, 2), feed(8, 32, 1), "2_3", 11, 2),  # the whole batch on the rank that is left
        (feed(8, 16, 2), feed(16, 16, 1, 2), "2_3", 22, 2),  # two steps for an update
        (feed(16, 16, 1, 2), feed(8, 16, 2), "2_6", 11, 1),  # and back
        (feed(8, 32, 1), feed(8, 8, 4), "2_8", 16, 1),  # more ranks
        (feed(8, 16, 4), feed(8, 16, 4), "1_5", 5, 1),  # only the model is cut otherwise
        (feed(None, None, None), feed(8, 16, 4), "1_5", 5, 1),  # nothing is known
    ],
)
def test_the_samples_of_an_update_stay(before, now, step, done, micro):
    position = find_shared_position(Step.parse(step), before, now, sinks=False)
    assert (position.done, position.change) == (done, None)
    assert micro_batches(before, now) == micro


@pytest.mark.parametrize(
    ("before", "now", "step", "said"),
    [
        (
            feed(8, 16, 2),
            feed(16, 16, 1),
            "1_3",
            r"was 32 .* is 16 .* batches of 32 .* accumulate 2 batches.*accumulate=2",
        ),
        (feed(8, 16, 2), feed(8, 16, 4), "1_3", "was 32 .* is 64 .* read batches of 8"),
        (feed(8, 16, 2), feed(4, 32, 1), "1_3", "an epoch was 256 samples .* is 128 now"),
        (feed(16, 16, 1, 2), feed(8, 32, 1), "1_3", "within an update of 32"),
        (feed(8, 16, None), feed(8, 32, 1), "1_3", "nothing states how samples were dealt out"),
        (feed(9, 10, 3), feed(45, 3, 2), "1_3", "was 30 .* is 6 .*read batches of 15.*accumulate=5"),
    ],
)
def test_other_updates_are_refused_with_what_keeps_them(before, now, step, said):
    with pytest.raises(InputError, match=said):
        find_shared_position(Step.parse(step), before, now, sinks=False)
    allowed = find_shared_position(Step.parse(step), before, now, sinks=False, allow_change=True)
    assert allowed.change is not None
    assert 0 <= allowed.done <= now.epoch_steps


def test_the_end_of_an_epoch_stays_the_end_and_sinks_begin_there_only():
    before, now = feed(8, 16, 2), feed(16, 16, 1, 2)
    assert find_shared_position(Step(3, 8), before, now, sinks=True).done == 48
    with pytest.raises(InputError, match="in the middle of an epoch of 16 steps, where sink mode"):
        find_shared_position(Step(3, 4), before, now, sinks=True)


@pytest.mark.parametrize(
    ("order", "shards", "accumulate"),
    [
        ({}, None, 1),
        ({"shards": 4, "accumulate": 2}, 4, 2),
        ({"made": ["BatchDataset(batch_size=4)", "GeneratorDataset(num_shards=2, DistributedSampler)"]}, 2, 1),
        ({"made": ["BatchDataset(batch_size=4)", "GeneratorDataset(RandomSampler)"]}, 1, 1),
    ],
)
def test_what_was_saved_states_the_shards(order, shards, accumulate):
    found = feed_before(TrainingRecord(1, None, 8, 16), order)
    assert found == feed(8, 16, shards, accumulate)


@pytest.mark.mindspore
@pytest.mark.parametrize(("shards", "named"), [(1, False), (4, False), (None, True)])
def test_other_shards_of_one_sampler_are_no_change_and_another_sampler_is_named(shards, named):
    import mindspore.dataset as ds

    from ms_recover.training.sample_order import doubts_of_change, sample_order, shards_of

    def made(count, batch):
        shared = {} if count is None else {"num_shards": count, "shard_id": 0}
        return ds.GeneratorDataset([(0.0,)] * 32, ["x"], shuffle=True, **shared).batch(batch, drop_remainder=True)

    saved, now = sample_order(made(2, 8)), made(shards, 16 // (shards or 1))
    assert (saved["shards"], shards_of(now)) == (2, shards or 1)
    assert bool(doubts_of_change(saved, now, shared_out=True)) is named
    assert doubts_of_change(saved, now)


@pytest.mark.mindspore
def test_a_plain_resume_must_accumulate_as_before():
    import mindspore.dataset as ds

    from ms_recover.training.in_process import of_process
    from ms_recover.training.run import Runs
    from ms_recover.training.sample_order import check_order, sample_order

    dataset = ds.GeneratorDataset([(0.0,)] * 8, ["x"], shuffle=False).batch(2)
    saved = sample_order(dataset)
    older = {name: value for name, value in saved.items() if name not in ("shards", "accumulate")}
    of_process(Runs).accumulate = 2
    try:
        for before in (saved, older):
            with pytest.raises(InputError, match="accumulate=2, and it was 1 when the slice was saved"):
                check_order(before, dataset)
            check_order(before, dataset, shared_out=True)
        check_order(sample_order(dataset), dataset)
    finally:
        of_process(Runs).accumulate = 1
    check_order(older, dataset)
