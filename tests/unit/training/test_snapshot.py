import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.execution.write_slice import write_slice  # noqa: E402
from ms_recover.formats.header import read_header  # noqa: E402
from ms_recover.training.snapshot import HostMemory, read_contents, saved_names, saved_parameters  # noqa: E402

NUMBERS = ("float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")


class Network(nn.Cell):
    """Parameters of many types and shapes."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(1)
        for name in NUMBERS:
            array = (rng.random((3, 4)) * 9).astype(name)
            self.insert_param_to_cell(name, ms.Parameter(ms.Tensor(array), name=name))
        self.insert_param_to_cell("scalar", ms.Parameter(ms.Tensor(7, ms.int32), name="scalar"))
        self.insert_param_to_cell("none", ms.Parameter(ms.Tensor(np.zeros((0, 4), np.float32)), name="none"))


def bfloat16(path):
    """A parameter of a type that numpy does not have: it can only be loaded."""
    from ms_recover.testing.trees import record

    path.write_bytes(record("b", np.arange(6, dtype=np.uint16).tobytes(), [2, 3], "BFloat16"))
    return ms.load_checkpoint(str(path))["b"]


@pytest.fixture
def network(tmp_path):
    made = Network()
    made.insert_param_to_cell("b", bfloat16(tmp_path / "b.ckpt"))
    return made


def write(contents, path):
    return write_slice(str(path), "ckpt", contents.parameters, contents.values)


def test_a_snapshot_is_saved_with_the_same_bytes(network, tmp_path):
    ms.save_checkpoint(network, str(tmp_path / "network.ckpt"), integrated_save=False)
    write(HostMemory().copy(read_contents(network)), tmp_path / "snapshot.ckpt")
    write(read_contents(network), tmp_path / "contents.ckpt")
    saved = (tmp_path / "network.ckpt").read_bytes()
    assert saved == (tmp_path / "snapshot.ckpt").read_bytes() == (tmp_path / "contents.ckpt").read_bytes()
    names = {parameter.name for parameter in read_header(tmp_path / "network.ckpt").parameters}
    assert names == saved_names(network) == {*NUMBERS, "scalar", "b"}


def test_training_does_not_change_a_snapshot(network, tmp_path):
    ms.save_checkpoint(network, str(tmp_path / "before.ckpt"))
    snapshot = HostMemory().copy(read_contents(network))
    for parameter in saved_parameters(network):
        if parameter.name != "b":
            parameter.asnumpy()[...] = 1
    write(snapshot, tmp_path / "snapshot.ckpt")
    ms.save_checkpoint(network, str(tmp_path / "after.ckpt"))
    contents = [(tmp_path / f"{name}.ckpt").read_bytes() for name in ("before", "snapshot", "after")]
    assert contents[0] == contents[1] != contents[2]


def test_memory_for_a_snapshot_is_used_again(network):
    memory = HostMemory()
    first = memory.copy(read_contents(network))
    second = memory.copy(read_contents(network))
    assert [np.frombuffer(one, np.uint8).ctypes.data for one in first.values] == [
        np.frombuffer(one, np.uint8).ctypes.data for one in second.values
    ]
    assert len({parameter.name for parameter in first.parameters}) == len(first.values)


@pytest.mark.parametrize("what", ["cache", "shared"])
def test_what_only_mindspore_can_read_out_is_left_to_it(network, what):
    if what == "cache":
        network.int32.cache_enable = True
        network.int32.key = 5
        assert "int32.__param_key__5" in saved_names(network)
    else:
        network.int32.param_info.is_pipeline_shared_param = True
        assert "int32" not in saved_names(network)
    assert read_contents(network) is None


def test_after_compiling_in_parallel_only_the_own_stage_is_saved(network):
    mode = ms.get_context("mode")
    for name in ("float64", "int32", "float16"):
        getattr(network, name).param_info.is_param_init = True
        getattr(network, name).sliced = True
    try:
        ms.set_context(mode=ms.GRAPH_MODE)
        assert saved_names(network) == {"float64", "int32", "float16"}
        ms.set_context(mode=ms.PYNATIVE_MODE)
        assert saved_names(network) == {*NUMBERS, "scalar", "b"}
    finally:
        ms.set_context(mode=mode)
