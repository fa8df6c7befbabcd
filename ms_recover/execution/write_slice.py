"""Write a slice from the values in memory, byte for byte as MindSpore would, and digest it meanwhile.

MindSpore copies the contents of a ``.ckpt`` three times before they reach the file. Here they go there straight from
the memory of the parameters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ms_recover.formats.image import ckpt_image, default_pieces, safetensors_image
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import Parameter, SliceImage
from ms_recover.stores.digest import Digester
from ms_recover.stores.system import allocate, start_writing

_CACHED = 1 << 20
"""Bytes that are digested at once, for the file and for the parameter, while they are in the processor's cache."""
_TOGETHER = 1 << 20
"""Bytes up to which small pieces are written together."""
_BEGUN = 16 << 20
"""Bytes that the device begins to write together."""
_METADATA = (("format", "ms"),)
"""What MindSpore says in the header of each safetensors file."""


def write_slice(path: str, form: str, parameters: Sequence[Parameter], contents: Sequence[memoryview]) -> Digests:
    """Write the file that ``mindspore.save_checkpoint`` would write of the same values, durably; return its digests.

    Parameters
    ----------
    path : str
        The file, which must not exist.
    form : {"ckpt", "safetensors"}
        Its format.
    parameters : sequence of Parameter
        Name, type and shape, in the order in which MindSpore saves them.
    contents : sequence of memoryview
        The bytes of each, which must not change meanwhile.

    Raises
    ------
    UsageError
        When the format cannot hold a parameter.
    OSError
        When the file system refuses.
    """
    if form == "ckpt":
        image = ckpt_image(parameters, [default_pieces(parameter.nbytes) for parameter in parameters])
    else:
        image = safetensors_image(parameters, _METADATA)
    values = {parameter.name: content for parameter, content in zip(parameters, contents, strict=True)}
    pieces = _pieces(image, [values[parameter.name] for parameter in image.parameters])
    with ThreadPoolExecutor(1, "digests") as beside:
        digests = beside.submit(_digest, image, pieces)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            allocate(descriptor, image.size)
            _write(descriptor, pieces)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return digests.result()


def _pieces(image: SliceImage, contents: Sequence[memoryview]) -> list[memoryview]:
    """Return the bytes of the file, in order."""
    pieces = [(at, memoryview(literal)) for at, literal in image.literals]
    for ranges, content in zip(image.contents, contents, strict=True):
        taken = 0
        for piece in ranges:
            pieces.append((piece.start, content[taken : taken + piece.length]))
            taken += piece.length
    return [piece for at, piece in sorted(pieces, key=lambda piece: piece[0])]


def _digest(image: SliceImage, pieces: Sequence[memoryview]) -> Digests:
    digester = Digester(image.contents)
    for piece in pieces:
        for start in range(0, len(piece), _CACHED):
            digester.update(piece[start : start + _CACHED])
    return digester.digests()


def _write(descriptor: int, pieces: Sequence[memoryview]) -> None:
    small = bytearray()
    for piece in pieces:
        if len(small) + len(piece) <= _TOGETHER:
            small += piece
        else:
            _write_all(descriptor, memoryview(small))
            _write_all(descriptor, piece)
            small = bytearray()
    _write_all(descriptor, memoryview(small))


def _write_all(descriptor: int, data: memoryview) -> None:
    """Write bytes, and have the device begin with them: the sync at the end waits for less."""
    while data:
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        written = os.write(descriptor, data[:_BEGUN])
        start_writing(descriptor, at, written)
        data = data[written:]
