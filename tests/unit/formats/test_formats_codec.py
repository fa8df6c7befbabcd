"""JSON through the codec."""

import json

import pytest

from ms_recover.formats import codec


@pytest.mark.parametrize(
    "data",
    [{}, {"a": [1, 2.5, {"b": "\u202e\x1b", "c": [], "d": {}}], "e": None, "f": True, "g": (1, 2)}, {"n": "\udcff"}],
)
def test_indented_text_is_that_of_the_standard_library(data):
    assert codec.json_text(data) == json.dumps(data, indent=2)
