"""What is written from memory is the file that MindSpore writes, to the byte, with the digests of the file."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ms_recover.errors import UsageError
from ms_recover.execution import write_slice as module
from ms_recover.execution.write_slice import write_slice
from ms_recover.formats import image
from ms_recover.formats.header import read_header
from ms_recover.model.slices import Parameter
from ms_recover.stores.digest import digest_file
from tests.support.examples import examples

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore.train import serialization  # noqa: E402

from ms_recover.training.snapshot import describe, values_of  # noqa: E402

TYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
ONE = memoryview(b"1")
SHAPES = st.lists(st.integers(1, 9), max_size=4)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda n: n != "__metadata__"
)


@st.composite
def tensors(draw, types=TYPES):
    """Named tensors of all types and shapes."""
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    found = {}
    for name in names:
        dtype, shape = draw(st.sampled_from(types)), tuple(draw(SHAPES))
        data = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 255, 9**4 * 8, np.uint8)
        count = int(np.prod(shape, dtype=int))
        if dtype == "bool":
            array = (data[:count] % 2).astype(bool)
        elif dtype == "bfloat16":
            found[name] = ms.Tensor(data[:count].astype(np.float32).reshape(shape), ms.bfloat16)
            continue
        else:
            array = np.frombuffer(data.tobytes(), dtype, count)
        found[name] = ms.Tensor(array.reshape(shape))
    return found


def both(folder, form, values):
    """Write with MindSpore and with ours; return the two paths and our digests."""
    paths = [os.path.join(folder, f"{who}.{form}") for who in ("theirs", "ours")]
    for path in paths:
        if os.path.exists(path):
            os.chmod(path, 0o600)
            os.unlink(path)
    ms.save_checkpoint([{"name": n, "data": v} for n, v in values.items()], paths[0], format=form)
    parameters = [describe(name, value) for name, value in values.items()]
    return *paths, write_slice(paths[1], form, parameters, [values_of(value) for value in values.values()])


def check(folder, form, values):
    theirs, ours, digests = both(folder, form, values)
    with open(theirs, "rb") as one, open(ours, "rb") as other:
        assert one.read() == other.read()
    header = read_header(ours)
    assert header.problems == ()
    assert digests == digest_file(ours, header.contents)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(values=tensors((*TYPES, "bfloat16")))
def test_a_ckpt_is_the_file_of_mindspore(tmp_path, values):
    check(tmp_path, "ckpt", values)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(values=tensors())
def test_a_safetensors_file_is_the_file_of_mindspore(tmp_path, values):
    check(tmp_path, "safetensors", values)


def test_parameters_of_more_than_a_piece_are_cut_as_mindspore_cuts_them(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "SLICE_SIZE", 2)
    monkeypatch.setattr(image, "PIECE", 2048)
    for size in (511, 512, 513, 1024, 1300):
        values = {"a": ms.Tensor(np.arange(size, dtype=np.float32)), "b": ms.Tensor(np.arange(3, dtype=np.int8))}
        check(tmp_path, "ckpt", values)


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_short_writes_and_chunks_of_any_size_make_the_same_file(tmp_path, monkeypatch, form, chunk):
    monkeypatch.setattr(module, "_CACHED", chunk)
    monkeypatch.setattr(module, "_TOGETHER", chunk)
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda descriptor, data: real(descriptor, data[: max(1, len(data) // 2)]))
    values = {f"layer{i}.weight": ms.Tensor(np.arange(i * 5 + 1, dtype=np.float32)) for i in range(5)}
    check(tmp_path, form, values)


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "there.ckpt"
    path.write_bytes(b"something")
    with pytest.raises(FileExistsError):
        write_slice(str(path), "ckpt", [Parameter("a", "Int8", (1,), 1)], [ONE])
    assert path.read_bytes() == b"something"


def test_safetensors_refuses_a_reserved_name(tmp_path):
    with pytest.raises(UsageError, match="__metadata__"):
        write_slice(
            str(tmp_path / "a.safetensors"), "safetensors", [Parameter("__metadata__", "Int8", (1,), 1)], [b"1"]
        )
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_lie_in_memory_as_in_the_file_is_left_to_mindspore():
    assert describe("a", ms.Tensor([1 + 2j], ms.complex64)) is not None
    assert describe("a", ms.Tensor([1.5], ms.float32)) == Parameter("a", "Float32", (1,), 4)
