"""load_full: whole parameters out of slices, against an oracle over elements, whatever is lost."""

import gc
import logging
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover import load_full, load_slice
from ms_recover.errors import MissingInputError, UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.testing.trees import record
from tests.support.cuts import cut_layout
from tests.support.examples import examples
from tests.support.reshard import (
    COUNTER,
    Job,
    flip_parameter,
    make_job_tree,
    missing_elements,
    random_arrays,
    random_job,
)

SHAPES = {"rows": (16, 12), "columns": (8, 24), "norm": (8,)}


def job_of(devices, matrix, *, stages=1):
    named = {
        "rows": cut_layout("rows", matrix, (0,), ()),
        "columns": cut_layout("columns", matrix, (), (0,)),
        "norm": cut_layout("norm", matrix, ()),
    }
    if stages == 1:
        return Job(devices, [named])
    return Job(devices, [{"rows": named["rows"]}, {name: named[name] for name in ("columns", "norm")}])


@pytest.fixture
def arrays():
    numbers = np.random.default_rng(3)
    return {name: numbers.random(shape, np.float32) for name, shape in SHAPES.items()} | {COUNTER: np.int8(8)}


@pytest.fixture
def root(tmp_path, arrays):
    """dp2 x mp4, with manifests."""
    return make_job_tree(tmp_path / "source", job_of(8, (2, 4)), arrays, manifests=True)


@settings(max_examples=examples(25))
@given(st.integers(0, (1 << 32) - 1))
def test_whatever_is_lost_each_parameter_is_right_or_an_error(seed):
    source = Random(seed)
    arrays = random_arrays(source)
    job = random_job(source, {name: array.shape for name, array in arrays.items() if name != COUNTER})
    with tempfile.TemporaryDirectory() as folder:
        root = make_job_tree(
            Path(folder) / "tree",
            job,
            arrays,
            manifests=source.random() < 0.5,
            form=source.choice(["ckpt", "safetensors"]),
        )
        lost = {rank for rank in range(job.ranks) if source.random() < 0.3} - {0}
        for rank in lost:
            for path in (root / f"ckpt_dir{rank}").glob("test-*"):
                path.unlink()
        sound = [rank for rank in range(job.ranks) if rank not in lost]
        gone = missing_elements(job, arrays, sound)
        with load_full(root, verify=source.random() < 0.5) as found:
            assert set(found) == set(arrays)
            for name, array in arrays.items():
                if name in gone:
                    with pytest.raises(UnrecoverableError, match=f"nobody holds all of '{name}'"):
                        found[name]
                else:
                    assert found.shape(name) == array.shape
                    value = found[name]
                    assert (value.dtype, value.shape, value.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_it_is_a_mapping_that_reads_nothing_until_it_is_asked(root, arrays, monkeypatch):
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(preadv(*args)) or read[-1])
    found = load_full(str(root))
    assert (found.step, len(found), list(found)) == (Step(1, 8), 4, list(found.keys()))
    assert {name: (found.dtype(name), found.shape(name)) for name in found} == {
        name: ("Int8" if name == COUNTER else "Float32", array.shape) for name, array in arrays.items()
    }
    assert "rows" in found
    assert "nothing" not in found
    assert found.get("nothing") is None
    assert repr(found) == f"<4 whole parameters of step 1_8 of {root}>"
    assert not read
    value = found["rows"]
    assert sum(read) == arrays["rows"].nbytes
    value[:] = 0
    assert (found["rows"] == arrays["rows"]).all()
    found.close()
    found.close()
    assert (value == 0).all()
    with pytest.raises(UsageError, match=r"'rows': the parameters of .* were closed"):
        found["rows"]


def test_files_are_closed_when_nothing_refers_to_it_any_more(root, arrays):
    before = len(os.listdir("/proc/self/fd"))
    found = load_full(root)
    assert (found["rows"] == arrays["rows"]).all()
    assert len(os.listdir("/proc/self/fd")) > before
    del found
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_not_there_is_a_key_error(root):
    with load_full(root) as found:
        for ask in (found.__getitem__, found.shape, found.dtype, found.numpy):
            with pytest.raises(KeyError, match="no such parameter in step 1_8"):
                ask("nothing")


def test_threads_may_share_it(root, arrays):
    names = list(arrays) * 20
    with load_full(root) as found, ThreadPoolExecutor(4) as pool:
        assert all((value == arrays[name]).all() for name, value in zip(names, pool.map(found.get, names), strict=True))


def test_a_damaged_source_gives_way_to_another(root, arrays, caplog):
    with load_full(root) as found:
        flip_parameter(root / "ckpt_dir1" / "test-1_8.ckpt", "rows")
        assert (found["rows"] == arrays["rows"]).all()
        assert "ckpt_dir1/test-1_8.ckpt holds other contents of 'rows' than its manifest" in caplog.text
        flip_parameter(root / "ckpt_dir5" / "test-1_8.ckpt", "rows")
        with pytest.raises(VerificationError, match="holds other contents of 'rows'"):
            found["rows"]
        assert (found["columns"] == arrays["columns"]).all()


def test_verify_compares_replicas_before(tmp_path, arrays, caplog):
    """Two that differ, without manifests: nothing shows which is right."""
    root = make_job_tree(tmp_path / "source", job_of(8, (2, 4)), arrays)
    with load_full(root, verify=True):
        assert not caplog.messages
    flip_parameter(root / "ckpt_dir1" / "test-1_8.ckpt", "rows")
    with load_full(root) as found:
        assert found["columns"].shape == (8, 24)
    said = f"{root}, step 1_8: 8 of 8 slices have no manifest, so what is taken of them rests on their structure only; "
    assert caplog.messages == [said + "verify=True reads all slices and compares replicas"]
    with pytest.raises(VerificationError, match="nothing shows which is right"):
        load_full(root, verify=True)


def test_the_newest_step_that_is_whole_is_taken_and_said(root, arrays, caplog):
    for folder in root.iterdir():
        path = folder / "test-1_8.ckpt"
        copy = folder / "test-1_9.ckpt"
        copy.write_bytes(path.read_bytes())
        rank = int(folder.name.removeprefix("ckpt_dir"))
        group = (rank % 4, rank % 4 + 4)
        made = make_manifest(str(copy), rank, Step(1, 9), 8, group, "run")
        write_manifest(str(copy), replace(made, provenance=SAVED))
    for rank in (1, 5):
        (root / f"ckpt_dir{rank}" / "test-1_9.ckpt").unlink()
    caplog.set_level(logging.WARNING)
    with load_full(root) as found:
        assert found.step == Step(1, 8)
        assert "step 1_9 is passed over: nobody holds all of 'rows', 'columns' (" in caplog.text
        assert "; step 1_8 is taken" in caplog.text
        assert [str(one.step) for one in found.rejected_steps] == ["1_9"]
    for names in ("norm", ["norm", COUNTER]):
        with load_full(root, names) as found:
            assert found.step == Step(1, 9)
            assert list(found) == [names] if isinstance(names, str) else names
    with load_full(root, step="1_9") as found:
        assert set(found.missing) == {"rows", "columns"}
        assert found.shape("rows") == (16, 12)
        assert (found["norm"] == arrays["norm"]).all()
        with pytest.raises(UnrecoverableError) as caught:
            found["rows"]
    assert f"{root}, step 1_9: nobody holds all of 'rows': region [4:8, 0:12], 192 bytes (" in str(caught.value)
    assert "or take another step (step=...)" in str(caught.value)


def test_a_stage_of_which_nothing_is_left(tmp_path, arrays):
    root = make_job_tree(tmp_path / "source", job_of(4, (2, 2), stages=2), arrays, manifests=True)
    for rank in range(4, 8):
        for path in (root / f"ckpt_dir{rank}").iterdir():
            path.unlink()
    with load_full(root) as found:
        assert (found["rows"] == arrays["rows"]).all()
        assert len(found.lost) == 1
        with pytest.raises(KeyError, match="or it is lost: every parameter of stage 1"):
            found["norm"]
    with load_full(root, "norm") as found, pytest.raises(UnrecoverableError, match="every parameter of stage 1"):
        found["norm"]


def test_bfloat16_has_the_same_values(tmp_path):
    numbers = np.array([[1.5, -2.0, 3.25]], np.float32)
    (tmp_path / "ckpt_dir0").mkdir()
    upper = numbers.view(np.uint16)[:, 1::2].copy()
    data = record("half", upper.tobytes(), [1, 3], "BFloat16") + record("text", "ab\0".encode("utf-32-le"), [0], "str")
    (tmp_path / "ckpt_dir0" / "test-1_1.ckpt").write_bytes(data)
    with load_full(tmp_path) as found:
        assert found.dtype("half") == "BFloat16"
        assert found["half"].astype(np.float32).tolist() == numbers.tolist()
        assert found["text"] == "ab"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"as_": "torch"}, UsageError, "as_='torch': it must be 'numpy' or 'mindspore'"),
        ({"step": "newest"}, UsageError, "step='newest': 'newest' is not a step"),
        ({"step": "7_7"}, MissingInputError, "7_7"),
        ({"names": ["rows", "cols"]}, UsageError, "has no 'cols'; it has 'columns', 'global_step'"),
        ({"names": [1]}, UsageError, r"names=\[1\]: it must be a name"),
        ({"names": 1}, UsageError, "names=1: it must be a name"),
        ({"pattern": "{rank}"}, UsageError, "pattern"),
    ],
)
def test_arguments_that_cannot_be_meant(root, options, error, said):
    with pytest.raises(error, match=said):
        load_full(root, **options)


@pytest.mark.parametrize(
    ("call", "package", "module"),
    [
        (load_full, "numpy", "arrays"),
        (lambda root: load_full(root, as_="mindspore"), "mindspore", "tensors"),
        (load_slice, "mindspore", "tensors"),
    ],
)
def test_a_package_that_is_not_installed_is_named_before_anything_is_read(root, monkeypatch, call, package, module):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"ms_recover.loading.{module}", raising=False)
    extra = "loading" if package == "numpy" else "mindspore"
    with pytest.raises(UsageError, match=rf"parameters of {package} take a package .*pip install '\.\[{extra}\]'"):
        call(root)


def test_roots_that_are_none(tmp_path):
    with pytest.raises(MissingInputError):
        load_full(tmp_path / "nowhere")
    with pytest.raises(MissingInputError):
        load_full(tmp_path)


@pytest.mark.mindspore
def test_parameters_of_mindspore_are_ready_for_a_network(root, arrays):
    ms = pytest.importorskip("mindspore")
    with load_full(root, as_="mindspore") as found:
        value = found["rows"]
        assert isinstance(value, ms.Parameter)
        assert (value.name, value.dtype) == ("rows", ms.float32)
        network = ms.nn.Cell()
        for name, shape in SHAPES.items():
            network.insert_param_to_cell(name, ms.Parameter(np.zeros(shape, np.float32), name=name))
        assert ms.load_param_into_net(network, dict(found)) == ([], [COUNTER])
    assert all((one.asnumpy() == arrays[one.name]).all() for one in network.get_parameters())
