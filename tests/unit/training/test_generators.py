"""The generators of a process: what was drawn from them is drawn again after they were restored."""

import random

import numpy as np
import pytest

from ms_recover.formats.state import decode_state, encode_state

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.common.generator import default_generator  # noqa: E402

from ms_recover.training.generators import (  # noqa: E402
    changed_generators,
    generator_states,
    random_operators,
    restore_generators,
)
from ms_recover.training.state_values import from_state, to_state  # noqa: E402


@pytest.fixture(autouse=True)
def _restored():
    mode, before = ms.get_context("mode"), generator_states()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=mode)
    restore_generators(before)


def draw():
    steps = ms.Tensor(12, ms.int64)
    return [
        [random.random(), random.gauss(0, 1)],
        [np.random.random(), np.random.normal()],
        [part.asnumpy().tolist() for part in default_generator._step(steps)],
        [ops.rand(3).asnumpy().tolist(), ops.dropout(ms.Tensor(np.ones(64, np.float32))).asnumpy().tolist()],
    ]


def test_what_was_drawn_is_drawn_again():
    ms.set_seed(3)
    ms.manual_seed(4)
    draw()
    states = decode_state(encode_state(to_state(generator_states(), "generators")))
    expected = [draw(), draw()]
    ms.set_seed(5)
    draw()
    restore_generators(from_state(states))
    assert [draw(), draw()] == expected
    assert expected[0] != expected[1]


def test_a_change_shows_which_was_drawn_from():
    ms.set_seed(3)
    before = generator_states()
    assert changed_generators(before, generator_states()) == frozenset()
    random.random()
    assert changed_generators(before, generator_states()) == {"python"}
    np.random.random()
    ops.rand(3)
    changed = changed_generators(before, generator_states())
    assert changed - {"mindspore"} == {"python", "numpy", "operators"}  # before 2.10 ops.rand draws from both
    default_generator._step(ms.Tensor(12, ms.int64))
    assert changed_generators(before, generator_states()) == {"python", "numpy", "operators", "mindspore"}


def test_some_are_restored_and_others_not():
    before = generator_states()
    random.random()
    np.random.random()
    restore_generators(before, ["numpy"])
    assert changed_generators(before, generator_states()) == {"python"}


class Noise(nn.Cell):
    def __init__(self):
        super().__init__()
        self.uniform = ops.UniformReal(seed=2)


def test_random_operators_are_found():
    found = nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=0.5), nn.SequentialCell(Noise(), nn.Dropout2d(0.1)))
    assert random_operators(found, {}) == ["Dropout", "Dropout2d", "Noise"]
    assert random_operators(nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=0.0)), generator_states()) == []
    states = {"operators": {"seed": 1, "counts": {("init", 0): 1, ("uniform", 0): 2}}}
    assert random_operators(nn.Dense(2, 2), states) == []
    ms.set_context(mode=ms.GRAPH_MODE)
    assert random_operators(nn.Dense(2, 2), states) == ["uniform"]
