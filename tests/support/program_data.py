"""The datasets of random programs, built with MindSpore."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import text, transforms, vision
from mindspore.mindrecord import FileWriter

from tests.support.program_places import Change, DrawnOut, Stream, counted, make_change
from tests.support.random_programs import READERS, Program

WIDTH, CLASSES = 4, 3
NAMES = ["x", "y"]


def dataset_rows(program: Program) -> int:
    """Return the number of rows of the source, after the change."""
    rows = program.batch * program.batches + program.remainder
    return {"dataset longer": 2 * rows, "dataset shorter": rows // 2}.get(program.change, rows)


class Rows:
    """A source with random access; raises where `fails_after` says."""

    def __init__(self, number: int, count: int, change: Change | None = None) -> None:
        rng = np.random.default_rng(number)
        self.x = rng.standard_normal((count, WIDTH, 1, 1)).astype(np.float32)
        self.y = rng.standard_normal((count, CLASSES)).astype(np.float32)
        self.fails_after: int | None = None
        self.read = 0
        self._change = change

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self.read += 1
        if self.fails_after is not None and self.read > self.fails_after:
            raise ValueError("the disk with the samples is gone")
        return self._changed(self.x[index]), self.y[index]

    def _changed(self, x: np.ndarray) -> np.ndarray:
        return x if self._change is None else self._change(x)

    def generate(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the rows in order."""
        return ((self._changed(x), y) for x, y in zip(self.x, self.y, strict=True))


class Epochs:
    """A source that counts how often it was begun, and gives other samples each time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._begun = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self._begun += 1
        for x, y in zip(self._rows.x, self._rows.y, strict=True):
            yield x * np.float32(1 + self._begun), y


def make_dataset(program: Program, folder: Path) -> tuple[ds.Dataset, Rows]:
    """Return the dataset and its rows; the files of a reader and of what remembers lie in `folder`."""
    if program.shuffle in ("seeded", "buffer"):
        ds.config.set_seed(12 if program.change == "seed" else 11)
    remembers = None if program.place == "none" else make_change(program.place, folder)
    rows = _rows(program, remembers if program.place_in == "source" else None)
    data = _source(program, rows, folder)
    if (program.source not in _SHUFFLES_ITSELF and program.shuffle == "unseeded") or program.shuffle == "buffer":
        data = data.shuffle(8)
    return _with_operations(program, data, remembers if program.place_in == "map" else None), rows


def _rows(program: Program, change: Change | None = None) -> Rows:
    return Rows(program.number + 10**6 * (program.change == "content"), dataset_rows(program), change)


_SHUFFLES_ITSELF = {"rows", "arrays", "sampler", *READERS}


def _source(program: Program, rows: Rows, folder: Path) -> ds.Dataset:
    shuffled = program.shuffle in ("seeded", "unseeded")
    if program.source in READERS:
        return _reader(program.source, rows, folder, shuffled)
    if program.source == "arrays":
        return ds.NumpySlicesDataset({"x": rows.x, "y": rows.y}, shuffle=shuffled)
    if program.source == "sampler":
        return ds.GeneratorDataset(rows, NAMES, sampler=ds.RandomSampler() if shuffled else ds.SequentialSampler())
    if program.source == "rows":
        return ds.GeneratorDataset(rows, NAMES, shuffle=shuffled)
    made: dict[str, Callable[[], object]] = {
        "generator": lambda: rows.generate,
        "epochs": lambda: Epochs(rows),
        "stream": lambda: Stream(folder / "stream.txt", len(rows)),
        "drawn out": lambda: DrawnOut(len(rows)),
        "counted": lambda: counted(len(rows)),
    }
    return ds.GeneratorDataset(made[program.source](), NAMES)


def _with_operations(program: Program, data: ds.Dataset, remembers: Change | None) -> ds.Dataset:
    if "skip" in program.operations:
        data = data.skip(1)
    if "concat" in program.operations:
        more = ds.GeneratorDataset(Rows(program.number + 1, dataset_rows(program)), NAMES, shuffle=False)
        data = data + more.skip(1 if "skip" in program.operations else 0)
    if "flip" in program.operations:
        data = data.map(vision.RandomHorizontalFlip(0.5), ["x"])
    if "map" in program.operations:
        data = data.map(lambda x: x * np.float32(0.5), ["x"])
    if remembers is not None:
        data = data.map(remembers, ["x"], num_parallel_workers=1)
    batch = {"batch halved": program.batch // 2, "batch doubled": program.batch * 2}.get(program.change, program.batch)
    options = {"per_batch_map": _centred, "num_parallel_workers": 1} if "per batch" in program.operations else {}
    data = data.batch(batch, drop_remainder=not program.remainder, **options)
    return data.repeat(2) if "repeat" in program.operations else data


def _centred(x: list[np.ndarray], y: list[np.ndarray], _: object) -> tuple[list[np.ndarray], list[np.ndarray]]:
    mean = np.mean(x, axis=0, dtype=np.float32)
    return [one - mean for one in x], y


def _reader(source: str, rows: Rows, folder: Path, shuffled: bool) -> ds.Dataset:
    """Return a dataset that MindSpore's own code reads from a file with the rows."""
    path = _path(source, rows, folder)
    if source == "text":
        data = _numbers(ds.TextFileDataset(str(path), shuffle=shuffled).rename(["text"], ["x"]), "x")
        data = data.map(transforms.Duplicate(), ["x"], NAMES)
        data = data.map(transforms.Slice(slice(0, WIDTH)), ["x"])
        return data.map(transforms.Slice(slice(WIDTH, WIDTH + CLASSES)), ["y"])
    if source == "csv":
        data = ds.CSVDataset(str(path), column_defaults=["", ""], column_names=NAMES, shuffle=shuffled)
        return _numbers(_numbers(data, "x"), "y")
    if source == "tfrecord":
        schema = ds.Schema()
        schema.add_column("x", ms.float32, [WIDTH])
        schema.add_column("y", ms.float32, [CLASSES])
        return ds.TFRecordDataset(str(path), schema=schema, shuffle=shuffled)
    return ds.MindDataset(str(path), shuffle=shuffled)


def write_files(program: Program, folder: Path) -> None:
    """Write the file that the program's dataset reads, where it reads one."""
    if program.source in READERS:
        rows = _rows(program)
        path = _path(program.source, rows, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _WRITERS[program.source](path, rows.x.reshape(len(rows), WIDTH), rows.y)


def _path(source: str, rows: Rows, folder: Path) -> Path:
    """Return the file with some rows, beside the folders of the program's trainings."""
    return folder.parent / "data" / f"{len(rows)}-{digest_of_arrays([rows.x, rows.y])}.{source}"


def _numbers(data: ds.Dataset, column: str) -> ds.Dataset:
    return data.map(text.WhitespaceTokenizer(), [column]).map(text.ToNumber(ms.float32), [column])


def _words(row: np.ndarray) -> str:
    return " ".join(map(repr, row.tolist()))


def _write_text(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    path.write_text("".join(f"{_words(one)} {_words(other)}\n" for one, other in zip(x, y, strict=True)))


def _write_csv(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    path.write_text("".join(f"{_words(one)},{_words(other)}\n" for one, other in zip(x, y, strict=True)))


def _write_tfrecord(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write records of ``tf.train.Example``, each between its length and the checksums of both."""
    with path.open("wb") as file:
        for one, other in zip(x, y, strict=True):
            data = _field(1, _feature("x", one) + _feature("y", other))
            length = struct.pack("<Q", len(data))
            file.write(length + _masked_crc(length) + data + _masked_crc(data))


def _feature(name: str, values: np.ndarray) -> bytes:
    return _field(1, _field(1, name.encode()) + _field(2, _field(2, _field(1, values.astype("<f4").tobytes()))))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _masked_crc(data: bytes) -> bytes:
    """Return the checksum of a record (CRC-32C, rotated and moved)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _write_mindrecord(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    writer = FileWriter(str(path), 1)
    columns = {"x": WIDTH, "y": CLASSES}
    writer.add_schema({name: {"type": "float32", "shape": [size]} for name, size in columns.items()})
    writer.write_raw_data([{"x": one, "y": other} for one, other in zip(x, y, strict=True)])
    writer.commit()


_WRITERS = {"text": _write_text, "csv": _write_csv, "tfrecord": _write_tfrecord, "mindrecord": _write_mindrecord}


def digest_of_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Return a digest of the values, types and shapes of arrays."""
    hasher = hashlib.blake2b(digest_size=8)
    for one in arrays:
        hasher.update(f"{one.dtype} {one.shape}".encode() + np.ascontiguousarray(one).tobytes())
    return hasher.hexdigest()
