"""``metadata.json`` of MindFormers' format "weights 2.0": the cut, the files and the holders of every parameter."""

from __future__ import annotations

import os

from ms_recover.model.shard_metadata import ShardMetadata


def read_metadata(path: str | os.PathLike[str]) -> ShardMetadata:
    """Read a ``metadata.json``.

    Raises
    ------
    FormatError
        When it is too large, damaged, no JSON of this kind, or contradicts itself: shapes that do not divide, fragments
        outside the grid, missing or twice, layouts that say otherwise, ranks outside their stage, names that are no
        files of an iteration. The message names the path and the place.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    raise NotImplementedError


def encode_metadata(metadata: ShardMetadata) -> bytes:
    """Return the text of a ``metadata.json`` as MindFormers writes it: indented by 4, UTF-8, no newline at the end."""
    raise NotImplementedError
