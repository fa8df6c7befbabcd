"""load_slice and load_full of a tree on another host."""

import numpy as np
import pytest

from ms_recover import load_full, load_slice
from ms_recover.errors import MissingInputError, VerificationError
from tests.support.cuts import cut_layout
from tests.support.reshard import COUNTER, Job, make_job_tree
from tests.support.serving import serving


def test_slices_and_whole_parameters_of_a_web_server(tmp_path):
    numbers = np.random.default_rng(3)
    arrays = {"rows": numbers.random((16, 4000), np.float32), "norm": numbers.random(8, np.float32)}
    arrays[COUNTER] = np.int8(8)
    named = {"rows": cut_layout("rows", (2, 4), (0,), ()), "norm": cut_layout("norm", (2, 4), ())}
    root = make_job_tree(tmp_path / "tree", Job(8, [named]), arrays, manifests=True)
    (root / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    with serving(root) as (server,), load_full(server.url) as found:
        for name, array in arrays.items():
            value = found[name]
            assert (value.dtype, value.shape, value.tobytes()) == (array.dtype, array.shape, array.tobytes())
        pytest.importorskip("mindspore")
        path = "ckpt_dir5/test-1_8.ckpt"
        slice_ = {
            name: value.asnumpy().tobytes() for name, value in load_slice(f"{server.url.rstrip('/')}/{path}").items()
        }
        assert slice_["rows"] == arrays["rows"][4:8].tobytes()
        assert slice_ == {name: value.asnumpy().tobytes() for name, value in load_slice(root / path).items()}
        with pytest.raises(MissingInputError):
            load_slice(f"{server.url.rstrip('/')}/ckpt_dir0/test-1_8.ckpt")
        text = bytearray((root / path).read_bytes())
        text[-1] ^= 1
        (root / path).write_bytes(text)
        with pytest.raises(VerificationError, match=r"rank 5, step 1_8, http://.*ckpt_dir5/test-1_8.ckpt"):
            load_slice(f"{server.url.rstrip('/')}/{path}")
