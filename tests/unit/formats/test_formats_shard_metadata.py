"""metadata.json of MindFormers: read, refused where it contradicts itself, written as MindFormers writes it."""

from __future__ import annotations

import ast
import json
import tracemalloc

import pytest

from ms_recover.errors import FormatError
from ms_recover.formats.shard_entries import parse_shard_id
from ms_recover.formats.shard_metadata import MAX_SIZE, decode_metadata, encode_metadata
from ms_recover.planning.claims.layouts import cells_of
from ms_recover.planning.claims.metadata import find_document_stages
from tests.support.iterations import Job, make_metadata
from tests.support.metadata_damage import CONTRADICTIONS, NAME, WHOLE, entry, shard
from tests.support.mindformers import TREES, metadata_text, parse


@pytest.mark.parametrize("tree", TREES)
def test_what_was_read_is_written_byte_for_byte(tree: str) -> None:
    data = metadata_text(tree)
    assert b"".join(encode_metadata(parse(data))) == data


@pytest.mark.parametrize("tree", TREES)
def test_other_layouts_of_the_same_json_are_read(tree: str) -> None:
    data = metadata_text(tree)
    value = json.loads(data)
    for other in (json.dumps(value), json.dumps(value, indent=1), json.dumps(dict(reversed(value.items())))):
        assert b"".join(encode_metadata(parse(other.encode()))) == data


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("indent", [4, None])
def test_every_contradiction_is_refused_with_its_place(name: str, indent: int | None) -> None:
    value = json.loads(metadata_text("dp2_mp2_pp2"))
    change, reason = CONTRADICTIONS[name]
    change(value)
    with pytest.raises(FormatError) as caught:
        parse(json.dumps(value, ensure_ascii=False, indent=indent).encode())
    assert str(caught.value).startswith("metadata.json: unusable metadata.json: ")
    assert reason in str(caught.value)


TEXTS = {
    "empty": (b"", "'{' expected at character 0"),
    "a list": (b"[]", "'{' expected at character 0"),
    "cut": (metadata_text("dp2_mp2_pp2")[:-300], "cut or damaged"),
    "two": (metadata_text("dp2_mp2_pp2") * 2, "goes on behind its end"),
    "not UTF-8": (metadata_text("dp2_mp2_pp2").replace(b"float32", b"float\xff", 1), "not UTF-8"),
    "NaN": (metadata_text("dp2_mp2_pp2").replace(b'"storage_rank": 0', b'"storage_rank": NaN', 1), "NaN"),
    "Infinity": (metadata_text("dp2_mp2_pp2").replace(b'"storage_rank": 0', b'"storage_rank": -Infinity', 1), "Infin"),
    "a fraction": (metadata_text("dp2_mp2_pp2").replace(b'"storage_rank": 0', b'"storage_rank": 0.0', 1), "0.0"),
    "many digits": (metadata_text("dp2_mp2_pp2").replace(b'k": 0', b'k": ' + b"9" * 5000, 1), "digits"),
    "deep": (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
    "many": (b'{"a": [' + b"[]," * (1 << 21), "too many entries"),
    "section twice": (b'{"storage_data": {}, "storage_data": {}}', "'storage_data' occurs twice"),
    "parameter twice": (
        metadata_text("dp2_mp2_pp2").replace(b'"adam_m.decoder.layers.0.mlp', b'"adam_v.decoder.layers.0.mlp'),
        "occurs twice",
    ),
    "shard twice": (metadata_text("dp2_mp2_pp2").replace(b"weight', (1,)", b"weight', (0,)"), "occurs twice"),
    "member twice": (
        metadata_text("dp2_mp2_pp2").replace(b'"storage_rank": 0,', b'"storage_rank": 0, "storage_rank": 0,', 1),
        "'storage_rank' occurs twice",
    ),
    "property twice": (
        metadata_text("dp2_mp2_pp2").replace(b'"dtype": ', b'"dtype": "int8",\n                "dtype": ', 1),
        "'dtype' occurs twice",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_damaged_text_is_refused(name: str) -> None:
    data, reason = TEXTS[name]
    with pytest.raises(FormatError, match=r"unusable metadata\.json") as caught:
        parse(data)
    assert reason in str(caught.value)


def test_the_order_of_the_members_of_a_layout_is_irrelevant_and_restored() -> None:
    data = metadata_text("dp2_mp2_pp2")
    value = json.loads(data)
    for one in value["state_dict_metadata"].values():
        one["layout"] = dict(sorted(one["layout"].items()))
    assert b"".join(encode_metadata(parse(json.dumps(value, indent=4).encode()))) == data


def test_members_that_are_not_known_are_reported() -> None:
    value = json.loads(metadata_text("dp2_mp4"))
    value["version"] = 3
    entry(value)["properties"]["more"] = entry(value)["again"] = shard(value)[0]["host"] = None
    assert parse(json.dumps(value, indent=4).encode()).unknown == ("again", "host", "more", "version")
    assert parse(metadata_text("dp2_mp4")).unknown == ()


def test_rank_groups_that_are_not_stated_follow_from_the_layouts() -> None:
    value = json.loads(metadata_text("dp4_mp2_opt2"))
    for items in value["storage_data"].values():
        for item in items:
            del item["rank_group"]
    text = json.dumps(value, indent=4).encode()
    found, stated = parse(text), parse(metadata_text("dp4_mp2_opt2"))
    assert found.stored == stated.stored
    assert (found.states_groups, stated.states_groups) == (False, True)
    assert b"".join(encode_metadata(found)) == text


def test_files_that_were_taken_out_by_hand_are_no_removed_redundancy() -> None:
    value = json.loads(metadata_text("dp2_mp4"))
    for items in value["storage_data"].values():
        items[:] = [item for item in items if item["storage_rank"] != 0] or items
    found = parse(json.dumps(value).encode())
    assert found.removed_redundancy is False
    with_group = [items for items in found.shards if len(items[0].rank_group) > len(items)]
    assert with_group


def test_a_parameter_without_a_layout_lies_whole_on_the_ranks_of_its_group() -> None:
    value = json.loads(metadata_text("dp2_mp2_pp2"))
    for name in (WHOLE, f"adam_m.{WHOLE}"):
        entry(value, name)["layout"] = None
        entry(value, name)["properties"]["replica_id"] = 0
    text = json.dumps(value, indent=4).encode()
    found = parse(text)
    assert b"".join(encode_metadata(found)) == text
    first, second = find_document_stages(found)
    assert first.holders == ((frozenset({WHOLE, f"adam_m.{WHOLE}"}), (0, 1, 2, 3)),)
    assert second.holders == ()


def test_a_parameter_that_stages_share_is_in_each_of_them() -> None:
    value = json.loads(metadata_text("dp2_mp2_pp2"))
    for index in (0, 1):
        items = shard(value, index)
        group = [item["storage_rank"] for item in items]
        for item in list(items):
            again = item["storage_rank"] + 4
            name = item["file_name"].replace(f"-000000{again - 4}-", f"-000000{again}-")
            items.append({"file_name": name, "storage_rank": again})
        for item in items:
            item["rank_group"] = [*group, *(rank + 4 for rank in group)]
    text = json.dumps(value, indent=4).encode()
    found = parse(text)
    assert b"".join(encode_metadata(found)) == text
    for stage in find_document_stages(found):
        (layout,) = (one for one in stage.strategy.layouts if one.parameter == NAME)
        assert [cell.index for cell in cells_of(layout, stage.ranks)] == [(0, 0), (1, 0), (0, 0), (1, 0)]
    shard(value, 1)[0]["rank_group"] = [1, 3, 4, 6]
    for item in shard(value, 1):
        item["rank_group"] = [1, 3, 4, 6]
    with pytest.raises(FormatError, match="not in its rank_group"):
        parse(json.dumps(value, indent=4).encode())


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("('a', (0,))", ("a", 0)),
        ("('a.b-c', (123456,))", ("a.b-c", 123456)),
        ('("it\'s", (1,))', ("it's", 1)),
        (repr(("both ' and \"", (1,))), ("both ' and \"", 1)),
        (repr(("b\\s\n\t\x7f\u200b\U000e0001é", (1,))), ("b\\s\n\t\x7f\u200b\U000e0001é", 1)),
        (repr(("x', (3,", (1,))), ("x', (3,", 1)),
    ],
)
def test_shard_ids_are_read_as_python_writes_them(text: str, shard: tuple[str, int]) -> None:
    assert parse_shard_id(text) == shard
    assert repr((shard[0], (shard[1],))) == text


def test_names_of_any_kind_are_read_and_written() -> None:
    name = "layer \"0\" 'ü' \\ \u4e2d"
    value = json.loads(metadata_text("dp2_mp4"))
    value["state_dict_metadata"] = {
        (name if key == NAME else key): one for key, one in value["state_dict_metadata"].items()
    }
    value["storage_data"] = {
        (repr((name, literal[1])) if (literal := ast.literal_eval(key))[0] == NAME else key): one
        for key, one in value["storage_data"].items()
    }
    text = json.dumps(value, ensure_ascii=False, indent=4).encode()
    found = parse(text)
    assert name in found.parameters
    assert b"".join(encode_metadata(found)) == text


def test_a_large_file_is_read_in_windows_and_little_memory() -> None:
    metadata = make_metadata(Job(data_parallel=32, model_parallel=8, layers=2))
    data = b"".join(encode_metadata(metadata))
    longest = 0

    def read_at(offset: int, length: int) -> bytes:
        nonlocal longest
        longest = max(longest, length)
        return data[offset : offset + length]

    tracemalloc.start()
    try:
        found = decode_metadata(read_at, len(data), "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(data) > 35_000_000
    assert peak < 25_000_000
    assert longest < 6_000_000
    assert found.parameters == metadata.parameters
    assert found.stored == metadata.stored
    assert len({id(one) for one in found.stored.values()}) == 12


def test_a_large_file_of_another_layout_is_not_read() -> None:
    reads = []

    def read_at(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return b"[" * length

    with pytest.raises(FormatError, match="from byte 0 on it is not laid out as MindFormers does"):
        decode_metadata(read_at, 500_000_000, "x")
    assert sum(length for _, length in reads) < 10 << 20
    with pytest.raises(FormatError, match="more than the"):
        decode_metadata(read_at, MAX_SIZE + 1, "x")
