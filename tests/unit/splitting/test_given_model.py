"""What is decided of a model before it is split: wrong types are refused, samples may be numpy arrays."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting import Shared  # noqa: E402
from ms_recover.splitting.given_model import given_model  # noqa: E402
from ms_recover.splitting.options import Options  # noqa: E402
from ms_recover.splitting.stages import absorb_first_operator_error  # noqa: E402

OPTIONS = Options(
    num_devices=2,
    split="layers",
    chunk_rows=None,
    replicas=2,
    heartbeat=3.0,
    timeout=600.0,
    start_timeout=120.0,
    remote=0,
    addr="127.0.0.1",
    port=29600,
    threads=None,
)


@pytest.fixture(scope="module")
def given():
    absorb_first_operator_error()
    return given_model(nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3)), OPTIONS)


@pytest.mark.parametrize("costs", [5, "abc", {1, 2, 3}, [1, 2], [1, 2, "3"], [1, None, 3], [1, True, 3], [1, [2], 3]])
def test_costs_that_are_no_list_of_numbers_are_refused(given, costs):
    with pytest.raises(UsageError, match="cost"):
        given.costs(costs, None)


@pytest.mark.parametrize("costs", [[1, 2.5, 3], (1, 2, 3), np.ones(3), [np.float32(2), np.int64(1), 0]])
def test_costs_of_any_kind_of_number_are_taken(given, costs):
    assert list(given.costs(costs, None)) == list(costs)


@pytest.mark.parametrize("sample", ["x", 5, None, object(), np.zeros((3, 9), np.float32)])
def test_a_sample_that_the_model_cannot_take_is_refused(given, sample):
    if sample is None:
        assert given.costs(None, sample) == [41.0, 1.0, 28.0]
        return
    with pytest.raises(UsageError):
        given.costs(None, sample)


def test_a_sample_is_what_forward_takes(given):
    array = np.zeros((3, 4), np.float32)
    for sample in (array, (array,), ms.Tensor.from_numpy(array), (Shared(array),)):
        assert len(given.costs(None, sample)) == 3
