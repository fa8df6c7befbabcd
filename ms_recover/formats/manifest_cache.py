"""Decode the manifests of many slices that list the same parameters.

They differ in their first lines and in their digests only. Once one was decoded and checked, the text between the
digests of another proves that it lists the same, in a fraction of the time.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ms_recover.errors import FormatError
from ms_recover.formats.manifest import decode_known, decode_manifest
from ms_recover.model.manifest import DIGEST, Manifest
from ms_recover.model.slices import Parameter, ParameterList

_BEGIN = b'\n "parameters": ['
"""As `ms_recover.formats.manifest_json.encode` writes it; in a string no line break stands as itself."""
_DIGEST = re.compile(rf'"digest": "({DIGEST}:[0-9a-f]{{32}})"', re.ASCII)
_MOST_KNOWN = 64
_MOST_BYTES = 8 << 20


class KnownManifests:
    """The texts of manifests that were decoded before; threads may share them, as they only grow."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], ParameterList] = {}

    def decode(self, data: bytes, where: str, like: tuple[Parameter, ...] = ()) -> Manifest:
        """Decode a manifest, as `ms_recover.formats.manifest.decode_manifest`; equal lists share their parameters."""
        head, begin, rest = data.partition(_BEGIN)
        if not begin or len(rest) > _MOST_BYTES or not rest.isascii():
            return decode_manifest(data, where, like)
        texts = _DIGEST.split(rest.decode())
        between, digests = tuple(texts[::2]), tuple(texts[1::2])
        known = self._known.get(between)
        if known is not None:
            try:
                return decode_known(head + b'"parameters":[]}', where, known, digests)
            except FormatError:
                return decode_manifest(data, where, like)
        manifest = decode_manifest(data, where, like)
        if manifest.digests.parameters != digests or len(self._known) >= _MOST_KNOWN:
            return manifest
        listed = manifest.parameters
        shared = listed if isinstance(listed, ParameterList) else ParameterList(listed)
        self._known[between] = shared
        return replace(manifest, parameters=shared)
