"""load_slice: what mindspore.load_checkpoint gives, read once, proven, in memory that is shared."""

import gc
import logging
import os
import shutil
import tempfile
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ms_recover.errors import (
    FormatError,
    MissingInputError,
    UsageError,
    VerificationError,
)
from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.formats.header import read_header
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.stores import fill
from tests.support.examples import examples
from tests.support.unprivileged import NOBODY

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.train import serialization  # noqa: E402

from ms_recover import load_slice  # noqa: E402
from ms_recover.loading import slices  # noqa: E402

DATA = "formats/types.ckpt formats/pieces.ckpt formats/pieces_async.ckpt formats/zero_size_async.ckpt formats/crc.ckpt"
TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16"


def contents(values):
    """Types, shapes and bytes of what was loaded."""
    return {
        name: value if isinstance(value, str) else (str(value.dtype), tuple(value.shape), bytes(value.get_bytes()))
        for name, value in values.items()
    }


def theirs(path):
    return ms.load_checkpoint(str(path), format="safetensors" if str(path).endswith("safetensors") else "ckpt")


def seal(path, rank=3):
    made = make_manifest(str(path), rank, Step(2, 8), rank + 1, (rank,), "run")
    write_manifest(str(path), replace(made, provenance=SAVED))


@pytest.fixture(params=["ckpt", "safetensors"])
def saved(request, tmp_path):
    """A slice of MindSpore's with a manifest."""
    network = nn.SequentialCell(nn.Dense(30, 40), nn.Dense(40, 3))
    optimizer = nn.Adam(network.trainable_params())
    folder = tmp_path / "ckpt_dir3"
    folder.mkdir()
    path = folder / f"test-2_8.{request.param}"
    ms.save_checkpoint(nn.CellList([network, optimizer], auto_prefix=False), str(path), format=request.param)
    path.chmod(0o600)
    seal(path)
    return path


@pytest.mark.parametrize("name", [*DATA.split(), "safetensors/types.safetensors", "safetensors/crc.safetensors"])
def test_real_files_load_as_mindspore_loads_them(fixtures, name):
    path = fixtures.parent / name
    found = load_slice(path)
    assert contents(found) == contents(theirs(path))
    assert all(value.name == key for key, value in found.items() if not isinstance(value, str))


@pytest.mark.parametrize("name", ["formats/complex.ckpt", "safetensors/complex.safetensors"])
def test_complex_numbers_load_which_mindspore_cannot(fixtures, name):
    found = load_slice(fixtures.parent / name)
    assert {str(value.dtype) for value in found.values()} & {"Complex64", "Complex128"}


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_mindspore_saves_in_pieces_loads_as_mindspore_loads_it(tmp_path, monkeypatch, data):
    monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # KiB of a piece
    monkeypatch.setattr(fill, "BLOCK", data.draw(st.integers(1, 3000)))
    network, source = nn.Cell(), np.random.default_rng(data.draw(st.integers(0, 99)))
    for number, dtype in enumerate(data.draw(st.lists(st.sampled_from(TYPES.split()), min_size=1, max_size=5))):
        shape = data.draw(st.lists(st.integers(1, 20), max_size=3))
        array = source.integers(0, 2 if dtype == "bool" else 100, shape)
        name = data.draw(st.text("abc", max_size=9)) + str(number)
        network.insert_param_to_cell(
            name, ms.Parameter(ms.Tensor(array, getattr(ms, dtype)), name=name), check_name_contain_dot=False
        )
    more = {"step_num": 7, "loss": 1.5, "text": "ü" * data.draw(st.integers(0, 5))}
    path = tmp_path / "test-1_1.ckpt"
    path.unlink(missing_ok=True)
    ms.save_checkpoint(network, str(path), append_dict=more, crc_check=data.draw(st.booleans()))
    found = load_slice(path)
    assert contents(found) == contents(theirs(path))
    assert list(found) == [one.name for one in read_header(path).parameters]


def test_a_slice_with_its_manifest_loads_without_a_word(saved, caplog):
    caplog.set_level(logging.WARNING)
    assert contents(load_slice(str(saved))) == contents(theirs(saved))
    assert not caplog.messages


@pytest.mark.parametrize("verify", [True, False])
def test_without_a_manifest_it_says_what_the_values_rest_on(saved, caplog, verify):
    (saved.parent / f"{saved.name}.manifest.json").unlink()
    caplog.set_level(logging.WARNING)
    load_slice(saved, verify=verify)
    expected = f"rank 3, {saved}: it has no manifest, so the loaded values rest on the structure of the slice only"
    assert caplog.messages == ([expected] if verify else [])


def test_memory_is_shared_from_the_file_to_the_network(saved, monkeypatch):
    taken = []
    monkeypatch.setattr(
        "ms_recover.loading.contents.take_memory", lambda sizes: taken.extend(fill.take_memory(sizes)) or taken
    )
    found = load_slice(saved)
    places = [np.frombuffer(view, np.uint8).ctypes.data for view in taken]
    assert [value.data_ptr() for value in found.values()] == places
    network = nn.SequentialCell(nn.Dense(30, 40), nn.Dense(40, 3))
    left, _ = ms.load_param_into_net(network, found)
    assert not left
    assert {parameter.data_ptr() for parameter in network.get_parameters()} <= set(places)


def test_parameters_live_on_and_can_be_written(saved):
    expected = {name: value.asnumpy().copy() for name, value in theirs(saved).items()}
    found = load_slice(saved)
    saved.write_bytes(b"gone")
    gc.collect()
    filler = [np.full(1 << 16, 0xEE, np.uint8) for _ in range(100)]
    assert all((found[name].asnumpy() == value).all() for name, value in expected.items())
    kept = found.pop("0.weight")
    before = expected["0.weight"]
    del found
    gc.collect()
    kept[0] = 5
    assert (kept.asnumpy()[0] == 5).all()
    assert (kept.asnumpy()[1:] == before[1:]).all()
    kept.set_data(ms.Tensor(before + 1))
    assert (kept.asnumpy() == before + 1).all()
    assert len(filler) == 100


def test_a_loaded_network_trains_as_one_that_mindspore_loaded(saved):
    def trained(load):
        network = nn.SequentialCell(nn.Dense(30, 40), nn.Dense(40, 3))
        optimizer = nn.Adam(network.trainable_params())
        both = nn.CellList([network, optimizer], auto_prefix=False)
        assert ms.load_param_into_net(both, load(saved), strict_load=True) == ([], [])
        step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer)
        for number in range(3):
            step(ms.Tensor(np.full((2, 30), number, np.float32)), ms.Tensor(np.ones((2, 3), np.float32)))
        return contents(both.parameters_dict())

    assert trained(load_slice) == trained(theirs)


def test_each_byte_is_read_once(saved, monkeypatch):
    """But for the header, which says where they go."""
    read, preadv = [], os.preadv

    def counted(descriptor, parts, offset):
        read.append(preadv(descriptor, parts, offset))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counted)
    load_slice(saved)
    assert sum(read) == saved.stat().st_size


def test_a_wrong_byte_in_a_parameter_is_named(saved):
    header = read_header(saved)
    place = dict(zip((one.name for one in header.parameters), header.contents, strict=True))["1.weight"][0]
    text = bytearray(saved.read_bytes())
    text[place.start + 5] ^= 4
    saved.write_bytes(text)
    with pytest.raises(VerificationError) as caught:
        load_slice(saved)
    assert str(caught.value).startswith(f"rank 3, step 2_8, {saved}: '1.weight' differs from the manifest, so nothing")
    assert (load_slice(saved, verify=False)["1.weight"].asnumpy() != 7).all()


def test_a_wrong_byte_beside_the_parameters_is_found(saved):
    text = saved.read_bytes()
    assert text.count(b"0.bias") > 0
    saved.write_bytes(text.replace(b"0.bias", b"0.bios"))
    with pytest.raises(VerificationError, match=r"does not list the parameters that its manifest lists: see '0.bios'"):
        load_slice(saved)


def test_a_file_that_was_cut_is_refused_with_and_without_a_manifest(saved):
    size = saved.stat().st_size
    os.truncate(saved, size - 100)
    with pytest.raises(VerificationError, match=rf"it has {size - 100} bytes, its manifest says {size}: it was cut"):
        load_slice(saved)
    with pytest.raises(FormatError, match=r"rank 3, .*test-2_8.*, so nothing was loaded"):
        load_slice(saved, verify=False)


def test_the_manifest_of_another_slice_and_one_that_is_torn_are_refused(saved):
    other = saved.with_name(saved.name.replace("2_8", "3_8"))
    os.rename(saved, other)
    os.rename(f"{saved}.manifest.json", f"{other}.manifest.json")
    with pytest.raises(VerificationError, match=rf"its manifest is that of {saved.name}; was one of them renamed"):
        load_slice(other)
    os.truncate(f"{other}.manifest.json", 50)
    with pytest.raises(FormatError, match=r"manifest.json is not a manifest that can be read"):
        load_slice(other)
    assert load_slice(other, verify=False)


def test_a_file_that_is_written_meanwhile_is_refused(saved, monkeypatch):
    read = slices.read_contents

    def written(opened, header, **options):
        os.utime(saved, ns=(1, 1))
        return read(opened, header, **options)

    monkeypatch.setattr(slices, "read_contents", written)
    with pytest.raises(VerificationError, match=r"rank 3, step 2_8, .*test-2_8.*: it changed while it was read"):
        load_slice(saved)


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_an_encrypted_slice_is_refused_with_the_way_out(fixtures, mode):
    with pytest.raises(FormatError, match=rf"encrypted with {mode}, .*load_checkpoint\(..., dec_key=KEY, dec_mode="):
        load_slice(fixtures.parent / "formats" / f"encrypted_{mode}.ckpt")


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(5000)])
@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_what_is_no_slice_is_refused(tmp_path, content, suffix):
    path = tmp_path / f"test-1_1.{suffix}"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=rf"{path}: .*, so nothing was loaded"):
        load_slice(path)


def test_paths_that_are_none(tmp_path, saved):
    with pytest.raises(MissingInputError, match="no such file"):
        load_slice(tmp_path / "test-9_9.ckpt")
    with pytest.raises(FormatError, match="this is a directory"):
        load_slice(tmp_path)
    for path in (None, 5, b"x", ""):
        with pytest.raises(UsageError, match="path="):
            load_slice(path)
    for url in ("nowhere://host/rank_0/test-1_1.ckpt", "http://host"):
        with pytest.raises(UsageError):
            load_slice(url)
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(FormatError, match="no regular file"):
        load_slice(tmp_path / "pipe.ckpt")
    assert contents(load_slice(f"file://{saved}")) == contents(load_slice(saved))


def test_a_file_that_this_user_may_not_read(saved):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, saved.name)
        shutil.copyfile(saved, path)
        os.chmod(path, 0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        try:
            with pytest.raises(PermissionError, match=f"reading {path}: permission denied for user"):
                load_slice(path)
        finally:
            if root:
                os.seteuid(0)
