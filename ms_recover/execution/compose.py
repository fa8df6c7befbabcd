"""One compose action: from pieces of several slices to a durable, checked file under its final name."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace

import xxhash

from ms_recover.errors import FormatError, UsageError, VerificationError
from ms_recover.execution.checks import check_target, check_written
from ms_recover.execution.copy import CopyOptions
from ms_recover.execution.givers import BadGiverError, Givers
from ms_recover.formats.ckpt import TRAILER
from ms_recover.formats.encrypted import TRAILER_MARK
from ms_recover.formats.header import parse_header
from ms_recover.formats.image import make_image
from ms_recover.formats.reading import pread
from ms_recover.formats.safetensors import CRC_NUM, update_crc
from ms_recover.model.compose import ComposeAction, ComposedParameter
from ms_recover.model.manifest import Digests
from ms_recover.model.outcome import ActionResult
from ms_recover.model.slices import ByteRange, SliceHeader, SliceImage
from ms_recover.model.verdicts import ActionStatus
from ms_recover.storage.digest import holds, name_digest
from ms_recover.storage.local import StoppedError, Temporary, claim_temporary, commit, explain, make_directory, settle
from ms_recover.storage.system import allocate
from ms_recover.storage.transfer import Writing


@dataclass(frozen=True)
class Composed:
    """A slice that was put together.

    Parameters
    ----------
    result : ActionResult
        What happened.
    image : SliceImage
        What the file is made of.
    digests : Digests
        Of the file and of each parameter.
    """

    result: ActionResult
    image: SliceImage
    digests: Digests


def run_compose(root: str, action: ComposeAction, options: CopyOptions) -> Composed:
    """Carry out one action.

    Parameters
    ----------
    root : str
        The tree.
    action : ComposeAction
        What to do.
    options : CopyOptions
        How.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    VerificationError
        When sources are not what the plan saw and no other holds the same, or what was written is not what it should
        be.
    ms_recover.storage.local.StoppedError
        When asked to stop.
    """
    target = os.path.join(root, action.target)
    with Givers(root, action, options.stop) as givers:
        model = givers.model(action.model)
        form = givers.header(model)
        if action.kind == "complete":
            form = replace(form, metadata=tuple(map(_not_dealt, form.metadata)))
        image = _image(action, form, givers)
        like = givers.status(model)
        with explain("making the directory of", target):
            make_directory(os.path.dirname(target), os.path.dirname(givers.path(model)), options.later)
        with claim_temporary(target) as temporary:
            with explain("writing", temporary.path):
                allocate(temporary.descriptor, image.size)
                digests = _Writer(temporary.descriptor, image, options).write(action, givers)
                settle(temporary, like)
            _check(temporary, image, digests, action, options)
            givers.check_unchanged()
            there = action.kind == "compose" and _is_there(target, action, image.size, digests.file, options)
            if not there:
                with explain("committing", target):
                    commit(temporary, target, options.later)
    status: ActionStatus = "already there" if there else "composed"
    count = 0 if there else image.size
    result = ActionResult(
        action.rank,
        None,
        ", ".join(givers.used),
        action.target,
        status,
        count,
        digests.file,
        dropped=tuple(givers.dropped),
    )
    return Composed(result, image, digests)


def _is_there(target: str, action: ComposeAction, size: int, digest: str, options: CopyOptions) -> bool:
    """Whether under the target's name lies just what was put together.

    Raises
    ------
    VerificationError
        When something else lies there that the plan did not see.
    """
    with suppress(OSError):  # what cannot be read is something else
        if holds(target, size, digest, options.stop) is not None:
            return True
    check_target(target, action.replaces)
    return False


def _not_dealt(entry: tuple[str, str]) -> tuple[str, str]:
    return (entry[0], "False") if entry[0] == "remove_redundancy" else entry


def _image(action: ComposeAction, model: SliceHeader, givers: Givers) -> SliceImage:
    """Lay the file out; a safetensors file with a CRC needs all contents read once before."""
    parameters = [item.parameter for item in action.parameters]
    crc = None
    try:
        if any(key == CRC_NUM for key, _ in model.metadata):
            crc = _crc_num(action, givers)
        return make_image(parameters, model, crc_num=crc)
    except UsageError as error:
        raise VerificationError(f"{action.target} cannot be put together: {error}") from error


def _crc_num(action: ComposeAction, givers: Givers) -> int | None:
    """Return the CRC that MindSpore would write, None where it could not have written one."""
    crc = 0
    try:
        for item in sorted(action.parameters, key=lambda item: item.parameter.name):
            while True:
                try:
                    crc = update_crc(crc, item.parameter, map(bytes, givers.contents(item)))
                    break
                except BadGiverError as failure:
                    givers.drop(failure)
    except FormatError:
        return None
    return crc


class _Writer:
    """Write an image with its contents, front to back, and digest what is written."""

    def __init__(self, descriptor: int, image: SliceImage, options: CopyOptions) -> None:
        self._image = image
        self._options = options
        self._literals = dict(image.literals)
        self._file = xxhash.xxh3_128()
        self._crc = 0
        self._at = 0
        self._writing = Writing(descriptor)

    def write(self, action: ComposeAction, givers: Givers) -> Digests:
        """Write everything; return the digests of the file and of each parameter."""
        items = {item.parameter.name: item for item in action.parameters}
        digests = []
        for parameter, ranges in zip(self._image.parameters, self._image.contents, strict=True):
            before = self._file.copy(), self._crc, self._at
            while True:
                try:
                    digests.append(self._parameter(items[parameter.name], ranges, givers))
                    self._options.progress(parameter.nbytes)
                    break
                except BadGiverError as failure:
                    givers.drop(failure)
                    file, self._crc, self._at = before
                    self._file = file.copy()
                    self._writing.rewind(self._at)
        self._put_literal()
        if self._image.crc:
            self._put(memoryview(TRAILER_MARK + self._crc.to_bytes(TRAILER - len(TRAILER_MARK), "big")))
        return Digests(name_digest(self._file), tuple(digests))

    def _parameter(self, item: ComposedParameter, ranges: tuple[ByteRange, ...], givers: Givers) -> str:
        digest = xxhash.xxh3_128()
        windows = givers.contents(item)
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
        givers.check(item, name_digest(digest))
        return name_digest(digest)

    def _put_literal(self) -> None:
        if self._at in self._literals:
            self._put(memoryview(self._literals[self._at]))

    def _put(self, data: memoryview) -> None:
        if self._options.stop():
            raise StoppedError
        self._file.update(data)
        if self._image.crc:
            self._crc = zlib.crc32(data, self._crc)
        self._writing.write(data)
        self._at += len(data)


def _check(
    temporary: Temporary, image: SliceImage, digests: Digests, action: ComposeAction, options: CopyOptions
) -> None:
    """Check what was written: its structure, its digest where that is known, and that the device holds it."""
    header = parse_header(pread(temporary.descriptor), image.size, name=action.target)
    if header.problems or header.parameters != image.parameters or header.contents != image.contents:
        why = header.problems[0] if header.problems else "it lists other parameters"
        raise VerificationError(f"{temporary.path} is not what was put together ({why}): check the system log")
    if options.verify:
        check_written(temporary, digests.file, options.stop)
