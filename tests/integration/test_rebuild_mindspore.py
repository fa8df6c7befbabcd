"""Slices that MindSpore itself wrote are put together byte for byte, and load equal to the lost ones."""

import numpy as np
import pytest

from ms_recover import api
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.compose import ComposeAction
from ms_recover.model.strategy import Strategy
from tests.support.cuts import CutTensor, cut_layout

ms = pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

MATRIX = (2, 2)


@pytest.fixture
def tensors():
    """Return global tensors of every type, cut so that no other rank has all of a slice."""
    source = np.random.default_rng(7)
    named = {}
    for index, dtype in enumerate(
        ["Float32", "Float16", "Float64", "Int8", "UInt8", "Int16", "Int32", "Int64", "UInt16", "UInt32", "UInt64"]
    ):
        kind = np.dtype(dtype.lower())
        named[f"net.{dtype}"] = CutTensor(
            dtype,
            source.integers(0, 100, (8, 6)).astype(kind),
            cut_layout(f"net.{dtype}", MATRIX, (index % 2,), ()),
        )
    named["net.bool"] = CutTensor(
        "Bool", source.integers(0, 2, (4, 4)).astype(bool), cut_layout("net.bool", MATRIX, (), (1,))
    )
    named["net.bf16"] = CutTensor(
        "BFloat16", source.random((8, 6), np.float32), cut_layout("net.bf16", MATRIX, (0,), ())
    )
    named["net.large"] = CutTensor(
        "Float32", source.random((64, 40), np.float32), cut_layout("net.large", MATRIX, (0,), ())
    )
    named["net.halves"] = CutTensor("Float32", source.random(6, np.float32), cut_layout("net.halves", MATRIX, ()))
    named["beta1_power"] = CutTensor("Float32", np.float32(0.9))
    return named


def save(folder, named, rank, **options):
    folder.mkdir(parents=True)
    data = []
    for name, tensor in named.items():
        part = np.ascontiguousarray(tensor.of(rank))
        value = ms.Tensor(part, ms.bfloat16 if tensor.dtype == "BFloat16" else None)
        data.append({"name": name, "data": value})
    form = options.get("format", "ckpt")
    extra = {} if form == "safetensors" else {"append_dict": {"epoch_num": 3, "note": "naïve text", "rate": 0.5}}
    ms.save_checkpoint(data, str(folder / f"test-1_8.{form}"), **extra, **options)


def make_tree(root, named, **options):
    told = Strategy((0,), 2, tuple(tensor.layout for tensor in named.values() if tensor.layout is not None))
    for rank in range(4):
        save(root / f"ckpt_dir{rank}", named, rank, **options)
        write_group_info(root / f"ckpt_dir{rank}" / "group_info.pb", [rank])
        (root / f"ckpt_dir{rank}" / "strategy.ckpt").write_bytes(encode_strategy(told))
    return root


def contents(path, form, **options):
    """Return what MindSpore loads, to the last bit."""
    loaded = ms.load_checkpoint(str(path), format=form, **options)
    return {
        name: value if isinstance(value, str) else (str(value.dtype), value.shape, value.get_bytes())
        for name, value in loaded.items()
    }


CASES = {
    "plain": {},
    "crc": {"crc_check": True},
    "pieces": {},
    "safetensors": {"format": "safetensors"},
    "safetensors, crc": {"format": "safetensors", "crc_check": True},
}


@pytest.mark.parametrize("case", CASES)
def test_what_mindspore_wrote_is_put_together(tmp_path, tensors, case, monkeypatch):
    options = CASES[case]
    form = options.get("format", "ckpt")
    if form == "safetensors":
        del tensors["net.bf16"]  # MindSpore cannot save it there with NumPy 2
    if case == "pieces":
        monkeypatch.setattr(ms.train.serialization, "SLICE_SIZE", 1)
    tree = make_tree(tmp_path / "tree", tensors, **options)
    monkeypatch.undo()
    for rank in range(4):
        path = tree / f"ckpt_dir{rank}" / f"test-1_8.{form}"
        truth, loaded = path.read_bytes(), contents(path, form)
        path.unlink()
        plan = api.plan(api.scan(tree))
        [action] = plan.actions
        assert isinstance(action, ComposeAction)
        assert len(action.source_ranks) > 1
        assert api.apply(plan).exit_code == 0
        if form == "ckpt":
            assert path.read_bytes() == truth
        assert contents(path, form, crc_check="crc" in case) == loaded
        (tree / f"ckpt_dir{rank}" / f"test-1_8.{form}.manifest.json").unlink()


def test_encrypted_slices_are_never_put_together(tmp_path, tensors):
    tree = make_tree(tmp_path / "tree", {"net.halves": tensors["net.halves"]}, enc_key=b"0" * 16, enc_mode="AES-GCM")
    (tree / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    plan = api.plan(api.scan(tree))
    assert not plan.recoverable
    assert "encrypted slices are copied whole or not at all" in plan.ranks[0].reason
