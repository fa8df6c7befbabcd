"""metadata.json of MindFormers: read, refused where it contradicts itself, written as MindFormers writes it."""

from __future__ import annotations

import json

import pytest

from ms_recover.formats.shard_metadata import encode_metadata
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
