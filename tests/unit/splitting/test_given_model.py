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


@pytest.fixture(scope="module")
def model():
    absorb_first_operator_error()
    return nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3))


def costs_of(model, **options):
    return given_model(model, Options(num_devices=2, split="layers", **options)).costs()


@pytest.mark.parametrize("costs", [5, "abc", {1, 2, 3}, [1, 2], [1, 2, "3"], [1, None, 3], [1, True, 3], [1, [2], 3]])
def test_costs_that_are_no_list_of_numbers_are_refused(model, costs):
    with pytest.raises(UsageError, match="cost"):
        costs_of(model, costs=costs)


@pytest.mark.parametrize("costs", [[1, 2.5, 3], (1, 2, 3), np.ones(3), [np.float32(2), np.int64(1), 0]])
def test_costs_of_any_kind_of_number_are_taken(model, costs):
    assert list(costs_of(model, costs=costs)) == list(costs)


@pytest.mark.parametrize("sample", ["x", 5, None, object(), np.zeros((3, 9), np.float32)])
def test_a_sample_that_the_model_cannot_take_is_refused(model, sample):
    if sample is None:
        assert costs_of(model, sample=sample) == [41.0, 1.0, 28.0]
        return
    with pytest.raises(UsageError):
        costs_of(model, sample=sample)


def test_a_sample_is_what_forward_takes(model):
    array = np.zeros((3, 4), np.float32)
    for sample in (array, (array,), ms.Tensor.from_numpy(array), (Shared(array),)):
        assert len(costs_of(model, sample=sample)) == 3
