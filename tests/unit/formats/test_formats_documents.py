"""The small documents: of MindFormers, and the index of a full checkpoint."""

import json

import pytest

from ms_recover.errors import FormatError
from ms_recover.formats.documents import decode_document, encode_document
from ms_recover.formats.resume_records import decode_meta, decode_unhealthy, encode_meta
from ms_recover.formats.weight_index import decode_index, encode_index
from ms_recover.model.shard_metadata import CommonInfo
from ms_recover.model.steps import Step
from tests.support.mindformers import metadata_text, parse

COMMON = CommonInfo(epoch_num=1, step_num=8, loss_scale=0.5, members=("epoch_num", "step_num", "loss_scale"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a/iteration_00000008/metadata.json", parse(metadata_text("dp2_mp4"))),
        ("a/iteration_00000008/common.json", COMMON),
        ("latest_checkpointed_iteration.txt", 8),
    ],
    ids=["metadata", "common", "tracker"],
)
def test_a_document_is_read_by_its_name(path, value):
    read = decode_document(path, encode_document(value))
    assert type(read) is type(value)
    assert encode_document(read) == encode_document(value)
    with pytest.raises(FormatError, match="its name is none of metadata"):
        decode_document(f"{path}.bak", encode_document(value))
    with pytest.raises(FormatError, match=path):
        decode_document(path, b"?")


@pytest.mark.parametrize("text", ["{}", '{"last_epoch": 1, "last_step": 2}', '{"last_epoch": "1"}', "[]", ""])
def test_a_meta_json_names_a_step_and_a_slice(text):
    assert decode_meta(encode_meta(Step(1, 8), "test-1_8.ckpt"), "x") == (Step(1, 8), "test-1_8.ckpt")
    with pytest.raises(FormatError, match=r"m/meta\.json: no meta\.json of MindFormers"):
        decode_meta(text.encode(), "m/meta.json")


def test_the_last_word_about_the_health_of_a_slice_counts():
    health = {"a": 0, "b": 1, "c": 0.0, "d": -1}
    entries = [{"ckpt_name": name, "is_health": value} for name, value in health.items()]
    entries += [{"ckpt_name": "e"}, {"ckpt_name": "a", "is_health": 1}, {"ckpt_name": "b", "is_health": 0}]
    assert decode_unhealthy(json.dumps(entries).encode(), "x") == ["a", "d", "e"]
    with pytest.raises(FormatError, match=r"h\.json: no health_ckpts\.json"):
        decode_unhealthy(b"{}", "h.json")


FILES = {"b.weight": "model-1.safetensors", "a" * 1024: "model-2.safetensors"}


def test_an_index_says_where_each_parameter_lies():
    data = encode_index(FILES, 96)
    assert json.loads(data)["metadata"] == {"total_size": 96}
    assert decode_index(data, "x") == decode_index(data, "x", bare=True) == FILES
    bare = json.dumps(FILES).encode()
    assert decode_index(bare, "x", bare=True) == FILES
    with pytest.raises(FormatError, match="no weight_map"):
        decode_index(bare, "x")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no weight_map"),
        ([["w", "f"]], "no weight_map"),
        ({"": "f"}, "is no name of a parameter"),
        ({"a" * 1025: "f"}, "is no name of a parameter"),
        ({"\udc80": "f"}, "is no name of a parameter"),
        *(
            ({"w": file}, "is no name of a file")
            for file in ("", ".", "..", "../f", "/f", "a/b", "a\0b", "\udc80", 3, None)
        ),
    ],
)
def test_an_index_that_names_what_cannot_be_is_refused(files, why):
    with pytest.raises(FormatError, match=rf"i\.json: .*{why}"):
        decode_index(json.dumps({"weight_map": files}).encode(), "i.json")
