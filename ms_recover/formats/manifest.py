"""Manifests as files: ``<slice file name>.manifest.json``, versions 1 and 2; see docs/formats.md."""

from __future__ import annotations

import os

from ms_recover.errors import FormatError
from ms_recover.formats.reading import read_small
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter

MAX_SIZE = 256 << 20
"""Longest manifest that is read, in bytes: a million parameters fit."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the JSON of `manifest`, one parameter a line; equal manifests give equal bytes."""
    from ms_recover.formats.manifest_json import encode  # trees without manifests need no codec

    return encode(manifest)


def read_manifest(path: str | os.PathLike[str], *, like: tuple[Parameter, ...] = ()) -> Manifest:
    """Read a manifest; one that lists the parameters `like`, those of its slice, shares that tuple and is read faster.

    Raises
    ------
    FormatError
        As `decode_manifest`.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    return decode_manifest(read_small(path, "a manifest", MAX_SIZE), os.fspath(path), like)


def decode_manifest(data: bytes, where: str, like: tuple[Parameter, ...] = ()) -> Manifest:
    """Decode a manifest, `where` in messages and `like` as for `read_manifest`.

    A FormatError says that it is no manifest of a version this tool reads, or states what is impossible.
    """
    from ms_recover.formats.manifest_json import decode

    try:
        return decode(data, like)
    except ValueError as error:
        raise _malformed(where, error) from None


def decode_known(data: bytes, where: str, parameters: tuple[Parameter, ...], digests: tuple[str, ...]) -> Manifest:
    """Decode a manifest whose parameters are left out of the data, because they are known; errors as above."""
    from ms_recover.formats.manifest_json import decode_head

    try:
        return decode_head(data, parameters, digests)
    except ValueError as error:
        raise _malformed(where, error) from None


def _malformed(where: str, error: ValueError) -> FormatError:
    return FormatError(f"{where} is not a manifest that can be read: {error}; was it cut off?")
