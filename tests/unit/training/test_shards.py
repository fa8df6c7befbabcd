"""Which rank reads which shard: what moved, and what nobody reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.mindspore
ds = pytest.importorskip("mindspore.dataset")

from ms_recover.training.sample_order import sample_order  # noqa: E402
from ms_recover.training.shards import Shard, moved_text, unread_text, warn_of_shards  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402


@given(st.integers(1, 6), st.integers(1, 4), st.randoms())
def test_ranks_that_hold_other_parts_of_the_weights_may_read_the_same(shards, parts, random):
    now = [Shard(shard, shards) for shard in range(shards) for _ in range(parts)]
    random.shuffle(now)
    assert unread_text(now) is None


@given(st.integers(2, 8), st.data())
def test_a_shard_that_nobody_reads_is_named_with_the_ranks_that_read_the_same(shards, data):
    missing = data.draw(st.integers(0, shards - 1))
    now = [Shard(shard if shard != missing else (missing + 1) % shards, shards) for shard in range(shards)]
    text = unread_text(now)
    assert text is not None
    assert f"nobody reads shard {missing}: " in text
    assert f"read shard {(missing + 1) % shards} of {shards}" in text


def test_shards_of_more_ranks_than_there_are_belong_to_somebody_else():
    assert unread_text([Shard(0, 4), Shard(1, 4)]) is None
    assert unread_text([Shard(0, 1), Shard(0, 1)]) is None


def test_a_rank_that_reads_another_shard_is_named_with_both():
    before = [Shard(0, 2), Shard(1, 2), None]
    assert moved_text(before, [Shard(0, 2), Shard(1, 2), Shard(0, 2)]) is None
    assert (
        moved_text(before, [Shard(0, 2), Shard(0, 2), Shard(0, 2)])
        == "rank 1 reads shard 0 of 2, and read shard 1 of 2"
    )
    assert (
        moved_text(before, [Shard(0, 2), Shard(0, 1), Shard(0, 2)]) == "rank 1 reads all samples, and read shard 1 of 2"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_shards": 2, "shard_id": 1, "shuffle": False},
        {"sampler": ds.DistributedSampler(2, 1, shuffle=False)},
        {"sampler": ds.DistributedSampler(2, 1)},
    ],
    ids=["of the dataset", "of its sampler", "of a sampler that shuffles"],
)
def test_the_shard_is_that_of_the_dataset_or_of_its_samplers(options):
    data = ds.GeneratorDataset(list(range(8)), ["x"], **options).batch(2)
    assert Shard.of(sample_order(data)) == Shard(1, 2)


@pytest.mark.parametrize(("shard_of", "named"), [(lambda rank: 0, True), (lambda rank: rank, False)])
def test_a_training_in_which_nobody_reads_a_shard_begins_with_one_warning(caplog, shard_of, named):
    jobs = thread_jobs(2)
    on_all(2, lambda rank: warn_of_shards(jobs[rank], {"shard": shard_of(rank), "shards": 2}))
    said = [one.getMessage() for one in caplog.records]
    assert [text.startswith("ranks 0, 1 read shard 0 of 2, and nobody reads shard 1: ") for text in said] == [
        True
    ] * named
