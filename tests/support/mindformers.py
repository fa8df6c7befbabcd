"""What MindFormers wrote beside the files of three small trees, and what truth says about those files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ms_recover.formats.safetensors import DTYPES
from ms_recover.formats.shard_metadata import decode_metadata
from ms_recover.model.shard_metadata import ShardMetadata
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.compare_documents import ListedFile

DATA = Path(__file__).resolve().parents[1] / "data" / "mindformers"
TREES = ("dp2_mp4", "dp4_mp2_opt2", "dp2_mp2_pp2")
ITEM_SIZES = {"F32": 4, "I32": 4, "BF16": 2}


@cache
def metadata_text(tree: str) -> bytes:
    """Return the ``metadata.json`` of a tree as MindFormers wrote it."""
    return gzip.decompress((DATA / tree / "metadata.json.gz").read_bytes())


@cache
def truth(tree: str) -> dict[str, Any]:
    """Return which file has which shards, and their types, offsets, shapes and holders."""
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / tree / "truth.json.gz").read_bytes()))
    return found


def parse(data: bytes) -> ShardMetadata:
    """Decode the text of a ``metadata.json``."""
    return decode_metadata(lambda offset, length: data[offset : offset + length], len(data), "metadata.json")


def listed_files(tree: str) -> Mapping[str, ListedFile]:
    """Return the files of an iteration as their headers have them."""
    known = truth(tree)
    files = {}
    for name, file in known["files"].items():
        parameters = []
        for shard in file["shards"]:
            one = known["shards"][shard]
            size = ITEM_SIZES[one["dtype"]]
            for length in one["local_shape"]:
                size *= length
            parameters.append(Parameter(one["parameter"], DTYPES[one["dtype"]], tuple(one["local_shape"]), size))
        files[name] = ListedFile(parameters=tuple(parameters), size=file["size"])
    return files
