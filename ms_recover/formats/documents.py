"""The documents of MindFormers as bytes, whichever of the three they are; a name tells which."""

from __future__ import annotations

from ms_recover.errors import FormatError
from ms_recover.file_names import COMMON_NAME, METADATA_NAME, TRACKER_NAME
from ms_recover.formats.common_info import decode_common, decode_tracker, encode_common, encode_tracker
from ms_recover.formats.shard_metadata import decode_metadata, encode_metadata
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata

DOCUMENT_NAMES = (METADATA_NAME, COMMON_NAME, TRACKER_NAME)


def encode_document(value: ShardMetadata | CommonInfo | int) -> bytes:
    """Return the bytes of a document as MindFormers writes it."""
    if isinstance(value, ShardMetadata):
        return b"".join(encode_metadata(value))
    return encode_common(value) if isinstance(value, CommonInfo) else encode_tracker(value)


def decode_document(path: str, data: bytes) -> ShardMetadata | CommonInfo | int:
    """Decode a document by the last component of its path.

    Raises
    ------
    FormatError
        When it is damaged, or no document has such a name.
    """
    name = path.rpartition("/")[2]
    if name == METADATA_NAME:
        return decode_metadata(lambda start, length: data[start : start + length], len(data), path)
    if name == COMMON_NAME:
        return decode_common(data, path)
    if name == TRACKER_NAME:
        return decode_tracker(data, path)
    raise FormatError(f"{path}: its name is none of {', '.join(DOCUMENT_NAMES)}")
