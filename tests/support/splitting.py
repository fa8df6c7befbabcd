"""Models to split, and a check that a splitter leaves nothing behind."""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ms_recover.splitting.stages import absorb_first_operator_error

ROOT = Path(__file__).parents[2]
LONG = 180
"""Longest wait of a test, in seconds."""
MARK = "MS_RECOVER_TEST_MARK"
RAISES, EXITS, FILLS, STALLS = 1000.0, 2000.0, 3000.0, 4000.0
"""First values of a row that make `Moody` raise, exit, fill the memory or stall."""


def wait_for(condition, expected, limit=LONG):
    """Wait until a condition holds; return what it returned."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit} s: {expected}"
        time.sleep(0.02)
    return found


def close_to(got, want):
    """Whether arrays are equal up to 1e-6 of the largest value.

    Not element by element: an element near 0 is the sum of large ones that cancel out, and MindSpore sums batches of
    different sizes in different orders; the difference is in proportion to the summands.
    """
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and got.dtype == want.dtype and np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


class Residual(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Dense(width, width, activation="relu")

    def construct(self, x):
        return x + self.inner(x)


class Encoder(nn.Cell):
    """A cell with a method ``stages()`` instead of a SequentialCell."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = {"dropout": 0.0, "batch_first": True}
        self.layers = nn.CellList([nn.TransformerEncoderLayer(16, 2, 32, **layer) for _ in range(2)])
        self.head = nn.Dense(16, 4)

    def stages(self):
        return [self.embed, *self.layers, self.head]

    def construct(self, tokens):
        value = self.embed(tokens)
        for layer in self.layers:
            value = layer(value)
        return self.head(value)


class Front(nn.Cell):
    """Takes every type of argument, and returns a dict to the next stage."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(8, 16)

    def construct(self, given, *more, mask=None, scale=1.0, how="sum", flags=(True, None)):
        if isinstance(given, dict):
            given = given["a"], given["b"]
        first, second = given if isinstance(given, tuple | list) else (given, more[0])
        both = first + second if how == "sum" else first - second
        value = self.dense(both) * scale
        return {"value": value if mask is None else value * mask, "wide": first.astype(ms.bfloat16), "flags": flags}


class Back(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 4)

    def construct(self, given):
        out = self.dense(given["value"])
        pair = (out.argmax(1), [ops.relu(out), given["wide"] * 2])
        return {"out": out, "pair": pair, "flags": given["flags"], "name": "back", "none": None}


class Moody(nn.Cell):
    """A stage that returns its input, and fails on certain rows."""

    def construct(self, x):
        if (x == RAISES).any():
            raise ValueError("such a row again")
        if (x == EXITS).any():
            os._exit(77)
        if (x == STALLS).any():
            time.sleep(10 * LONG)
        if (x == FILLS).any():
            import resource

            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[0])
            limits = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), limits[1]))
            try:
                np.ones(1 << 36, np.uint8)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)
        return x


def mlp(width=128, layers=3):
    blocks = [Residual(width) for _ in range(layers)]
    return nn.SequentialCell(nn.Dense(64, width), *blocks, nn.Dense(width, 10))


def moody():
    return nn.SequentialCell(nn.Dense(64, 64), Moody(), Residual(64), nn.Dense(64, 10))


def convolutional():
    head = nn.Conv2d(3, 8, 3, has_bias=True), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2, 2)
    model = nn.SequentialCell(*head, nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dense(128, 10))
    drawn = np.random.default_rng(3)
    for name in ("moving_mean", "moving_variance", "gamma", "beta"):  # so that it is not the identity
        parameter = getattr(model[1], name)
        parameter.set_data(ms.Tensor.from_numpy(drawn.uniform(0.5, 1.5, parameter.shape).astype(np.float32)))
    return model


class Many(nn.Cell):
    def __init__(self):
        super().__init__()
        self.front, self.back = Front(), Back()

    def stages(self):
        return self.front, self.back

    def construct(self, *args, **kwargs):
        return self.back(self.front(*args, **kwargs))


class Unsupported(nn.Cell):
    """An operator without a kernel for the type of its input, whose output is then cast."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.operator = ops.Erfinv()

    def construct(self, x):
        return self.operator(x.astype(ms.bfloat16)).astype(self.kind)


MODELS = {"mlp": mlp, "convolutional": convolutional, "encoder": Encoder, "many": Many, "moody": moody}
SHAPES = {"mlp": (64,), "moody": (64,), "convolutional": (3, 8, 8), "encoder": (6,)}


def make(kind, **options):
    """Make a model with weights that are the same each time."""
    absorb_first_operator_error()
    ms.set_seed(1)
    model = MODELS[kind](**options)
    model.set_train(False)
    return model


def factory():
    """Make the model that tests name by ``tests.support.splitting:factory``."""
    return make("mlp")


def given(kind, rows, seed=0):
    """Return an input, as a numpy array."""
    drawn = np.random.default_rng(seed)
    if kind == "encoder":
        return drawn.integers(0, 50, (rows, *SHAPES[kind]), np.int32)
    return drawn.standard_normal((rows, *SHAPES[kind]), np.float32)


def outcome(model, array):
    """Return what a model gives, as a numpy array."""
    return model(ms.Tensor.from_numpy(array.copy())).asnumpy()


def chunks_done(splitter):
    """Return for each device the number of computed chunks in the report."""
    head, *rows = splitter.summary().split("\n\n")[0].splitlines()
    end = head.index("chunks") + len("chunks")
    return [int(row[:end].split()[-1]) for row in rows]


def marked(mark):
    """Return the processes with a mark in their environment: process id to state and command."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(entry.path, "environ").read_bytes().split(b"\0"):
                state = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0]
                found[int(entry.name)] = f"{state} {Path(entry.path, 'cmdline').read_text()[-60:]}"
    return found


def children():
    """Return the children of this process, ended ones that were not waited for included."""
    found = []
    for task in os.scandir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += Path(task.path, "children").read_text().split()
    return sorted(found)


def census():
    """Count everything that this process could leak."""
    gc.collect()
    links = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry.path).split(":")[0])
    kept = [link for link in links if not link.startswith("/proc")]
    return {
        "sockets": kept.count("socket"),
        "descriptors": len(kept),
        "children": children(),
        "threads": sorted(thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")),
        "tasks": [each for each in gc.get_objects() if type(each) is asyncio.Task and not each.done()],
        "files": sorted(os.listdir(tempfile.gettempdir())),
    }


class Watched:
    """Checks that a test leaves nothing behind.

    Parameters
    ----------
    monkeypatch, tmp_path
        Of pytest.
    """

    def __init__(self, monkeypatch, tmp_path):
        self.mark = secrets.token_hex(8)
        place = tmp_path / "temporary"
        place.mkdir()
        monkeypatch.setenv(MARK, self.mark)
        monkeypatch.setenv("TMPDIR", str(place))
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        if str(ROOT) not in sys.path:
            monkeypatch.syspath_prepend(str(ROOT))  # workers import this module
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(":"))
        self.place = place
        outcome(make("mlp"), given("mlp", 20))  # MindSpore's first operator opens files for good
        self.before = census()

    def check(self):
        """Fail when anything is left."""
        wait_for(lambda: not marked(self.mark), f"processes end: {marked(self.mark)}", 30)
        now = census()
        assert {**now, "descriptors": None} == {**self.before, "descriptors": None}
        assert now["descriptors"] <= self.before["descriptors"]

    def end(self):
        """End the processes that are left."""
        for number in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
