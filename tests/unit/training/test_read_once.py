"""A slice is read once to be proven and loaded, and its memory goes when it is loaded."""

import gc
import os
import weakref
from collections import Counter

import numpy as np
import pytest

from ms_recover.errors import VerificationError
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.loading import contents  # noqa: E402
from ms_recover.training import SliceSaver, found_slice, resume  # noqa: E402
from ms_recover.training.deciding.own_slice import OwnSlice  # noqa: E402
from ms_recover.training.network import load_slice  # noqa: E402


def made(value):
    network = nn.Dense(300, 200)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    for parameter in {*network.get_parameters(), *optimizer.get_parameters()}:
        parameter.set_data(ms.Tensor(np.full(parameter.shape, value), parameter.dtype))
    return [network, optimizer]


@pytest.fixture(params=["ckpt", "safetensors"])
def saved(request, tmp_path):
    """Two steps of one rank, whose values are 1 and 2."""
    parameters = made(0)
    with SliceSaver(parameters, f"{tmp_path}/ckpt_dir{{rank}}", "loop", format=request.param) as saver:
        for number in (1, 2):
            for one in {*parameters[0].get_parameters(), *parameters[1].get_parameters()}:
                one.asnumpy()[...] = number
            saver.save(number)
    return tmp_path


@pytest.fixture
def read(monkeypatch):
    """Bytes of contents that were read, by the name of the file."""
    counts, preadv = Counter(), os.preadv

    def counted(descriptor, parts, offset):
        count = preadv(descriptor, parts, offset)
        counts[os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))] += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    return counts


def slices_of(root):
    return sorted(path for path in root.rglob("*-*") if path.suffix in (".ckpt", ".safetensors"))


def values_of(parameters):
    return {float(v) for cell in parameters for one in cell.get_parameters() for v in np.unique(one.asnumpy())}


def test_a_sound_slice_is_read_once(saved, read):
    older, newest = slices_of(saved)
    parameters = made(0)
    assert str(resume(parameters, saved).step) == "1_2"
    assert values_of(parameters) == {2.0}
    assert read[newest.name] == newest.stat().st_size
    assert read[older.name] == 0


def test_what_was_read_goes_when_it_is_loaded(saved, monkeypatch):
    taken = []
    take = contents.take_memory

    def kept(sizes):
        anchors = [np.frombuffer(view, np.uint8) for view in take(sizes)]
        taken.extend(map(weakref.ref, anchors))
        return [anchor.data for anchor in anchors]

    monkeypatch.setattr(contents, "take_memory", kept)
    parameters = made(0)
    resumed = resume(parameters, saved)
    gc.collect()
    assert taken
    assert not [one for one in taken if one() is not None]
    assert resumed.path.endswith(slices_of(saved)[1].name)
    assert values_of(parameters) == {2.0}


def test_a_damaged_slice_is_not_loaded(saved, read):
    older, newest = slices_of(saved)
    text = bytearray(newest.read_bytes())
    text[-40] ^= 1
    newest.chmod(0o600)
    newest.write_bytes(text)
    parameters = made(0)
    assert str(resume(parameters, saved).step) == "1_1"
    assert values_of(parameters) == {1.0}
    assert read[older.name] == older.stat().st_size


def test_a_slice_that_is_written_behind_the_proof_is_loaded_as_it_was_proven(saved, monkeypatch):
    _, newest = slices_of(saved)
    find = found_slice.find_slice

    def written(job, search, held):
        found = find(job, search, held)
        newest.chmod(0o600)
        newest.write_bytes(bytes(newest.stat().st_size))
        return found

    monkeypatch.setattr(found_slice, "find_slice", written)
    parameters = made(0)
    resume(parameters, saved)
    assert values_of(parameters) == {2.0}


def test_a_slice_that_was_not_kept_is_compared_with_its_manifest(saved):
    _, newest = slices_of(saved)
    own = OwnSlice(0, Step(1, 2), str(newest))
    assert len(load_slice(own)) > 3
    text = bytearray(newest.read_bytes())
    text[-40] ^= 1
    newest.chmod(0o600)
    newest.write_bytes(text)
    with pytest.raises(VerificationError, match=r"rank 0, step 1_2, .* from the manifest, so nothing was loaded"):
        load_slice(own)
