"""Why the last trained batch cannot be compared: each reason, and none where it can be."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402

from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training.deciding.own_slice import OwnSlice  # noqa: E402
from ms_recover.training.proving import SampleProver, Trained, why_unproven  # noqa: E402
from ms_recover.training.run_state import RunState  # noqa: E402
from ms_recover.training.this_process import current_job  # noqa: E402

KNOWN = RunState(batch=(["Float32", [2], "digest", ""],))
UNSEEDED = 5489


@pytest.fixture(autouse=True)
def seeded():
    before = ds.config.get_seed()
    ds.config.set_seed(11)
    yield
    ds.config.set_debug_mode(False)
    ds.config.set_seed(before)


def dataset(shuffle=False):
    return ds.NumpySlicesDataset({"x": np.arange(8, dtype=np.float32)}, shuffle=shuffle)


def part():
    """A part of a dataset, dealt out to one shard."""
    found = dataset().split([4, 4])[0]
    found.use_sampler(ds.DistributedSampler(1, 0, shuffle=False))
    return found


def operated():
    return dataset().map(ds.transforms.RandomApply([ds.transforms.TypeCast(ms.float32)]), ["x"])


@pytest.mark.parametrize(
    ("state", "drawn", "why"),
    [
        (KNOWN, 1, None),
        (RunState(lent=True, batch_number=7), 1, None),
        (None, 1, "the state of the training is lost"),
        (RunState(lent=True), 1, "the state is that of another rank, which had a batch of its own"),
        (RunState(), 1, "the slice does not state its last batch"),
        (KNOWN, 0, "no batch was drawn before"),
    ],
)
def test_what_is_not_known_of_the_batch_is_the_reason(state, drawn, why):
    assert why_unproven(state, dataset(), drawn) == why


def test_in_debug_mode_nothing_can_be_compared():
    ds.config.set_debug_mode(True)
    assert why_unproven(KNOWN, dataset(), 1) == "in debug mode every dataset begins with its first batch"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (dataset, None),
        (lambda: dataset(shuffle=True), "the dataset is shuffled without a seed"),
        (part, "the samples of the dataset were drawn at random without a seed"),
        (operated, "random operations on samples have no seed"),
    ],
)
def test_a_dataset_that_no_later_start_can_repeat_is_the_reason_where_no_seed_is_set(make, why):
    assert why_unproven(KNOWN, make(), 1) is None
    ds.config.set_seed(UNSEEDED)
    assert why_unproven(KNOWN, make(), 1) == why


def test_a_training_that_makes_its_iterator_otherwise_is_the_reason():
    own, rows = OwnSlice(0, Step(1, 1), "test-1_1.ckpt"), dataset()
    prover = SampleProver(current_job(), own, Trained(rows, 1, 8), KNOWN, why_not=None, allow=False)
    with prover.watching():
        next(rows.create_dict_iterator(num_epochs=1))
        proof = prover.prove()
    assert (proof.outcome, proof.why) == (
        "unproven",
        "the training does not make its iterator by create_tuple_iterator",
    )
