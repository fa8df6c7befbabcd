"""Datasets whose samples depend on something that is kept between them, made as a new process makes them."""

from __future__ import annotations

import itertools
import json
import struct
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import text

STEPS, BATCH = 8, 4
ROWS = STEPS * BATCH

GENERATOR = np.random.default_rng(1)
STREAM = itertools.count()
helpers = types.ModuleType("helpers")


def write_files(folder: Path) -> None:
    """Write the files that readers read."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(2):
        numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        (folder / f"{part}.txt").write_text("".join(f"{number}\n" for number in numbers))
        (folder / f"{part}.csv").write_text("".join(f"{number}.5\n" for number in numbers))
        lines = [{"sentence1": "a", "sentence2": "b", "label": f"{number}"} for number in numbers]
        (folder / f"{part}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"{part}.tfrecord").write_bytes(b"".join(map(_tfrecord, numbers)))
    (folder / "stream.txt").write_text("".join(f"{number}\n" for number in range(9 * ROWS)))


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord files."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    rest ^= 0xFFFFFFFF
    return struct.pack("<I", ((rest >> 15 | rest << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _tfrecord(number: int) -> bytes:
    """Return a record with a float in the column ``x``."""

    def field(key: int, data: bytes) -> bytes:
        return bytes([key << 3 | 2, len(data)]) + data

    value = field(2, field(1, struct.pack("<f", number)))
    example = field(1, field(1, field(1, b"x") + field(2, value)))
    length = struct.pack("<Q", len(example))
    return length + _checksum(length) + example + _checksum(example)


def text_reader(folder: Path) -> ds.Dataset:
    files = [f"{folder}/{part}.txt" for part in range(2)]
    return ds.TextFileDataset(files, shuffle=True).map(text.ToNumber(ms.float32), ["text"])


def csv_reader(folder: Path) -> ds.Dataset:
    files = [f"{folder}/{part}.csv" for part in range(2)]
    return ds.CSVDataset(files, column_defaults=[0.0], column_names=["x"], shuffle=True)


def tfrecord_reader(folder: Path) -> ds.Dataset:
    schema = ds.Schema()
    schema.add_column("x", ms.float32, shape=[1])
    return ds.TFRecordDataset([f"{folder}/{part}.tfrecord" for part in range(2)], schema, shuffle=True)


def clue_reader(folder: Path) -> ds.Dataset:
    files = [f"{folder}/{part}.json" for part in range(2)]
    data = ds.CLUEDataset(files, task="AFQMC", usage="train", shuffle=True)
    return data.project(["label"]).map(text.ToNumber(ms.float32), ["label"])


class Rows:
    """Random access; `factor` is other contents of the same size."""

    factor = 1

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.float32]:
        return (np.float32(self.factor * index + self.more(index)),)

    def more(self, index: int) -> float:
        return 0.0


class OfModule(Rows):
    def more(self, index: int) -> float:
        return GENERATOR.random()


class OfClass(Rows):
    generator = np.random.default_rng(1)

    def more(self, index: int) -> float:
        return self.generator.random()


class OfCounts(Rows):
    def __init__(self, counts: Counter | np.ndarray) -> None:
        self.counts = counts

    def more(self, index: int) -> float:
        self.counts[index] += 1
        return float(self.counts[index]) / 7


class Noise:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x + np.float32(self.generator.random())


class Streaming:
    """An epoch is what comes next of a stream."""

    def __init__(self, stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return ROWS

    def __iter__(self):
        for value in itertools.islice(self.stream, ROWS):
            yield (np.float32(value),)


class Lines(Streaming):
    """The lines of a file that stays open."""

    def __init__(self, path: str) -> None:
        super().__init__(open(path))  # noqa: SIM115 (open as long as the source)

    def __del__(self) -> None:
        self.stream.close()


def drawn() -> object:
    rng = np.random.default_rng(1)
    while True:
        yield rng.random()


def of_global():
    for _ in range(ROWS):
        yield (np.float32(next(STREAM)),)


def rows(source, **options) -> ds.Dataset:
    return ds.GeneratorDataset(source, ["x"], **options)


def _by_module(x: np.ndarray) -> np.ndarray:
    return helpers.noise(x)


def _module_function() -> ds.Dataset:
    helpers.generator = np.random.default_rng(1)
    helpers.noise = lambda x: x + np.float32(helpers.generator.random())
    return rows(Rows(), shuffle=True).map(_by_module, ["x"], num_parallel_workers=1)


def _mapped() -> ds.Dataset:
    return rows(Rows(), shuffle=True).map(Noise(), ["x"], num_parallel_workers=1)


def _module_level() -> ds.Dataset:
    vars(sys.modules[__name__])["GENERATOR"] = np.random.default_rng(1)
    return rows(OfModule(), shuffle=True)


def _class_attribute() -> ds.Dataset:
    OfClass.generator = np.random.default_rng(1)
    return rows(OfClass(), shuffle=True)


def _global_iterator() -> ds.Dataset:
    vars(sys.modules[__name__])["STREAM"] = itertools.count()
    return rows(of_global)


def other_contents() -> ds.Dataset:
    """Return other samples than `plain`, as many and as large."""
    source = Rows()
    source.factor = 2
    return rows(source, shuffle=True)


def plain() -> ds.Dataset:
    return rows(Rows(), shuffle=True)


READERS: dict[str, Callable[[Path], ds.Dataset]] = {
    "text": text_reader,
    "CSV": csv_reader,
    "TFRecord": tfrecord_reader,
    "CLUE": clue_reader,
}
"""Made by MindSpore alone; their own shuffle has a seed."""

CODE: dict[str, Callable[[Path], ds.Dataset]] = {
    "generator at module level": lambda folder: _module_level(),
    "generator as a class attribute": lambda folder: _class_attribute(),
    "generator in a callable given to map": lambda folder: _mapped(),
    "generator behind module.function": lambda folder: _module_function(),
    "open file": lambda folder: rows(Lines(f"{folder}/stream.txt")),
    "generator object": lambda folder: rows(Streaming(drawn())),
    "global iterator": lambda folder: _global_iterator(),
    "counts in a large dict": lambda folder: rows(OfCounts(Counter(range(9000))), shuffle=True),
    "counts in a large array": lambda folder: rows(OfCounts(np.zeros(90000)), shuffle=True),
}
"""Code of the program makes the samples, and keeps something between them."""


def batches(make: Callable[[Path], ds.Dataset], folder: Path) -> ds.Dataset:
    """Return the dataset of a new process."""
    ds.config.set_seed(11)
    return make(folder).batch(BATCH)
