"""Chains are found, and only chains."""

import math
import random

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import mint, nn, ops  # noqa: E402

from ms_recover.splitting import chain, pickling, stages  # noqa: E402
from ms_recover.splitting.chain import NotAChainError, trace_chain  # noqa: E402

SCALE = 2.0


@pytest.fixture(autouse=True)
def pynative(_mode_as_before):
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(autouse=True, scope="module")
def first_operator_error_absorbed():
    stages.absorb_first_operator_error()


def helper(x):
    return ops.tanh(x) * 0.5


class Base(nn.Cell):
    """Layers, and a construct of each test."""

    def __init__(self, construct=None):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 4)
        self.layers = nn.CellList([nn.Dense(4, 4), nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())])
        self.plain = [nn.Dense(4, 4)]
        self.named = {"last": nn.Dense(4, 4)}
        self.relu = nn.ReLU()
        self.primitive = ops.ReLU()
        self.norm = None
        self.weight = ms.Parameter(ms.Tensor.from_numpy(np.ones((4, 4), np.float32)), name="weight")
        self.factor = 3

    def features(self, x):
        return self.relu(self.layer2(x))


def model_of(construct, **attributes):
    made = type("MyModel", (Base,), {"construct": construct, **attributes})()
    made.set_train(False)
    return made


def one_after_the_other(self, x):
    x = self.layer1(x)
    x = self.layer2(x)
    x = self.layer3(x)
    return x  # noqa: RET504 (the usual form)


def nested(self, x):
    return self.layer3(self.relu(self.layer2(self.relu(self.layer1(x)))))


def loops(self, x):
    for layer in self.layers:
        x = layer(x)
    for number in range(len(self.layers)):
        x = self.layers[number](x)
    return self.named["last"](self.plain[0](x))


def functions(self, x):
    x = ops.relu(self.layer1(x))
    x = mint.nn.functional.relu(x)
    x = self.primitive(ops.softmax(x, axis=-1))
    x = helper(x)
    x = SCALE * x - 1
    x = x / math.sqrt(4.0)
    x = -x
    return self.layer2(x.reshape(-1, 4).astype(ms.float32)) + self.factor


def methods(self, x):
    if self.training or self.norm is not None:
        x = self.norm(x)
    if self.layers:
        x = self.features(x)
    return self.layer1(x)


CHAINS = [(one_after_the_other, 3), (nested, 5), (loops, 6), (functions, 14), (methods, 3)]


@pytest.mark.parametrize(("construct", "count"), CHAINS, ids=[construct.__name__ for construct, _ in CHAINS])
def test_a_chain_is_found_and_gives_what_the_model_gives_in_another_process(construct, count):
    model = model_of(construct)
    assert len(trace_chain(model)) == count
    found = stages.stages_of(model)
    x = ms.Tensor.from_numpy(np.random.default_rng(0).standard_normal((5, 4), np.float32))
    want = model(x).asnumpy()
    assert np.array_equal(stages.ModelPart(found)(x).asnumpy(), want)
    applied = [stage for stage in found if isinstance(stage.cell, chain.Applied)]
    for before, after in zip(applied, pickling.load_stages(pickling.dump_stages(applied)), strict=True):
        assert np.array_equal(after.cell(x).asnumpy(), before.cell(x).asnumpy())
    names = [name for name, _ in model.cells_and_names()]
    assert [stage.name for stage in found if stage.cell is model.layer1] in (["layer1"], [])
    assert "layer1" in names


def twice(self, x):
    return x + self.layer1(x)


def another_value(self, x):
    y = self.layer1(x)
    self.layer2(y)
    return y


def late(self, x):
    y = self.layer1(x)
    return self.layer2(x) if y is None else x


def two_outputs(self, x):
    x = self.layer1(x)
    return x, x


def with_parameter(self, x):
    return ops.matmul(self.layer1(x), self.weight)


def by_parameter(self, x):
    return self.layer1(x) * self.weight


def branches(self, x):
    return self.layer1(x) if x.sum() > 0 else self.layer2(x)


def by_shape(self, x):
    return self.layer1(x.reshape(x.shape[0], -1))


def by_type(self, x):
    return self.layer1(x[0] if isinstance(x, tuple) else x)


def unpacks(self, x):
    first, _ = self.layer1(x)
    return first


def caught(self, x):
    try:
        return self.layer1(x) if x.shape else x
    except Exception:
        return self.layer1(x)


def printed(self, x):
    print(f"{x}")
    return self.layer1(x)


def at_random(self, x):
    return self.layer1(x) if random.random() < 0.5 else self.layer2(x)


def remembers(self, x):
    self.last = x
    return self.layer1(x)


def tells_a_cell(self, x):
    self.layer1.scale = 2
    return self.layer1(x)


def calls_itself(self, x):
    return self(self.layer1(x))


def two_arguments(self, x, y):
    return self.layer1(x)


def an_option(self, x, scale=1.0):
    return self.layer1(x)


def with_more(self, x):
    return self.layer1(x, 2)


def nothing(self, x):
    return None


def captured(self, x):
    return CAPTURES(self.layer1(x))


def make_capturing():
    cell = nn.Dense(4, 4)
    return lambda x: cell(x) * 2


CAPTURES = make_capturing()
NO_CHAINS = [
    (twice, "add with more than one value"),
    (another_value, "does not return the output of its last call alone"),
    (late, "uses its argument more than once|does not return"),
    (two_outputs, "does not return"),
    (with_parameter, "matmul with more than one value and constants"),
    (by_parameter, "mul with more than one value and constants"),
    (branches, "asks for gt|uses its argument more than once"),
    (by_shape, "looks at shape of its argument"),
    (by_type, "looks at the type of its argument"),
    (unpacks, "asks for iter of the output of layer1"),
    (caught, "looks at shape"),
    (printed, "asks for format"),
    (at_random, "calls random without the value"),
    (remembers, "sets the cell's attribute last"),
    (tells_a_cell, "sets the cell's attribute scale"),
    (calls_itself, "calls itself"),
    (two_arguments, "exactly one argument"),
    (an_option, "exactly one argument"),
    (with_more, "something else than one value"),
    (nothing, "does not return"),
    (captured, "may depend on more than its argument"),
]


@pytest.mark.parametrize(("construct", "words"), NO_CHAINS, ids=[construct.__name__ for construct, _ in NO_CHAINS])
def test_what_is_no_chain_is_refused_with_the_reason(construct, words):
    with pytest.raises(NotAChainError, match=words):
        trace_chain(model_of(construct))
    with pytest.raises(stages.UsageError, match=f"(?s)MyModel.*({words}).*stages"):
        stages.stages_of(model_of(construct))


def test_a_construct_replaced_on_the_instance_is_what_counts():
    model = model_of(one_after_the_other)
    model.construct = nested.__get__(model)
    assert len(trace_chain(model)) == 5
    model.construct = lambda x: x
    assert trace_chain(model) == []


def test_a_sequence_with_a_replaced_construct_is_what_that_calls():
    model = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 4))

    def backwards(self, x):
        for cell in list(self)[::-1]:
            x = cell(x)
        return self[len(self) - 1](x)

    model.construct = backwards.__get__(model)
    assert [stage.cell for stage in stages.stages_of(model)] == [model[2], model[1], model[0], model[2]]


def test_a_cell_with_a_hook_does_more_than_its_construct():
    model = model_of(one_after_the_other)
    model.register_forward_hook(lambda cell, inputs, output: output * 2)
    with pytest.raises(NotAChainError, match="hooks"):
        trace_chain(model)
