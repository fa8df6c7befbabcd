"""What cells keep: whatever is put there and changed is found, saved and restored, wherever Python can keep it."""

import gc
import random
from collections import deque
from types import SimpleNamespace
from weakref import ref

import numpy as np
import pytest

from ms_recover.formats.state import decode_state, encode_state
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import amp, nn  # noqa: E402

from ms_recover.training.attributes import _mark, changed_values, note_begin, restore_values  # noqa: E402
from ms_recover.training.cell_values import leaves  # noqa: E402
from ms_recover.training.deciding.own_slice import OwnSlice  # noqa: E402
from ms_recover.training.state_values import from_state, to_state  # noqa: E402

OWN = OwnSlice(0, Step(1, 1), "/tree/test-1_1.ckpt")


class Box:
    """An object of the program that is no cell."""

    def __init__(self, value):
        self.value = value


class Holder(nn.Cell):
    def __init__(self, value, inner):
        super().__init__()
        self.dense, self.value, self.inner = nn.Dense(2, 2), value, inner

    def construct(self, x):
        return self.dense(x)


def draw(rng, depth=0):
    """Return a value that a program may keep, and a function that changes it and returns what is kept then."""
    number = rng.randrange(1000)
    plain = rng.choice([number, number / 7, f"n{number}", None, number % 2 == 0, b"%d" % number])
    kinds = ["scalar", "list", "dict", "array", "tensor", "moved", "generator", "parameter", "deque", "set"]
    kind = rng.choice(kinds if depth > 1 else [*kinds, "object", "objects", "namespace"])
    if kind == "scalar":
        return plain, lambda: ("other", number)
    if kind == "list":
        kept = [number, [plain]]
        return kept, lambda: kept.append((number, plain)) or kept
    if kind == "dict":
        kept = {"a": plain, 3: [number]}
        return kept, lambda: kept.update(b=number + 1) or kept
    if kind == "deque":
        kept = deque([number], maxlen=4)
        return kept, lambda: kept.append(number + 1) or kept
    if kind == "set":
        kept = {number}
        return kept, lambda: kept.add(number + 1) or kept
    if kind == "array":
        kept = np.full((2, 3), number, np.float64)
        return kept, lambda: kept.__iadd__(1)
    if kind == "tensor":
        kept = ms.Tensor(np.full((2,), number, np.float32))
        return kept, lambda: kept.copy_(ms.Tensor(np.full((2,), number + 1, np.float32)))
    if kind == "moved":
        return ms.Tensor(np.full((2,), number, np.float32)), lambda: ms.Tensor(np.full((3,), number + 1, np.int32))
    if kind == "generator":
        kept = rng.choice([random.Random, np.random.default_rng, np.random.RandomState])(number)
        return kept, lambda: (kept.random() if not isinstance(kept, np.random.RandomState) else kept.rand()) and kept
    if kind == "parameter":
        kept = rng.choice([[], [plain]])
        kept = [*kept, ms.Parameter(ms.Tensor(np.full((2,), number, np.float32)), name=f"p{number}")]
        return kept, lambda: kept[-1].copy_(ms.Tensor(np.full((2,), number + 1, np.float32))) is not None and kept
    if kind == "objects":
        inner, change = draw(rng, depth + 1)
        kept = [Box(inner), Box(plain)]

        def both():
            kept[0].value, kept[1].value = change(), number + 1
            return kept

        return kept, both
    inner, change = draw(rng, depth + 1)
    kept = Box(inner) if kind == "object" else SimpleNamespace(value=inner)

    def change_it():
        kept.value = change()
        return kept

    return kept, change_it


def shown(value):
    """Return what can be compared of a value."""
    if isinstance(value, (Box, SimpleNamespace)):
        return ["object", shown(value.value)]
    if isinstance(value, (list, tuple, deque)):
        return [type(value).__name__, *map(shown, value)]
    if isinstance(value, dict):
        return sorted((repr(key), shown(item)) for key, item in value.items())
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, (ms.Tensor, np.ndarray)):
        array = value.asnumpy() if isinstance(value, ms.Tensor) else value
        return type(value).__name__, str(array.dtype), array.shape, array.tobytes()
    return repr(value)


def cells_of(network):
    return list(network.cells_and_names())


def through_a_file(saved):
    return from_state(decode_state(encode_state({"values": to_state(saved, "values")}))["values"])


@pytest.mark.parametrize("seed", range(120))
def test_whatever_a_cell_keeps_goes_on(seed, caplog):
    first, again = (draw(random.Random(seed)) for _ in range(2))
    inner, inner_again = (draw(random.Random(seed + 10_000)) for _ in range(2))
    network = Holder(first[0], Holder(inner[0], None))
    note_begin(cells_of(network))
    saved, unsavable = changed_values(cells_of(network))
    assert all(one["kind"] == "parameter" for one in saved.values())
    network.value, network.inner.value, network.late = first[1](), inner[1](), seed
    saved, unsavable = changed_values(cells_of(network))
    assert unsavable == ()
    other = Holder(again[0], Holder(inner_again[0], None))
    restore_values(cells_of(other), through_a_file(saved), OWN, graph=False, compiled=False)
    assert shown(other.value) == shown(network.value)
    assert shown(other.inner.value) == shown(network.inner.value)
    assert other.late == seed
    assert caplog.messages == []
    left, _ = changed_values(cells_of(other))
    assert left.keys() == saved.keys()


def whole_walk(network, begun):
    """Return the names of what has changed, by everything that every cell keeps, without a glance at what is known."""
    now = {str(leaf): (leaf.kind, _mark(leaf)) for leaf in leaves(cells_of(network))}
    return {name for name, one in now.items() if one[0] == "parameter" or begun.get(name) != one}


KEPT = (
    lambda number: number,
    float,
    lambda number: number % 2 == 0,
    lambda number: f"n{number}",
    lambda number: (number, ("a", None)),
    lambda number: [number, 1.5, "b"],
    lambda number: [],
    lambda number: [(number, 2), None],
    lambda number: {"a": number},
    lambda number: [np.full(2, number)],
    lambda number: ms.ops.ReLU(),
    lambda number: cells_of,
    Box,
    lambda number: SimpleNamespace(value=[number]),
    np.float32,
    lambda number: ms.ParameterTuple([]),
)


def alter(rng, cell):
    """Change one thing that a cell keeps, in place or not, as programs do."""
    names = [name for name in vars(cell) if name.startswith("v")]
    name, number = rng.choice(names), rng.randrange(1000)
    value = vars(cell)[name]
    inner = value.value if isinstance(value, SimpleNamespace) else value
    way = rng.choice(["set", "within", "swap", "add", "remove", "same"])
    if way == "set":
        setattr(cell, name, rng.choice(KEPT)(number))
    elif way == "within" and type(inner) is list and inner:
        inner[rng.randrange(len(inner))] = rng.choice(KEPT)(number)
    elif way == "within" and isinstance(value, Box):
        value.value = number
    elif way == "within" and isinstance(value, dict):
        value["a"] = [number]
    elif way == "swap" and type(inner) is list:
        inner.reverse()
        inner.append(True)
    elif way == "add":
        setattr(cell, f"v{number}", rng.choice(KEPT)(number))
    elif way == "remove" and len(names) > 1:
        delattr(cell, name)
        setattr(cell, f"v{number}", value)  # as many as before
    elif way == "same" and isinstance(value, (int, float)):
        setattr(cell, name, type(value)(float(value)))  # an equal one


@pytest.mark.parametrize("seed", range(60))
def test_a_glance_misses_nothing_that_a_whole_walk_finds(seed):
    rng = random.Random(seed)
    network = Holder(1, Holder(2, None))
    for cell in (network, network.inner):
        for place in range(rng.randrange(1, 12)):
            setattr(cell, f"v{place}", rng.choice(KEPT)(place))
    begun = {str(leaf): (leaf.kind, _mark(leaf)) for leaf in leaves(cells_of(network))}
    note_begin(cells_of(network))
    for _ in range(6):
        alter(rng, rng.choice([network, network.inner]))
        saved, unsavable = changed_values(cells_of(network))
        assert {*saved, *unsavable} == whole_walk(network, begun)


def test_what_is_compared_keeps_no_network_alive():
    network = Holder(1, None)
    network.own = network.construct  # as a trainer keeps the forward that it calls
    network.pair = (1, "a")
    note_begin(cells_of(network))
    changed_values(cells_of(network))
    gone = ref(network)
    del network
    gc.collect()
    assert gone() is None


def test_what_changed_behind_the_slice_is_put_back_in_the_process():
    network = Holder(1, Holder([1], None))
    note_begin(cells_of(network))
    network.value = 2
    saved, _ = changed_values(cells_of(network))
    network.value = 3
    network.inner.value.append(5)
    restore_values(cells_of(network), through_a_file(saved), OWN, graph=False, compiled=False)
    assert network.value == 2
    assert network.inner.value == [1]


def test_a_loss_scaler_that_cells_share_is_saved_once():
    scaler = amp.DynamicLossScaler(8.0, 2, 2)
    network = Holder(scaler, Holder(scaler, None))
    saved, _ = changed_values(cells_of(network))
    assert sorted(saved) == ["value.counter", "value.scale_value"]


def test_a_place_that_is_gone_is_named(caplog):
    network = Holder(Box([1]), None)
    note_begin(cells_of(network))
    network.value.value.append(2)
    saved, _ = changed_values(cells_of(network))
    other = Holder(7, None)
    restore_values(cells_of(other), through_a_file(saved), OWN, graph=False, compiled=False)
    (said,) = caplog.messages
    assert "these values of cells are not restored, because they are not there as they were: value.value" in said


@pytest.mark.parametrize("changed", [lambda net: None, lambda net: net.set_train(False), lambda net: net.set_grad()])
def test_what_mindspore_keeps_in_cells_is_none_of_it(changed):
    network = nn.SequentialCell(nn.Dense(2, 2), nn.BatchNorm1d(2), nn.Dropout(p=0.5))
    note_begin(cells_of(network))
    changed(network)
    network(ms.Tensor(np.ones((2, 2), np.float32)))
    assert changed_values(cells_of(network)) == ({}, ())
