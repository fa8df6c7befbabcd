"""Slices in the format safetensors."""

import json
import struct

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import InputError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.header import read_header
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.training import SliceCheckpoint, options, slice_saver  # noqa: E402
from ms_recover.training.deciding.job import TrainingJob  # noqa: E402
from ms_recover.training.deciding.own_slice import OwnSlice  # noqa: E402
from ms_recover.training.network import check_network, load_into_network, load_slice  # noqa: E402
from ms_recover.training.snapshot import saved_names  # noqa: E402
from tests.unit.training.test_saving import Training  # noqa: E402
from tests.unit.training.test_snapshot import bfloat16  # noqa: E402


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train a single rank for some steps, and say which slices are there then."""
    monkeypatch.setattr(slice_saver, "current_job", lambda: TrainingJob(0, 1))

    def run(steps, form="safetensors", **more):
        training = Training(SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 1, format=form, **more)).begin()
        training.steps(steps)
        training.end()
        manifests = sorted((tmp_path / "ckpt_dir0").glob(f"*{MANIFEST_SUFFIX}"))
        return training, [read_manifest(path) for path in manifests]

    return run


@pytest.mark.parametrize("async_save", [False, True])
def test_slices_are_committed_and_rotated(train, tmp_path, async_save):
    training, manifests = train(6, keep=2, async_save=async_save)
    assert [manifest.file for manifest in manifests] == ["test-2_1.safetensors", "test-2_2.safetensors"]
    folder = tmp_path / "ckpt_dir0"
    assert {path.name for path in folder.iterdir()} == {
        "group_info.pb",
        *(f"test-2_{step}.safetensors{end}" for step in (1, 2) for end in ("", MANIFEST_SUFFIX, STATE_SUFFIX)),
    }
    path = folder / "test-2_2.safetensors"
    assert path.stat().st_mode & 0o777 == 0o400
    header = read_header(path)
    assert (header.kind, header.problems) == ("safetensors", ())
    assert {parameter.name for parameter in header.parameters} == saved_names(training.params.train_network)
    assert manifests[1].parameters == header.parameters


@pytest.mark.parametrize("forms", [("ckpt", "safetensors"), ("safetensors", "ckpt")])
def test_a_training_in_the_other_format_has_a_name_of_its_own(train, tmp_path, forms):
    train(3, forms[0])
    train(5, forms[1], keep=2)
    names = {path.name for path in (tmp_path / "ckpt_dir0").glob("*.*") if path.suffix in (".ckpt", ".safetensors")}
    first = {f"test-1_{step}.{forms[0]}" for step in (1, 2, 3)}  # nothing was begun from these
    assert names == first | {f"test_1-{step}.{forms[1]}" for step in ("1_4", "2_1")}


@pytest.fixture
def own(train, tmp_path):
    training, _ = train(3)
    path = tmp_path / "ckpt_dir0" / "test-1_3.safetensors"
    return training.params.train_network, OwnSlice(0, Step(1, 3), str(path))


def test_what_is_loaded_does_not_lie_in_the_file(own, tmp_path):
    """MindSpore's own loader maps the file, and a change of the file changes what was loaded."""
    network, slice_ = own
    path = tmp_path / "ckpt_dir0" / "test-1_3.safetensors"
    for parameter in network.get_parameters():
        parameter.set_data(ms.Tensor(np.zeros(parameter.shape), parameter.dtype))
    load_into_network(network, load_slice(slice_), slice_)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(8 + struct.unpack("<Q", file.read(8))[0])
        file.write(bytes(path.stat().st_size - file.tell()))
    assert all((parameter.asnumpy() == 3).all() for parameter in network.get_parameters())
    manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
    assert check_network(network, manifest, slice_) == len(list(network.get_parameters()))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # MindSpore leaves the file open
@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_names_a_file_that_cannot_be_loaded(own, tmp_path, content):
    path = tmp_path / "test-3_8.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"rank 0, step 3_8, .*test-3_8.safetensors: MindSpore cannot load it"):
        load_slice(OwnSlice(0, Step(3, 8), str(path)))


@pytest.mark.skipif(options._numpy_takes_bfloat16(), reason="this numpy takes bfloat16")
def test_bfloat16_is_refused_before_training_and_loads(one_bfloat16, tmp_path):
    training, path = one_bfloat16
    with pytest.raises(UsageError, match=r"cannot save b, which is bfloat16, .* format='ckpt', or install numpy"):
        training.begin()
    assert load_slice(OwnSlice(0, Step(3, 8), str(path)))["weight"].dtype == ms.bfloat16


@pytest.fixture
def one_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(slice_saver, "current_job", lambda: TrainingJob(0, 1))
    training = Training(SliceCheckpoint(str(tmp_path), "test", 1, format="safetensors"))
    network = nn.Cell()
    network.insert_param_to_cell("weight", bfloat16(tmp_path / "b.ckpt"))
    training.params.train_network = network
    header = json.dumps({"weight": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "test-3_8.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return training, path


def test_a_format_that_is_not_known():
    with pytest.raises(UsageError, match="format='onnx': it must be one of ckpt, safetensors"):
        SliceCheckpoint("slices", format="onnx")


def test_a_scan_finds_them(train, tmp_path):
    train(3)
    plan = api.plan(api.scan(tmp_path))
    assert (plan.step, plan.actions) == (Step(1, 3), ())
