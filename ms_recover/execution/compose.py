"""One compose action: from pieces of several slices to a durable, checked file under its final name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import xxhash

from ms_recover.errors import FormatError, MsRecoverError, UsageError, VerificationError
from ms_recover.execution.context import ActionContext, Written, result_of
from ms_recover.execution.image_writer import ImageWriter
from ms_recover.execution.manifests import TOOL, check_against, is_as_saved, manifest_in, write_manifest
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.execution.targets import check_target, check_written
from ms_recover.execution.writable import check_writable
from ms_recover.formats.header import parse_header
from ms_recover.formats.image import make_image
from ms_recover.formats.reading import pread
from ms_recover.formats.safetensors import CRC_NUM, update_crc
from ms_recover.model.compose import ComposeAction, ComposedParameter
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.outcome import ActionResult
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.slices import SliceHeader, SliceImage
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.digest import holds
from ms_recover.stores.store import Store
from ms_recover.stores.system import allocate
from ms_recover.system_errors import explained

_NOWHERE: Mapping[str, Store] = MappingProxyType({})


def complete_slice(
    root: str, action: ComposeAction, *, verify: bool = True, elsewhere: Mapping[str, Store] = _NOWHERE
) -> ActionResult:
    """Write a full slice that ``recover-ckpt complete`` asks for; a UsageError when its target exists."""
    path = os.path.join(root, action.target)
    _refuse_there(path)
    return _compose(action, ActionContext(root=root, elsewhere=elsewhere, verify=verify))


def foresee_slice(root: str, action: ComposeAction, *, elsewhere: Mapping[str, Store] = _NOWHERE) -> ActionResult:
    """Return what `complete_slice` would do, without writing anything; errors as there.

    Sources are not read again, as far as none is needed to lay the file out.
    """
    path = os.path.join(root, action.target)
    _refuse_there(path)
    with PieceReader(action, ActionContext(root=root, elsewhere=elsewhere)) as reader:
        size = _laid_out(action, reader).size
    check_writable(path, size)
    sources = ", ".join(source.path for source in action.sources)
    return result_of(action, None, sources, Written(status="planned", bytes=size))


def _refuse_there(path: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already: move it away, or name another file with --output")


def compose_slice(action: ComposeAction, context: ActionContext) -> ActionResult:
    """Carry out one action; a whole slice gets a manifest that names its sources, or keeps one of training that fits.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    FormatError
        When the target lies elsewhere through a link.
    VerificationError
        When sources are not what the plan saw and no other holds the same, another file lies under the target's name,
        the file is not what was written, or it contradicts the manifest that the slice itself left.
    ms_recover.stores.local.StoppedError
        When asked to stop.
    """
    context.check_place(action)
    digest = context.journal.proven_digest(action, context.stop) if context.journal is not None else None
    if digest is not None:
        context.progress(action.bytes)
        sources = ", ".join(source.path for source in action.sources)
        written = Written(status="already there", digest=digest, kept=context.kept_before(action))
        return result_of(action, None, sources, written)
    return _compose(action, context)


def _compose(action: ComposeAction, context: ActionContext) -> ActionResult:
    with PieceReader(action, context) as reader:
        model = reader.model(action.model)
        image = _laid_out(action, reader)
        with context.new_file(action.target, action.sources[model].path) as file:
            with explained("writing", file.path):
                allocate(file.descriptor, image.size)
                digests = ImageWriter([file.descriptor], image, context).write(action, reader)
                file.settle(reader.opened(model).form())
            _check(file, image, digests, action, context)
            reader.check_unchanged()
            there = action.kind != "complete" and _is_there(file.target, action, image.size, digests.file, context)
            kept = context.kept_before(action) if there else context.commit(file, action)
        if action.kind == "compose":
            _write_manifest(action, image, digests, context, there=there)
        size = 0 if there else image.size
        written = Written(status="already there" if there else "composed", bytes=size, digest=digests.file, kept=kept)
        result = result_of(action, None, ", ".join(reader.used), written)
        return replace(result, dropped=tuple(reader.dropped))


def _is_there(target: str, action: ComposeAction, size: int, digest: str, context: ActionContext) -> bool:
    """Whether the composed bytes lie under the target's name already.

    Raises
    ------
    VerificationError
        When something else lies there that the plan did not see.
    """
    with suppress(OSError):  # an unreadable file holds something else
        if holds(target, size, digest, context.stop) is not None:
            return True
    if action.kind == "partial" and action.replaces is None and os.path.lexists(target):
        raise VerificationError(f"{target} is there already and holds something else: move it away, then apply again")
    check_target(target, action.replaces)
    return False


def _write_manifest(
    action: ComposeAction, image: SliceImage, digests: Digests, context: ActionContext, *, there: bool
) -> None:
    assert context.step is not None
    origins = [(source, context.source(source.path)) for source in action.sources]
    model = None
    with suppress(MsRecoverError):  # the slice is there, with a manifest of less
        model = manifest_in(origins[action.model][1], action.sources[action.model].path)
    manifest = Manifest(
        run_id=context.run_id or "",
        rank=action.rank,
        world_size=context.world_size,
        step=context.step,
        cumulative_step=model.cumulative_step if model is not None else None,
        file=os.path.basename(action.target),
        size=image.size,
        digests=digests,
        parameters=image.parameters,
        group=action.group,
        strategy_digest=model.strategy_digest if model is not None else None,
        provenance=Provenance(
            kind="composed",
            evidence=action.evidence,
            sources=tuple(ProvenanceSource(source.rank, source.path, origin.host) for source, origin in origins),
            borrowed=action.borrowed,
        ),
        tool=TOOL,
        training=model.training.of_recovered() if model is not None and model.training is not None else None,
    )
    if there or not is_as_saved(context.path(action.target), manifest):
        write_manifest(context.path(action.target), manifest, context.syncs)
    if context.journal is not None:
        context.journal.finished(action, digests.file)


def _not_dealt(entry: tuple[str, str]) -> tuple[str, str]:
    return (entry[0], "False") if entry[0] == "remove_redundancy" else entry


def _laid_out(action: ComposeAction, reader: PieceReader) -> SliceImage:
    header = reader.header(reader.model(action.model))
    if action.kind == "complete":
        header = replace(header, metadata=tuple(map(_not_dealt, header.metadata)))
    return _image(action, header, reader)


def _image(action: ComposeAction, model: SliceHeader, reader: PieceReader) -> SliceImage:
    """Lay the file out; a safetensors file with a CRC needs all contents read once before."""
    parameters = [item.parameter for item in action.parameters]
    crc = None
    try:
        if any(key == CRC_NUM for key, _ in model.metadata):
            crc = _crc_num(action, reader)
        return make_image(parameters, model, crc_num=crc)
    except UsageError as error:
        raise VerificationError(f"{action.target} cannot be put together: {error}") from error


def _crc_num(action: ComposeAction, reader: PieceReader) -> int | None:
    """Return the CRC that MindSpore would write, None where it could not have written one."""
    crc = 0
    try:
        for item in sorted(action.parameters, key=lambda item: item.parameter.name):
            crc = reader.attempt(partial(_crc_with, crc, item, reader))
    except FormatError:
        return None
    return crc


def _crc_with(crc: int, item: ComposedParameter, reader: PieceReader) -> int:
    return update_crc(crc, item.parameter, map(bytes, reader.proven(item, xxhash.xxh3_128())))


def _check(
    file: AtomicFile, image: SliceImage, digests: Digests, action: ComposeAction, context: ActionContext
) -> None:
    """Check what was written: its structure, its digest where that is known, and that the device holds it."""
    header = parse_header(pread(file.descriptor), image.size, name=action.target)
    if header.problems or header.parameters != image.parameters or header.contents != image.contents:
        why = header.problems[0] if header.problems else "it lists other parameters"
        raise VerificationError(f"{file.path} is not what was put together ({why}): check the system log")
    own = context.own_manifest(action)
    if own is not None and action.kind != "complete":
        names = (parameter.name for parameter in image.parameters)
        found = dict(zip(names, digests.parameters, strict=True))
        check_against(
            own,
            found,
            context.path(action.target),
            borrowed=action.borrowed,
            whole=action.kind == "compose",
            stop=context.stop,
        )
    if context.verify:
        check_written(file, digests.file, context.stop)
