"""A split model gives what the model gives, whatever it is, however it is split and called."""

import itertools
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter, Shared  # noqa: E402
from tests.support.splitting import (  # noqa: E402
    LONG,
    ROOT,
    chunks_done,
    close_to,
    given,
    make,
    outcome,
)

ALL = bool(os.environ.get("MS_RECOVER_ALL_COMBINATIONS"))
COMBINATIONS = list(itertools.product(("mlp", "convolutional", "encoder"), (1, 2, 3, 4), ("layers", "batch")))
FEW = [
    ("mlp", 1, "layers"),
    ("mlp", 3, "batch"),
    ("convolutional", 2, "layers"),
    ("convolutional", 1, "batch"),
    ("encoder", 4, "layers"),
    ("encoder", 1, "batch"),
]
"""Each model with each split, each number of devices."""


@pytest.mark.parametrize(("kind", "devices", "split"), COMBINATIONS if ALL else FEW)
def test_the_output_equals_that_of_the_model(kind, devices, split):
    model = make(kind)
    with ModelSplitter(model, devices, split) as splitter:
        assert len(splitter.parts) == (devices if split == "layers" else 1)
        for rows in (1, 7, 100):
            x = given(kind, rows)
            want = outcome(model, x)
            got = splitter.forward(ms.Tensor.from_numpy(x.copy()))
            assert isinstance(got, ms.Tensor)
            assert close_to(got.asnumpy(), want), (rows, np.abs(got.asnumpy() - want).max())
            assert splitter.last_report.rows == rows
            assert splitter.last_report.missing == ()
            if splitter.last_report.chunks == 1 and devices == 1:
                assert np.array_equal(got.asnumpy(), want), "one chunk is the batch itself"
            assert np.array_equal(splitter(x).asnumpy(), got.asnumpy()), "it is not the same twice"
        # rows come back in order: each row's answer is that of the row alone
        pick = given(kind, 100)[40:41]
        assert close_to(splitter.forward(pick).asnumpy(), outcome(model, pick))


def test_chunks_keep_the_bits():
    """From 16 rows on, matrix products add up in one order: chunks give what the batch gives, to the bit."""
    model = make("mlp")
    with ModelSplitter(model, 2, threads=1) as splitter:
        x = given("mlp", 128)
        assert np.array_equal(splitter.forward(x).asnumpy(), outcome(model, x))
        assert splitter.last_report.chunks == 8


def same(got, want):
    """Compare nested outputs."""
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    if isinstance(want, tuple | list):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, ms.Tensor):
        assert isinstance(got, ms.Tensor)
        assert got.dtype == want.dtype
        return close_to(got.astype(ms.float32).asnumpy(), want.astype(ms.float32).asnumpy())
    return type(got) is type(want) and got == want


@pytest.mark.skipif(
    tuple(map(int, ms.__version__.split(".")[:2])) < (2, 9), reason="this MindSpore multiplies no bfloat16 on CPU"
)
def test_every_type_of_argument_reaches_the_model():
    """Three devices for two stages; each stage is its own part, one of them is there twice."""
    model = make("many")
    drawn = np.random.default_rng(5)
    a, b = (ms.Tensor.from_numpy(drawn.standard_normal((50, 8), np.float32)) for _ in "ab")
    mask = ms.Tensor.from_numpy(drawn.integers(0, 2, (50, 16)).astype(np.float32))
    weights = ms.Tensor.from_numpy(drawn.standard_normal((1, 16), np.float32))
    with ModelSplitter(model, 3, chunk_rows=7) as splitter:
        assert splitter.parts == (range(1), range(1, 2))
        for args, kwargs in [
            ((a, b), {}),
            (((a, b),), {}),
            (([a, b],), {}),
            (({"a": a, "b": b},), {"scale": 0.5, "how": "difference", "flags": (False, "x", [1, None, 2.5])}),
            ((a, b), {"mask": mask, "flags": {"deep": [(3,)]}}),
            (((a, b),), {"mask": mask.astype(ms.bfloat16)}),
        ]:
            got, want = splitter.forward(*args, **kwargs), model(*args, **kwargs)
            assert same(got, want), (args, kwargs)
            assert splitter.last_report.chunks == 8
        assert same(splitter.forward(a, b, mask=Shared(weights)), model(a, b, mask=weights))
        assert same(splitter.forward(a.asnumpy(), b.asnumpy()), model(a, b)), "numpy"
        assert same(splitter.forward(np.asfortranarray(a.asnumpy()), b.asnumpy()[::-1]), model(a, b[::-1])), "strides"
        assert all(chunks_done(splitter)), "a device is idle"

        for args, kwargs in [((a, b[:49]), {}), ((), {}), ((3,), {}), ((a, b, object()), {})]:
            with pytest.raises(UsageError):
                splitter.forward(*args, **kwargs)
        assert same(splitter.forward(a, b), model(a, b)), "what was refused has done harm"
        empty, want = splitter.forward(a.asnumpy()[:0], b.asnumpy()[:0]), model(a, b)
        assert (empty["out"].shape, empty["out"].dtype) == ((0, 4), want["out"].dtype)
        assert (empty["pair"][0].shape, empty["pair"][0].dtype) == ((0,), want["pair"][0].dtype)
        assert (empty["pair"][1][1].shape, empty["pair"][1][1].dtype) == ((0, 8), want["pair"][1][1].dtype)
        assert (splitter.last_report.rows, splitter.last_report.missing) == (0, ())


SCRIPT = """
import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ms_recover.splitting import ModelSplitter
from ms_recover.splitting.stages import absorb_first_operator_error

absorb_first_operator_error()
ms.set_context(mode=int(sys.argv[1]))


def twice(x):
    return x * 2


class Layer(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.dense = nn.Dense(width, width)
        self.shift = ms.Tensor.from_numpy(np.arange(width, dtype=np.float32))

    def construct(self, x):
        return ops.relu(self.dense(twice(x))) + self.shift


class MyModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer(64) for _ in range(3)])
        self.last = nn.Dense(64, 10)

    def stages(self):
        return [*self.layers, self.last]

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


model = MyModel()
model.set_train(False)
x = ms.Tensor.from_numpy(np.random.default_rng(0).standard_normal((100, 64), np.float32))
want = model(x).asnumpy()
with ModelSplitter(model, 2) as splitter:
    for _ in range(2):
        got = splitter.forward(x).asnumpy()
        print("DONE", bool(np.abs(got - want).max() <= 1e-6 * np.abs(want).max()), got.shape)
"""


@pytest.mark.parametrize("mode", [0, 1] if ALL else [0])
def test_classes_of_a_script_are_pickled_by_value(tmp_path, mode):
    """In graph mode, without a guard ``if __name__ == ...``: classes and functions that only the script has."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), str(mode)],
        capture_output=True,
        text=True,
        timeout=LONG,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("DONE True (100, 10)") == 2, done.stdout + done.stderr


def test_factory_two_splitters_and_a_closed_one():
    """Two splitters at once, both made by name."""
    name = "tests.support.splitting:factory"
    assert str(ROOT) in sys.path
    x = given("mlp", 40)
    want = outcome(make("mlp"), x)
    with ModelSplitter(name, 2) as one, FaultTolerantModelSplitter(name, 1, "batch") as other:
        assert not set(one.processes) & set(other.processes)
        assert one.directory != other.directory
        for splitter in (one, other, one):
            assert close_to(splitter.forward(x).asnumpy(), want)
        one.close()
        with pytest.raises(UsageError, match="closed"):
            one.forward(x)
        assert close_to(other.forward(x).asnumpy(), want), "the other's end has done harm"
        one.close()
    for use in (other.reset_device_states, lambda: other(x)):
        with pytest.raises(UsageError, match="closed"):
            use()
