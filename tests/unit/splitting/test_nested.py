import contextlib
import json
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.errors import InputError, UsageError
from ms_recover.splitting.batches import Batch, Whole, join, plan_chunks
from ms_recover.splitting.nested import Shared, flatten, unflatten
from ms_recover.tensors.arrays import to_host, to_tensor

Pair = namedtuple("Pair", "left right")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
    ),
    max_leaves=12,
)


def text_of(value):
    """A value's structure and scalars as text, where NaN equals NaN and key order counts."""
    return repr(value)


@given(values)
def test_values_come_back_through_json(value):
    skeleton, leaves = flatten(value)
    text = json.dumps(skeleton)
    assert text_of(unflatten(json.loads(text), leaves)) == text_of(value)
    assert leaves == []


def test_tensors_stay_what_they_are():
    a, b = np.zeros((2, 3)), np.ones(())
    value = {"z": (a, [b, None]), "a": a}
    skeleton, leaves = flatten(value)
    assert [id(leaf) for leaf in leaves] == [id(a), id(b), id(a)]
    back = unflatten(json.loads(json.dumps(skeleton)), leaves)
    assert list(back) == ["z", "a"]
    assert back["z"][0] is a
    assert back["z"][1][0] is b
    assert isinstance(back["z"], tuple)
    assert isinstance(back["z"][1], list)


def test_named_tuples_become_plain_and_numpy_scalars_numbers():
    skeleton, leaves = flatten(Pair(np.float32(0.5), np.int8(3)))
    assert unflatten(skeleton, leaves) == (0.5, 3)
    assert type(unflatten(skeleton, leaves)) is tuple


def deep(levels, kind=list):
    value = kind()
    for _ in range(levels):
        value = kind([value])
    return value


def test_values_nested_too_deeply_are_refused():
    unflatten(*flatten(deep(64)))
    endless = []
    endless.append(endless)
    for value in (deep(65), endless):
        with pytest.raises(UsageError, match="64 deep"):
            flatten(value)
        with pytest.raises(UsageError, match="64 deep"):
            Batch((value,), {})


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {"a": {None: 1}}, {1, 2}, b"bytes", 1 << 63, Shared(1), np.datetime64("2020"), print]
)
def test_values_of_other_types_are_refused(value):
    with pytest.raises(UsageError):
        flatten([value])


HOSTILE = [
    {},
    [],
    [1.5],
    [1],
    [None],
    ["nonsense"],
    [["tuple"]],
    ["tensor"],
    ["tensor", 1],
    ["tensor", -1],
    ["tensor", True],
    ["tensor", 0.0],
    ["tensor", "0"],
    ["tensor", 0, 0],
    ["tensor", None],
    ["tensor", 1 << 200],
    ["list", ["tensor", 0], ["tensor", 0]],
    ["list"],
    ["list", {}],
    None,
    ["dict", 1],
    ["dict", ["a"]],
    ["dict", ["a", 1, 2]],
    ["dict", [1, 1]],
    ["dict", {"a": 1}],
    ["dict", ["a", ["tensor", 0]], ["a", 1]],
    ["complex", "0x0p0", 1.0],
    ["complex", 1, 1.0],
    ["complex", 1.0],
    ["complex", 1.0, 1.0, 1.0],
    ["complex"],
    ["float", 1.0],
]


@pytest.mark.parametrize("skeleton", HOSTILE)
def test_invalid_skeletons_are_refused(skeleton):
    with pytest.raises(InputError):
        unflatten(skeleton, [np.zeros(1)])


def test_a_skeleton_of_endless_depth_is_refused():
    skeleton = None
    for _ in range(100_000):
        skeleton = ["list", skeleton]
    with pytest.raises(InputError, match="64 deep"):
        unflatten(skeleton, [])


@given(st.recursive(st.one_of(scalars, st.sampled_from(["tensor", "list", "dict", 0, 1])), st.lists, max_leaves=8))
def test_any_skeleton_is_read_or_refused(skeleton):
    with contextlib.suppress(InputError):
        unflatten(skeleton, [])


def test_rows_are_those_of_all_tensors_that_are_not_shared():
    assert Batch((np.zeros((5, 2)), 3), {"mask": [np.zeros(5)], "table": Shared(np.zeros((9, 9)))}).rows == 5


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((1, "a"), "no tensor"),
        ((Shared(np.zeros(3)),), "no tensor"),
        ((np.zeros(3), np.zeros(())), "no axes.*Shared"),
        ((np.zeros((3, 2)), np.zeros(4)), r"\(3, 2\), \(4,\) differ.*Shared"),
    ],
)
def test_calls_without_a_common_number_of_rows_are_refused(args, words):
    with pytest.raises(UsageError, match=words):
        Batch(args, {})


def cut(start, stop, *args, **kwargs):
    """The arguments of a call as the part gets them."""
    return unflatten(*Batch(args, kwargs).cut(start, stop))


def test_chunks_are_views():
    x, table = np.arange(12.0).reshape(6, 2), np.arange(3)
    (a, (b, text)), kwargs = cut(2, 5, x, [x, "text"], table=Shared({"t": (table, 1)}), n=3)
    assert np.array_equal(a, x[2:5])
    assert np.shares_memory(a, x)
    assert np.shares_memory(b, x)
    assert text == "text"
    assert kwargs["table"]["t"][0] is table
    assert kwargs == {"table": {"t": (table, 1)}, "n": 3}


def test_chunks_are_contiguous():
    x = np.asfortranarray(np.arange(12.0).reshape(6, 2))
    (a,), _ = cut(2, 5, x)
    assert a.flags.c_contiguous
    assert np.array_equal(a, x[2:5])


@given(st.integers(1, 500), st.integers(1, 12), st.integers(1, 40))
def test_chunks_are_even_and_not_small(rows, most, least):
    chunks = plan_chunks(rows, most, least)
    sizes = [stop - start for start, stop in chunks]
    assert [row for start, stop in chunks for row in range(start, stop)] == list(range(rows))
    assert len(chunks) <= most
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    if len(chunks) > 1:
        assert min(sizes) >= least
    if rows < 2 * least:
        assert len(chunks) == 1
    else:
        assert len(chunks) == min(most, rows // least)


def test_chunks_by_default_have_sixteen_rows():
    assert plan_chunks(100, 4) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert plan_chunks(40, 4) == [(0, 20), (20, 40)]
    assert plan_chunks(31, 4) == [(0, 31)]
    assert plan_chunks(1, 4) == [(0, 1)]


@pytest.fixture(scope="module")
def ms():
    return pytest.importorskip("mindspore")


@pytest.mark.mindspore
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "bool", "complex64", "bfloat16"])
def test_cut_and_join_are_inverse(ms, dtype):
    numbers = np.arange(40).reshape(20, 2) % 7
    plain = ms.Tensor.from_numpy(numbers.astype("float32" if dtype == "bfloat16" else dtype))
    x = plain.astype(ms.bfloat16) if dtype == "bfloat16" else plain
    bounds = [(0, 7), (7, 14), (14, 20)]
    cuts = [cut(*each, {"x": x}, (x,), 2)[0] for each in bounds]
    if dtype != "bfloat16":
        assert np.shares_memory(cuts[1][0]["x"], x.asnumpy())
    for pieces, rows in ((cuts, [7, 7, 6]), (cuts[:1], [7])):
        first, second, number = join(pieces, rows)
        for got in (first["x"], second[0]):
            assert isinstance(got, ms.Tensor)
            assert (got.dtype, got.shape) == (x.dtype, (sum(rows), 2))
            assert got.get_bytes() == x[: sum(rows)].get_bytes()
        assert number == 2


@pytest.mark.mindspore
def test_joined_tensors_have_memory_of_their_own(ms):
    piece = np.zeros((2, 2), np.float32)
    joined = join([piece], [2])
    piece[...] = 1
    assert joined.asnumpy().sum() == 0
    assert join([np.zeros((0, 3)), np.ones((2, 3))], [0, 2]).shape == (2, 3)


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([np.zeros(()), np.zeros(())], r"shape \(\) for a chunk of 2 rows.*axis 0"),
        ([np.zeros((2, 1)), np.zeros((3, 1))], r"shape \(3, 1\) for a chunk of 2 rows"),
        ([(np.zeros(2), 1), (np.zeros(2), 2)], r"output\[1\] is 1 for one chunk"),
        ([{"a": [1.0]}, {"a": [True]}], r"output\['a'\]\[0\] is 1.0 for one chunk"),
        ([(np.zeros(2),), [np.zeros(2)]], "output cannot be joined: its structure differs"),
        ([(np.zeros(2),), (np.zeros(2), 1)], "output cannot be joined: its structure differs"),
        ([{"a": 1}, {"b": 1}], "output cannot be joined: its structure differs"),
        ([np.zeros(2), 1], "output cannot be joined: its structure differs"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], r"rows of output differ.*\(3,\).*\(4,\)"),
        ([np.zeros(2), np.zeros(2, np.float32)], "rows of output differ.*float32.*float64"),
    ],
)
def test_outputs_that_differ_in_more_than_rows_are_refused(ms, pieces, words):
    with pytest.raises(UsageError, match=words):
        join(pieces, [2] * len(pieces))


def test_scalars_and_structure_are_those_of_every_piece():
    nan = float("nan")
    got = join([Pair(nan, {"b": 1, "a": [None, "x"]}), (float("nan"), {"a": [None, "x"], "b": 1})], [1, 2])
    assert text_of(got) == text_of((nan, {"b": 1, "a": [None, "x"]}))


@pytest.mark.mindspore
def test_tensors_go_to_the_host_and_back_without_copies(ms):
    x = ms.Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert np.shares_memory(to_host(x), x.asnumpy())
    assert to_host(x.T).flags.c_contiguous
    assert to_host(np.ones(())).shape == ()
    wide = x.astype(ms.bfloat16)
    if int(np.__version__.partition(".")[0]) >= 2:  # with older ones MindSpore brings a bfloat16 for numpy
        assert to_host(wide) is wide
    assert to_tensor(to_host(wide)).dtype == ms.bfloat16
    assert to_tensor(wide) is wide
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert np.array_equal(to_tensor(frozen[::2]).asnumpy(), [0, 2])
    assert to_tensor(np.ones(())).shape == ()


def test_an_empty_batch_is_computed_with_one_row_which_its_output_loses():
    table = np.ones((2, 2))
    batch = Batch((np.zeros((0, 3), np.float32), Shared(table)), {"mask": np.zeros((0, 2), np.int32)})
    assert batch.rows == 0
    args, kwargs = unflatten(*batch.cut(0, 0))
    assert (args[0].shape, args[0].dtype, kwargs["mask"].shape) == ((1, 3), np.float32, (1, 2))
    assert args[1] is table


def test_a_call_that_is_not_cut_goes_through_whole():
    array, scalar = np.ones((5, 2)), np.array(3.0)
    call = Whole((array, scalar, 2), {"how": [scalar]}, single=False)
    assert call.rows == 5
    args, kwargs = unflatten(*call.cut(0, 5))
    assert (args[0] is array, args[1].shape, args[2], len(kwargs["how"])) == (True, (), 2, 1)
    assert unflatten(*Whole(({"a": array},), {}, single=True).cut(0, 5))["a"] is array
    assert Whole((scalar, "text"), {}, single=False).rows == 0
    for args, kwargs in (((), {}), ((array, array), {}), ((array,), {"mask": array})):
        with pytest.raises(UsageError, match="takes one argument"):
            Whole(args, kwargs, single=True)


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("mask", [np.ma.nomask, [True, False, True]])
def test_a_masked_array_is_refused_wherever_it_is_in_a_value(depth, mask):
    value = masked = np.ma.masked_array(np.arange(3.0), mask)
    for _ in range(depth):
        value = {"x": [value, np.zeros(3)]}
    for take in (flatten, lambda value: Batch([value], {}), lambda value: Batch([], {"a": Shared(value), "b": masked})):
        with pytest.raises(UsageError, match="would lose its mask"):
            take(value)
    with pytest.raises(UsageError, match="would lose its mask"):
        Whole([value], {}, single=True)
