"""Manifests as files: ``<slice file name>.manifest.json``, versions 1 and 2; see docs/formats.md."""

from __future__ import annotations

import os

from ms_recover.errors import FormatError, MissingInputError, StorageError
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter

MAX_SIZE = 256 << 20
"""Longest manifest that is read, in bytes: a million parameters fit."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the JSON of `manifest`, one parameter a line; equal manifests give equal bytes."""
    from ms_recover.formats.manifest_json import encode  # trees without manifests need no codec

    return encode(manifest)


def read_manifest(path: str | os.PathLike[str], *, like: tuple[Parameter, ...] = ()) -> Manifest:
    """Read a manifest.

    Parameters
    ----------
    path : str or path-like
        The file.
    like : tuple of Parameter
        What the slice beside it lists; a manifest that says the same shares it, and is read faster.

    Raises
    ------
    MissingInputError
        When it is not there.
    StorageError
        When it cannot be read.
    FormatError
        When it is not a manifest of a version this tool reads, or says what cannot be.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SIZE + 1)
    except FileNotFoundError:
        raise MissingInputError(f"{path}: no such manifest") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_SIZE:
        raise FormatError(f"{path} is longer than {MAX_SIZE} bytes: not a manifest")
    return decode_manifest(data, os.fspath(path), like)


def decode_manifest(data: bytes, where: str, like: tuple[Parameter, ...] = ()) -> Manifest:
    """Decode a manifest; `where` is for messages, `like` as for `read_manifest`.

    Raises
    ------
    FormatError
        When it is not a manifest.
    """
    from ms_recover.formats.manifest_json import decode

    try:
        return decode(data, like)
    except ValueError as error:
        raise FormatError(f"{where} is not a manifest that can be read: {error}; was it cut off?") from None
