"""The index of a full checkpoint of several files: which file has which parameter.

::

    {"metadata": {"total_size": BYTES}, "weight_map": {NAME: FILE, ...}}

Source of the format: ``split_torch_state_dict_into_shards`` of ``huggingface_hub``; loaders read ``weight_map`` alone.
MindSpore's ``unified_safetensors`` writes the same as ``param_name_map.json``; its loader also takes the bare map.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ms_recover.bounded_json import decode_object, is_text
from ms_recover.errors import FormatError
from ms_recover.formats.records import MAX_NAME, MAX_RECORDS, show

MAX_INDEX = 64 << 20
"""Most bytes of an index that is read."""

_MOST_BRACKETS = 1 << 10
_MOST_COMMAS = MAX_RECORDS + (1 << 10)


def encode_index(files: Mapping[str, str], total: int) -> bytes:
    """Return an index; `files` has the file of each parameter, `total` is the sum of the bytes of their contents."""
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    return (json.dumps(index, indent=2) + "\n").encode()


def decode_index(data: bytes, name: str, *, bare: bool = False) -> dict[str, str]:
    """Return the file of each parameter; `name` is that of the index in messages.

    With `bare` it may be the map itself.

    Raises
    ------
    FormatError
        When it is damaged, or names a file that cannot lie beside it.
    """
    try:
        index = decode_object(data, brackets=_MOST_BRACKETS, commas=_MOST_COMMAS, fractions=True)
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    found = index if bare and "weight_map" not in index else index.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise FormatError(f"{name}: it has no weight_map, which says where each parameter lies")
    for parameter, file in found.items():
        if not is_text(parameter) or not 0 < len(parameter.encode()) <= MAX_NAME:
            raise FormatError(f"{name}: {show(parameter)} is no name of a parameter")
        if not is_text(file) or file in ("", ".", "..") or "/" in file or "\0" in file:
            raise FormatError(f"{name}: {show(parameter)} should lie in {str(file)[:80]!r}, which is no name of a file")
    return found
