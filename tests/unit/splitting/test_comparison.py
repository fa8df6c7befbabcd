"""Outputs of parts that are not those of the model are found, and no others."""

import types

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting.batches import Batch, plan_chunks  # noqa: E402
from ms_recover.splitting.comparison import Comparison, compare_sample, same_weights  # noqa: E402
from ms_recover.splitting.stages import ModelPart, stages_of, whole_model  # noqa: E402


@pytest.fixture(autouse=True)
def pynative(_mode_as_before):
    ms.set_context(mode=ms.PYNATIVE_MODE)


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 4), np.float32)


def dense():
    model = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3))
    model.set_train(False)
    return model


class Lambda(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.dense = dense()
        self.function = function

    def construct(self, x):
        return self.function(self.dense(x))


class Chunked:
    """A model's output, computed in chunks."""

    def __init__(self, run, array, count, least=16):
        self.batch = Batch((array,), {})
        self.cuts = plan_chunks(len(array), count, least)
        outputs = [run(ms.Tensor.from_numpy(array[start:stop].copy())) for start, stop in self.cuts]
        self.output = self.batch.join(outputs, [stop - start for start, stop in self.cuts])

    def compare(self, comparison):
        comparison.compare(self.batch, self.output, self.cuts)


def counted(model):
    """A model that counts its calls."""
    calls = []

    def call(*args):
        calls.append([tuple(each.shape) for each in args])
        return model(*args)

    return call, calls


@pytest.mark.parametrize(("count", "chunks"), [(100, 4), (100, 1), (40, 4), (5, 1), (2, 1)])
def test_equal_outputs_are_compared_once_with_few_rows(count, chunks):
    model = dense()
    call, calls = counted(model)
    comparison = Comparison(call, lambda: True)
    for _ in range(2):
        Chunked(model, rows(count), chunks).compare(comparison)
    assert len(calls) == 1
    assert 1 <= calls[0][0][0] <= 32


def test_a_single_row_leaves_the_others_to_be_compared():
    model = Lambda(lambda x: x - x.mean(0))
    comparison = Comparison(model, lambda: True)
    Chunked(model, rows(1), 1).compare(comparison)
    with pytest.raises(UsageError, match="depend on each other"):
        Chunked(model, rows(40), 2).compare(comparison)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0),
        lambda x: x - x[0:1],
        lambda x: x - x[-1:],
        lambda x: ops.softmax(x, 0),
        lambda x: ops.cumsum(x, 0),
    ],
    ids=["mean", "first", "last", "softmax", "sum"],
)
@pytest.mark.parametrize(("count", "chunks"), [(100, 4), (32, 2), (7, 2)])
def test_rows_that_depend_on_each_other_are_found(function, count, chunks):
    model = Lambda(function)
    comparison = Comparison(model, lambda: True)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"depend on each other.*check=False"):
            Chunked(model, rows(count), chunks, 1).compare(comparison)
    with pytest.raises(UsageError, match="depend on each other"):
        compare_sample(model, ModelPart(whole_model(model)), (rows(count),))


def test_a_construct_that_is_not_the_stages_is_found():
    class Declared(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)

        def stages(self):
            return [self.first, self.second]

        def construct(self, x):
            return self.second(ops.relu(self.first(x)))

    model = Declared()
    replaced = dense()
    parts = ModelPart(stages_of(replaced))
    replaced.construct = types.MethodType(lambda self, x: self[0](x), replaced)
    for wrong, run in ((model, ModelPart(stages_of(model))), (replaced, parts)):
        with pytest.raises(UsageError, match="the parts give another output than the model for rows"):
            Chunked(run, rows(50), 2).compare(Comparison(wrong, lambda: True))
        with pytest.raises(UsageError, match="the parts give another output than the model for rows"):
            compare_sample(wrong, run, (rows(50),))
    compare_sample(model.first, ModelPart(whole_model(model.first)), (ms.Tensor(rows(50)),))


def test_a_model_that_raises_where_its_parts_do_not_is_found():
    def fail(_):
        raise ValueError("not that many rows")

    with pytest.raises(UsageError, match=r"the model raises ValueError for rows .* where its parts give an output"):
        Chunked(dense(), rows(50), 2).compare(Comparison(fail, lambda: True))


def test_a_model_with_other_weights_by_now_is_not_compared(caplog):
    model = dense()
    there = Chunked(model, rows(50), 2)
    before = {name: ms.Tensor(each.asnumpy().copy()) for name, each in model.parameters_dict().items()}
    assert same_weights(model.parameters_dict(), before)
    model[0].weight.set_data(model[0].weight + 1)
    assert not same_weights(model.parameters_dict(), before)
    comparison = Comparison(model, lambda: same_weights(model.parameters_dict(), before))
    there.compare(comparison)
    assert "other weights" in caplog.text
    there.compare(comparison)


@pytest.mark.parametrize(
    ("kind", "noise", "found"),
    [
        (np.float32, 1e-6, False),
        (np.float32, 1e-4, False),
        (np.float32, 1e-2, True),
        (np.float64, 1e-9, False),
        (np.float64, 1e-6, True),
        (np.float16, 1e-2, False),
        (np.float16, 1e-1, True),
        (np.int32, 0, False),
        (np.int32, 3, True),
    ],
)
def test_what_counts_as_equal_is_in_proportion_to_the_largest_value_and_the_type(kind, noise, found):
    want = (100 * rows(64)).astype(kind)
    got = (want + noise * np.abs(want).max()).astype(kind) if kind != np.int32 else want + kind(noise)
    batch = Batch((rows(64),), {})
    compare = Comparison(lambda x: ms.Tensor.from_numpy(want[16:48].copy()), lambda: True).compare
    given = batch, ms.Tensor.from_numpy(got), [(0, 32), (32, 64)]
    if found:
        with pytest.raises(UsageError, match="differs"):
            compare(*given)
    else:
        compare(*given)


def test_not_a_number_equals_itself_and_nothing_else():
    want = rows(32)
    want[3, 1], want[4, 2] = np.nan, np.inf
    batch = Batch((rows(32),), {})

    def compare(got):
        call = Comparison(lambda x: ms.Tensor.from_numpy(want[:16].copy()), lambda: True)
        call.compare(batch, ms.Tensor.from_numpy(got), [(0, 32)])

    compare(want.copy())
    for row, column, value in ((3, 1, 0.0), (4, 2, 1.0), (4, 2, -np.inf), (5, 0, np.nan)):
        got = want.copy()
        got[row, column] = value
        with pytest.raises(UsageError, match="differs by"):
            compare(got)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: (x, x), "its structure is"),
        (lambda x: {"a": x}, "its structure is"),
        (lambda x: x.astype(ms.float16), "has type"),
        (lambda x: x[:, :1], "has shape"),
    ],
)
def test_another_structure_type_or_shape_is_named(change, words):
    model = dense()
    with pytest.raises(UsageError, match=words):
        Chunked(lambda x: change(model(x)), rows(20), 1).compare(Comparison(model, lambda: True))


def test_bfloat16_is_compared_as_its_type_allows():
    def narrow(x):
        return (x * 1.01).astype(ms.bfloat16)

    batch, x = Batch((rows(20),), {}), ms.Tensor(rows(20))
    Comparison(narrow, lambda: True).compare(batch, x.astype(ms.bfloat16), [(0, 20)])
    with pytest.raises(UsageError, match="differs by"):
        Comparison(narrow, lambda: True).compare(batch, (x * 3).astype(ms.bfloat16), [(0, 20)])
    with pytest.raises(UsageError, match="has type float32, expected bfloat16"):
        Comparison(narrow, lambda: True).compare(batch, x, [(0, 20)])
