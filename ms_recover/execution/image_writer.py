"""Write a slice from an image and the pieces of its contents, front to back, and digest it meanwhile."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import xxhash

from ms_recover.errors import UsageError, VerificationError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.execution.sources import BadSourceError
from ms_recover.formats.cast import Caster
from ms_recover.formats.ckpt import TRAILER
from ms_recover.formats.encrypted import TRAILER_MARK
from ms_recover.formats.header import parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.compose import ComposeAction, ComposedParameter
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import ByteRange, SliceImage
from ms_recover.stores.atomic import AtomicFile, FileForm
from ms_recover.stores.digest import name_digest
from ms_recover.stores.local import StoppedError
from ms_recover.stores.system import allocate
from ms_recover.stores.threads import in_threads
from ms_recover.stores.transfer import Writing
from ms_recover.system_errors import explained

_SYNCED_TOGETHER = 4
"""Files that wait for the device at a time: a file system then makes one commit for several."""
NO_CASTS: Mapping[str, str] = MappingProxyType({})


def write_image(
    files: Sequence[AtomicFile],
    image: SliceImage,
    action: ComposeAction,
    reader: PieceReader,
    context: ActionContext,
    casts: Mapping[str, str] = NO_CASTS,
) -> Digests:
    """Write files that hold the same out of one reading, make them durable, and see that they are what they should be.

    Without files everything is read and digested, no more.

    Raises
    ------
    VerificationError
        When a file has another structure than its image, or no source of a piece is what it should be.
    MsRecoverError
        When reading or writing fails.
    """
    model = reader.model(action.model)
    for file in files:
        with explained("writing", file.path):
            allocate(file.descriptor, image.size)
    with explained("writing", files[0].path if files else action.target):
        digests = _ImageWriter([file.descriptor for file in files], image, context, casts).write(action, reader)
    if files:
        settle = partial(_settle, form=reader.opened(model).form())
        _ = in_threads(_SYNCED_TOGETHER, settle, files) if len(files) > 1 else settle(files[0])
    for file in files:
        header = parse_header(pread(file.descriptor), image.size, name=action.target)
        if header.problems or (header.parameters, header.contents) != (image.parameters, image.contents):
            why = header.problems[0] if header.problems else "it lists other parameters"
            raise VerificationError(f"{file.path} is not what was put together ({why}): check the system log")
    return digests


def _settle(file: AtomicFile, form: FileForm) -> None:
    with explained("writing", file.path):
        file.settle(form)


class _ImageWriter:
    """Write an image with its contents to one file or several, front to back, and digest what is written.

    `casts` has the type that each parameter of another type is cast to, by its name.
    """

    def __init__(
        self, descriptors: Sequence[int], image: SliceImage, context: ActionContext, casts: Mapping[str, str]
    ) -> None:
        self._image = image
        self._casts = casts
        self._context = context
        self._literals = dict(image.literals)
        self._file = xxhash.xxh3_128()
        self._crc = 0
        self._at = 0
        self._begun = self._file, self._crc, self._at
        self._writings = [Writing(descriptor) for descriptor in descriptors]

    def write(self, action: ComposeAction, reader: PieceReader) -> Digests:
        """Write everything; return the digests of the file and of each parameter."""
        items = {item.parameter.name: item for item in action.parameters}
        digests = []
        for parameter, ranges in zip(self._image.parameters, self._image.contents, strict=True):
            self._begun = self._file.copy(), self._crc, self._at
            write = partial(self._parameter, items[parameter.name], ranges, reader)
            digests.append(reader.attempt(write, self._rewind))
            self._context.progress(parameter.nbytes * len(self._writings))
        self._put_literal()
        if self._image.crc:
            self._put(memoryview(TRAILER_MARK + self._crc.to_bytes(TRAILER - len(TRAILER_MARK), "big")))
        return Digests(name_digest(self._file), tuple(digests))

    def _rewind(self, _: BadSourceError) -> None:
        """Go back to where the parameter began."""
        file, self._crc, self._at = self._begun
        self._file = file.copy()
        for writing in self._writings:
            writing.rewind(self._at)

    def _parameter(self, item: ComposedParameter, ranges: tuple[ByteRange, ...], reader: PieceReader) -> str:
        digest = source = xxhash.xxh3_128()
        windows = reader.contents(item)
        wanted = self._casts.get(item.parameter.name)
        caster = Caster(item.parameter.dtype, wanted) if wanted is not None else None
        if caster is not None:
            source = xxhash.xxh3_128()
            windows = _cast(windows, caster, source)
        data = memoryview(b"")
        for place in ranges:
            self._put_literal()
            left = place.length
            while left:
                data = data or next(windows)
                part = data[:left]
                digest.update(part)
                self._put(part)
                data, left = data[len(part) :], left - len(part)
        windows.close()
        reader.check(item, name_digest(source))
        if caster is not None and caster.lost is not None:
            raise UsageError(
                f"{item.parameter.name!r} holds {caster.lost:g}, which {wanted} cannot hold: it would become infinite; "
                "choose another --dtype"
            )
        return name_digest(digest)

    def _put_literal(self) -> None:
        if self._at in self._literals:
            self._put(memoryview(self._literals[self._at]))

    def _put(self, data: memoryview) -> None:
        if self._context.stop():
            raise StoppedError
        self._file.update(data)
        if self._image.crc:
            self._crc = zlib.crc32(data, self._crc)
        for writing in self._writings:
            writing.write(data)
        self._at += len(data)


def _cast(
    windows: Generator[memoryview, None, None], caster: Caster, digest: xxhash.xxh3_128
) -> Generator[memoryview, None, None]:
    for window in windows:
        digest.update(window)
        yield caster.cast(window)
