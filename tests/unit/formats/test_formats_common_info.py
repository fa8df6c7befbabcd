"""common.json and the tracker: read, refused, written as MindFormers writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.formats.common_info import (
    COMMON_MEMBERS,
    decode_common,
    decode_tracker,
    encode_common,
    encode_tracker,
    read_common,
    read_tracker,
)
from ms_recover.model.shard_metadata import CommonInfo
from tests.support.mindformers import DATA, TREES


@pytest.mark.parametrize("tree", TREES)
def test_common_info_is_written_as_it_was_read(tree: str) -> None:
    path = DATA / tree / "common.json"
    found = read_common(path)
    assert encode_common(found) == path.read_bytes()
    assert (found.step_num, found.epoch_num, found.loss_scale, found.members) == (100, 1, 1.0, COMMON_MEMBERS)


def test_other_versions_have_other_members() -> None:
    text = b'{\n    "epoch_num": 3,\n    "step_num": 40\n}'
    found = decode_common(text, "common.json")
    assert found == CommonInfo(epoch_num=3, step_num=40, members=("epoch_num", "step_num"))
    assert encode_common(found) == text
    assert decode_common(b'{"step_num": 1, "new": "x"}', "common.json").members == ("step_num", "new")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"step_num": 1',
        b'{"step_num": 1.0}',
        b'{"step_num": true}',
        b'{"step_num": -1}',
        b'{"step_num": "1"}',
        b'{"step_num": 1, "step_num": 2}',
        b'{"step_num": 99999999999999999999}',
        b'{"loss_scale": NaN}',
        b'{"loss_scale": Infinity}',
        b'{"loss_scale": 1e999}',
        b'{"loss_scale": "1"}',
        b'{"ckpt_status": [0]}',
        b'{"a": ' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_common_info_that_is_damaged_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match=r"common\.json: unusable common\.json: "):
        decode_common(text, "common.json")


def test_the_tracker_is_one_number(tmp_path: Path) -> None:
    assert encode_tracker(200) == b"200"
    assert decode_tracker(b" 200\n", "t") == 200
    for damaged in (b"", b" \n", b"-1", b"1_0", b"1.0", b"iteration_00000200", b"2 0", b"\xef\xbc\x92", b"9" * 400):
        with pytest.raises(FormatError, match="unusable tracker"):
            decode_tracker(damaged, "t")
    with pytest.raises(MissingInputError):
        read_tracker(tmp_path / "latest_checkpointed_iteration.txt")
