"""Whatever metadata.json, common.json and the tracker hold, they are refused, or what is read of them fits together."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ms_recover.errors import FormatError
from ms_recover.formats.common_info import decode_common, decode_tracker, encode_common
from ms_recover.formats.shard_entries import parse_shard_id
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.planning.claims.layouts import cells_of, region_of
from ms_recover.planning.claims.metadata import expected_files, find_document_stages
from tests.support.examples import examples
from tests.support.iterations import Job, make_metadata, rank_regions
from tests.support.mindformers import parse

SOUND = [
    b"".join(encode_metadata(make_metadata(job)))
    for job in (
        Job(layers=1, optimizer=False),
        Job(layers=2, stages=2, optimizer=False, remove_redundancy=True, prefix=None),
        Job(data_parallel=4, model_parallel=1, optimizer_shards=2, layers=1),
    )
]
ODD = [
    None,
    True,
    0,
    1,
    -1,
    2,
    7,
    1 << 24,
    1 << 63,
    1 << 70,
    0.5,
    "",
    "x",
    "0",
    "float32",
    [],
    [0],
    [1, 0],
    {},
    {"a": 1},
]
WEIGHTS = "model-0000000-0000004.safetensors"
NAMES = ["", WEIGHTS, f"../{WEIGHTS}", f"/{WEIGHTS}", f"a\0-{WEIGHTS}", f"opt-{WEIGHTS}", "('x', (0,))", "('x', (0))"]


@st.composite
def changed_values(draw: st.DrawFn) -> bytes:
    """A sound file after one to three changes of its values or members, in any layout of JSON."""
    value = json.loads(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        if not value:
            break  # the last member was dropped
        place, key = _place(draw, value)
        kind = draw(st.sampled_from(["odd", "number", "name", "drop", "again", "order", "other"]))
        if kind == "odd":
            place[key] = deepcopy(draw(st.sampled_from(ODD)))
        elif kind == "number":
            place[key] = draw(st.integers(-2, 9))
        elif kind == "name":
            place[key] = draw(st.sampled_from(NAMES))
        elif kind == "drop":
            del place[key]
        elif kind == "again" and isinstance(place, list):
            place.insert(draw(st.integers(0, len(place))), place[key])
        elif kind == "again":
            place[draw(st.sampled_from(NAMES))] = place.pop(key)
        elif kind == "order" and isinstance(place, dict):
            members = draw(st.permutations(list(place.items())))
            place.clear()
            place.update(members)
        else:
            other, at = _place(draw, value)
            place[key] = json.loads(json.dumps(other[at]))
    return json.dumps(value, ensure_ascii=False, indent=draw(st.sampled_from([4, None]))).encode("utf-8", "replace")


@st.composite
def changed_bytes(draw: st.DrawFn) -> bytes:
    """A sound file after one to four injuries of its bytes."""
    data = bytearray(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, max(len(data) - 1, 0))), draw(st.integers(1, 60))
        kind = draw(st.sampled_from(["flip", "byte", "cut", "drop", "repeat", "insert"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte" and data:
            data[at] = draw(st.sampled_from(b'{}[],:"\\09-eEN \n\0\xff'))
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + length]
        elif kind == "repeat":
            data[at:at] = data[at : at + length]
        else:
            data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


def _place(draw: st.DrawFn, value: Any) -> tuple[Any, Any]:
    """Return an object or array somewhere in a JSON value, and the key of one of its members."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 5)) == 0:
            return value, key
        value = inner


def check(data: bytes) -> bool:
    """Check that a file is refused, or that what was read of it fits together; whether it was read."""
    refused = ""
    try:
        metadata = parse(data)
    except FormatError as error:
        refused = str(error)
    if refused:
        assert refused.startswith("metadata.json: unusable metadata.json: ")
        assert len(refused) < 2000
        return False
    if not metadata.unknown:
        again = parse(b"".join(encode_metadata(metadata)))
        assert (again.parameters, again.stored, again.order) == (metadata.parameters, metadata.stored, metadata.order)
        assert list(again.parameters) == list(metadata.parameters)
    expected = expected_files(metadata)
    assert expected.keys() == metadata.files.keys()
    assert all("/" not in file and file.isprintable() for file in expected)
    for stage in find_document_stages(metadata):
        for layout in stage.strategy.layouts:
            one = metadata.parameters[layout.parameter]
            regions = [region_of(layout, cell, one.local_shape) for cell in cells_of(layout, stage.ranks)]
            if one.layout and stage.ranks == one.layout.rank_list:
                assert regions == [rank_regions(one, rank) for rank in stage.ranks]
            for fragment, items in zip(one.chunks, metadata.stored[layout.parameter], strict=True):
                held = {
                    rank for rank, region in zip(stage.ranks, regions, strict=True) if region == one.region_of(fragment)
                }
                assert held == {*items[0].rank_group} & {*stage.ranks}
                assert {item.storage_rank for item in items} <= {*items[0].rank_group}
    return True


@settings(max_examples=examples(120))
@given(changed_values())
def test_metadata_with_changed_values_are_refused_or_fit_together(data: bytes) -> None:
    check(data)


@settings(max_examples=examples(200))
@given(changed_bytes())
@example(b"")
@example(b'{\n    "state_dict_metadata": {\n')
@example(b'{"state_dict_metadata": {}, "storage_data": {}}')
def test_metadata_with_changed_bytes_are_refused_or_fit_together(data: bytes) -> None:
    check(data)


@settings(max_examples=examples(200))
@given(st.text(min_size=1, max_size=30), st.integers(0, 1 << 50))
def test_shard_ids_are_read_back_for_any_name(name: str, index: int) -> None:
    assert parse_shard_id(repr((name, (index,)))) == (name, index)


@settings(max_examples=examples(200))
@given(st.text(max_size=30))
def test_other_texts_are_no_shard_ids(text: str) -> None:
    for candidate in (text, f"('{text}', (0,))", f'("{text}", (0,))', f"('a', ({text},))"):
        try:
            name, index = parse_shard_id(candidate)
        except FormatError:
            continue
        assert repr((name, (index,))) == candidate


NUMBERS = st.none() | st.booleans() | st.integers(-2, 1 << 65) | st.floats() | st.text(max_size=3) | st.just([])
MEMBERS = ["epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples", "x"]


@settings(max_examples=examples(200))
@given(st.dictionaries(st.sampled_from(MEMBERS), NUMBERS), st.binary(max_size=40))
def test_common_info_and_trackers_are_refused_or_fit(members: dict[str, Any], noise: bytes) -> None:
    for data in (json.dumps(members).encode(), noise):
        try:
            found = decode_common(data, "common.json")
        except FormatError:
            continue
        assert decode_common(encode_common(found), "common.json").step_num == found.step_num
        for name in MEMBERS[:-1]:
            value = getattr(found, name)
            assert value is None or (type(value) in (int, float) and 0 <= value < 1 << 63) or name == "loss_scale"
    with suppress(FormatError):
        assert 0 <= decode_tracker(noise, "tracker") < 10**18
