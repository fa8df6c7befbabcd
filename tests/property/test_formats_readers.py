"""Whatever the bytes, the readers answer: no foreign exception, no long read, no endless walk, no damage overlooked."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ms_recover.errors import InputError
from ms_recover.formats import ckpt, header, safetensors
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.formats.group_info import MAX_RANK, encode_group_info, read_group_info
from ms_recover.formats.header import parse_header, read_header
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify
from ms_recover.formats.records import MAX_NAME, MAX_PROBLEMS, RecordWalk
from ms_recover.formats.strategy import decode_strategy, read_strategy
from ms_recover.formats.wire import WINDOW, WireReader, encode_varint
from ms_recover.model.groups import GroupInfo, RankGroup
from ms_recover.model.slices import SliceHeader
from tests.support.examples import examples

DATA = Path(__file__).resolve().parents[1] / "data"
FIXTURE = DATA / "fixtures" / "dp2_mp2_pp2" / "ckpt_dir0"
SLICES = {path.name: path.read_bytes() for path in sorted((DATA / "formats").glob("*.ckpt"))}
TENSORS_FILES = {path.name: path.read_bytes() for path in sorted((DATA / "safetensors").glob("*.safetensors"))}
SMALL = {path.name: path.read_bytes() for path in (FIXTURE / "group_info.pb", FIXTURE / "strategy.ckpt")}
LAYOUT = {"dev_matrix": [2, 2, 2], "tensor_map": [-1, 1, 0], "tensor_shape": [32, 2, 32], "field": 0}
LAYOUT |= {"opt_weight_shard_size": -1, "opt_weight_shard_step": 4, "param_split_shape": [5], "indices_offset": [0]}
OPERATOR = {"stage": 1, "parallel_strategy": [[2, 1], [1, 4]]}
STRATEGY = {"current_stage": 2, "parallel_layout_item": {"w1": LAYOUT}, "parallel_strategy_item": {"MatMul": OPERATOR}}
SMALL["strategy.json"] = json.dumps(STRATEGY, separators=(",", ":")).encode()


class Source:
    """Bytes that count how they are read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads = 0
        self.longest = 0

    def __call__(self, offset: int, length: int) -> bytes:
        assert offset >= 0
        self.reads += 1
        self.longest = max(self.longest, length)
        return self.data[offset : offset + length]


def message(number: int, payload: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(payload)) + payload


@st.composite
def damaged(draw: st.DrawFn, originals: dict[str, bytes]) -> bytes:
    """A real file after one to four injuries."""
    data = bytearray(originals[draw(st.sampled_from(sorted(originals)))])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "byte", "cut", "drop", "insert", "repeat", "zeros"]))
        length = draw(st.integers(1, 40))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte" and data:
            data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x12, 0x1A, 0x08]))
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + length]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=40))
        elif kind == "repeat":
            data[at:at] = data[at : at + length]
        else:
            data[at : at + length] = bytes(min(length, len(data) - at))
    return bytes(data)


def check(header: SliceHeader, data: bytes) -> None:
    """What holds of every header, however damaged the file."""
    assert header.kind in ("ckpt", "encrypted-ckpt", "safetensors")
    assert header.size == len(data)
    assert len(header.parameters) == len(header.contents)
    assert len(header.problems) <= MAX_PROBLEMS + 4
    assert all(problem.isprintable() and len(problem) < 2000 for problem in header.problems)
    for parameter, ranges in zip(header.parameters, header.contents, strict=True):
        assert parameter.nbytes == sum(piece.length for piece in ranges)
        assert all(piece.start >= 0 and piece.length >= 0 and piece.end <= len(data) for piece in ranges)
    assert header.problems or header.parameters or header.encryption


@settings(max_examples=examples(400))
@given(damaged(SLICES) | damaged(SMALL) | st.binary(max_size=200))
@example(b"")
def test_the_walk_survives_everything(data: bytes) -> None:
    source = Source(data)
    header = ckpt.parse_header(source, len(data))
    check(header, data)
    assert source.longest <= max(WINDOW, MAX_NAME, HEAD)
    assert source.reads <= 20 + 12 * (1 + data.count(b"\x0a") + data.count(b"\x5e"))
    assert classify(data[:HEAD], len(data)) in DESCRIPTIONS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)
SIZE = st.integers(-1, 20) | st.integers() | st.just(True) | st.floats()
INFO = st.fixed_dictionaries(
    {"dtype": st.sampled_from([*safetensors.DTYPES, "F99"]) | JSON},
    optional={
        "shape": st.lists(SIZE, max_size=3) | JSON,
        "data_offsets": st.lists(SIZE, min_size=2, max_size=2) | JSON,
        "more": JSON,
    },
)
HEADERS = st.dictionaries(st.text(max_size=9), INFO | JSON, max_size=4) | JSON


@st.composite
def tensor_files(draw: st.DrawFn) -> bytes:
    """A safetensors file with a header that nobody would write, or one that has been injured."""
    if draw(st.booleans()):
        return draw(damaged(TENSORS_FILES))
    found = draw(HEADERS)
    if draw(st.booleans()) and isinstance(found, dict):
        found["__metadata__"] = draw(st.dictionaries(st.text(max_size=9), st.text(max_size=9) | JSON, max_size=3))
    text = json.dumps(found).encode() + b" " * draw(st.integers(0, 9))
    length = draw(st.just(len(text)) | st.integers(0, len(text) + 20) | st.integers(0, (1 << 64) - 1))
    return length.to_bytes(8, "little") + text + draw(st.binary(max_size=40))


@settings(max_examples=examples(600))
@given(tensor_files() | st.binary(max_size=200), st.sampled_from(["net-1_1.safetensors", "net-1_1.ckpt", ""]))
@example(b"", "net-1_1.safetensors")
def test_headers_of_tensors_are_refused_or_read(data: bytes, name: str) -> None:
    source = Source(data)
    found = header.parse_header(source, len(data), name=name)
    check(found, data)
    assert source.longest <= max(len(data), HEAD)
    if found.kind == "safetensors" and not found.problems:
        ends = [pieces[-1].end for pieces in found.contents]
        starts = [pieces[0].start for pieces in found.contents]
        assert [*starts, len(data)] == [8 + int.from_bytes(data[:8], "little"), *ends]
        assert [p.nbytes for p in found.parameters] == [pieces[0].length for pieces in found.contents]


@settings(max_examples=examples(200))
@given(damaged(SMALL) | damaged(SLICES) | st.binary(max_size=200))
def test_the_small_readers_refuse_or_answer(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        refusals = []
        try:
            assert encode_group_info(read_group_info(path)) == data
        except InputError as error:
            refusals.append(str(error))
        try:
            assert all(layout.device_matrix for layout in read_strategy(path).layouts)
        except InputError as error:
            refusals.append(str(error))
        assert refusals
        assert all(refusal.startswith(f"{path}: ") for refusal in refusals)


@settings(max_examples=examples(300))
@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4), JSON, JSON)
def test_made_up_strategies_are_refused_or_read(more: dict[str, object], value: object, other: object) -> None:
    refusals = []
    for content in (
        {"current_stage": 1} | more,
        {"current_stage": value, "parallel_layout_item": other},
        STRATEGY | {"parallel_layout_item": {"w": LAYOUT | more}},
        *(STRATEGY | {"parallel_layout_item": {"w": LAYOUT | {key: value}}} for key in LAYOUT),
        STRATEGY | {"parallel_strategy_item": {"op": value, "other": {"stage": other}}},
    ):
        try:
            strategy = decode_strategy(json.dumps(content).encode(), "here")
        except InputError as error:
            refusals.append(str(error))
            continue
        assert all(layout.parts >= 1 and layout.copies >= 1 for layout in strategy.layouts)
    assert all(refusal.startswith("here: ") and refusal.isprintable() for refusal in refusals)


def test_every_truncation_of_a_slice_is_found() -> None:
    for name in ("types", "crc", "cell", "pieces_crc", "pieces_async"):
        whole = SLICES[f"{name}.ckpt"]
        expected = [parameter.name for parameter in parse_header(Source(whole), len(whole)).parameters]
        # Without its trailer a file with CRC is a sound one without.
        sound = {len(whole) - 17} if "crc" in name else set()
        for end in range(len(whole)):
            header = parse_header(Source(whole[:end]), end, expected=expected)
            check(header, whole[:end])
            assert header.problems or end in sound, (name, end)


@settings(max_examples=examples(100))
@given(st.sampled_from(sorted(SLICES)), st.integers(20, 300))
def test_the_window_does_not_matter(name: str, window: int) -> None:
    data = SLICES[name]
    walks = [RecordWalk(WireReader(Source(data), len(data), size)) for size in (window, 1 << 20)]
    for walk in walks:
        walk.run()
    first, second = walks
    assert (first.parameters, first.contents, first.problems) == (second.parameters, second.contents, second.problems)


TENSORS = st.tuples(
    st.sampled_from(sorted(ITEM_SIZES.keys() - {"str"})),
    st.lists(st.integers(0, 5), max_size=4),
    st.lists(st.floats(0, 1), max_size=3),
)


@given(st.dictionaries(st.text(min_size=1, max_size=30), TENSORS, min_size=1, max_size=8), st.booleans())
def test_made_up_slices_are_read_as_they_were_made(
    tensors: dict[str, tuple[str, list[int], list[float]]], shuffle: bool
) -> None:
    data = b""
    expected = []
    for name, (dtype, dims, cuts) in tensors.items():
        size = ITEM_SIZES[dtype]
        for dim in dims:
            size *= dim
        content = bytes(i & 0xFF for i in range(size))
        edges = sorted({0, size, *(int(cut * size) for cut in cuts)})
        pieces = [content[a:b] for a, b in pairwise(edges)] or [b""]
        head = b"".join(b"\x08" + encode_varint(dim) for dim in dims) + message(2, dtype.encode())
        for piece in pieces:
            tensor = message(3, piece) + head if shuffle else head + message(3, piece)
            tag = message(1, name.encode())
            data += message(1, message(2, tensor) + tag if shuffle else tag + message(2, tensor))
        expected.append((name, dtype, tuple(dims), content))
    header = parse_header(Source(data), len(data), expected=tensors)
    assert header.problems == ()
    found = []
    for parameter, ranges in zip(header.parameters, header.contents, strict=True):
        content = b"".join(data[piece.start : piece.end] for piece in ranges)
        found.append((parameter.name, parameter.dtype, parameter.shape, content))
    assert found == expected


RANKS = st.lists(st.integers(0, MAX_RANK - 1), unique=True, min_size=1, max_size=20).map(tuple)
GROUPS = st.lists(st.builds(RankGroup, st.text(max_size=20), RANKS), max_size=4).map(tuple)


@given(st.builds(GroupInfo, RANKS, GROUPS))
def test_group_files_round_trip(info: GroupInfo) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "group_info.pb"
        path.write_bytes(encode_group_info(info))
        assert read_group_info(path, owner=info.restore_ranks[-1]) == info


def test_reading_a_path_is_reading_its_bytes() -> None:
    for name, data in SLICES.items():
        assert read_header(DATA / "formats" / name) == parse_header(Source(data), len(data))
