"""Gradients that are clipped part by part have the bits of ``mindspore.ops.clip_by_global_norm`` over all of them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import ops  # noqa: E402

from ms_recover.splitting.stages import absorb_first_operator_error  # noqa: E402
from ms_recover.splitting.training.clipping import clip, square_sums  # noqa: E402
from tests.support.examples import examples  # noqa: E402

SHAPES = st.one_of(
    st.just(()),
    st.tuples(st.integers(1, 5000)),
    st.tuples(st.integers(1, 200), st.integers(1, 200)),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5)),
)
KINDS = st.sampled_from([np.float32, np.float32, np.float64, np.float16])
SPECIAL = st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38])


@st.composite
def gradients(draw):
    drawn = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    found = []
    for shape in draw(st.lists(SHAPES, min_size=1, max_size=30)):
        scale = 10.0 ** draw(st.floats(-6, 6))
        with np.errstate(over="ignore"):
            array = np.array(drawn.standard_normal(shape) * scale).astype(draw(KINDS))
        if draw(st.integers(0, 9)) == 0:
            with np.errstate(over="ignore"):
                array.reshape(-1)[draw(st.integers(0, array.size - 1))] = draw(SPECIAL)
        found.append(array)
    return found


def differs_in_graphs(array):
    """Whether MindSpore's own two modes differ: a NaN becomes 1, denormals become 0, a double without axes is kept."""
    absolute = np.abs(array[array != 0].astype(np.float64))
    odd = not np.isfinite(absolute).all() or (absolute < 1e-37).any()
    return odd or (array.shape == () and array.dtype == np.float64)


@pytest.fixture(autouse=True, scope="module")
def same_mode():
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)


@settings(max_examples=examples(60))
@given(
    arrays=gradients(),
    limit=st.one_of(st.floats(1e-6, 1e6), st.sampled_from([1, 1.0, 0.1, 5e-324 + 1e-30])),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    mode=st.sampled_from([ms.PYNATIVE_MODE, ms.GRAPH_MODE]),
)
def test_parts_clip_as_one_process_does(arrays, limit, cuts, mode):
    absorb_first_operator_error()
    ms.set_context(mode=ms.PYNATIVE_MODE if any(map(differs_in_graphs, arrays)) else mode)
    wanted = ops.clip_by_global_norm(tuple(ms.Tensor(array) for array in arrays), limit)
    ends = [0, *sorted(min(cut, len(arrays)) for cut in cuts), len(arrays)]
    tensors = [ms.Tensor.from_numpy(array) for array in arrays]
    parts = [tensors[start:stop] for start, stop in pairwise(ends)]
    sums = [total for part in parts for total in square_sums(part)]
    for part in parts:
        clip(part, limit, sums)
    for found, expected in zip(arrays, wanted, strict=True):
        same = expected.asnumpy().reshape(-1)
        assert found.dtype == same.dtype
        assert np.array_equal(found.reshape(-1), same, equal_nan=True)
        assert np.array_equal(np.signbit(found.reshape(-1)), np.signbit(same)) or np.isnan(same).any()
