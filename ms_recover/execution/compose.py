"""One compose action: from pieces of several slices to a durable, checked file under its final name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import xxhash

from ms_recover.errors import FormatError, MsRecoverError, UsageError, VerificationError
from ms_recover.execution.context import ActionContext, Made
from ms_recover.execution.destination import Destination, own_manifest
from ms_recover.execution.image_writer import write_image
from ms_recover.execution.manifests import NamedSlice, check_against, manifest_in
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.formats.image import make_image
from ms_recover.formats.safetensors import CRC_NUM, update_crc
from ms_recover.model.compose import ComposeAction, ComposedParameter
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.outcome import ActionResult
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.slices import SliceHeader, SliceImage
from ms_recover.stores.store import Stop, Store


def complete_slice(
    action: ComposeAction, tree: Store, destination: Destination, *, verify: bool, dry_run: bool
) -> ActionResult:
    """Write a full slice that ``recover-ckpt complete`` asks for, put together of slices of a tree.

    With `dry_run` nothing is written, and sources are not read again, as far as none is needed to lay the file out.

    Raises
    ------
    UsageError
        When the target exists.
    MsRecoverError
        As for `compose_slice`.
    """
    if destination.lies(action.target):
        raise UsageError(
            f"{destination.path(action.target)} is there already: move it away, or name another file with --output"
        )
    context = ActionContext(tree=tree, verify=verify)
    if not dry_run:
        return compose_slice(action, destination, context).result_of(action)
    with PieceReader(action, context) as reader:
        size = _laid_out(action, reader).size
    destination.foresee(action.target, size)
    sources = ", ".join(source.path for source in action.sources)
    return Made(status="planned", source=sources, bytes=size).result_of(action)


def compose_slice(action: ComposeAction, destination: Destination, context: ActionContext) -> Made:
    """Write the slice of one action; a whole slice gets a manifest that names its sources.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    VerificationError
        When sources are not what the plan saw and no other holds the same, another file lies under the target's name,
        the file is not what was written, or it contradicts the manifest that the slice itself left.
    ms_recover.stores.local.StoppedError
        When asked to stop.
    """
    target, stop = action.target, context.stop
    with PieceReader(action, context) as reader:
        model = reader.model(action.model)
        image = _laid_out(action, reader)
        with destination.new_file(target, image.size, action.sources[model].path) as file:
            digests = write_image([file], image, action, reader, context)
            _check_own(image, digests, action, destination, context)
            if context.verify:
                destination.check_written(file, digests.file, stop)
            reader.check_unchanged()
            there = action.kind != "complete" and _is_there(action, image.size, digests.file, destination, stop)
            if there:
                kept = destination.kept_before(action)
            else:
                kept = destination.commit(file, target, digests.file, set_aside=action.set_aside is not None)
        return Made(
            status="already there" if there else "composed",
            source=", ".join(reader.used),
            bytes=0 if there else image.size,
            digest=digests.file,
            kept=kept,
            manifest=_manifest(action, image, digests, context) if action.kind == "compose" else None,
            dropped=tuple(reader.dropped),
        )


def _is_there(action: ComposeAction, size: int, digest: str, destination: Destination, stop: Stop) -> bool:
    """Whether the composed bytes lie under the target's name already.

    Raises
    ------
    VerificationError
        When something else lies there that the plan did not see.
    """
    if destination.holds(action.target, size, digest, stop) is not None:
        return True
    if action.kind == "partial" and action.replaces is None and destination.lies(action.target):
        where = destination.path(action.target)
        raise VerificationError(f"{where} is there already and holds something else: move it away, then apply again")
    destination.check_target(action.target, action.replaces)
    return False


def _manifest(action: ComposeAction, image: SliceImage, digests: Digests, context: ActionContext) -> Manifest:
    assert context.step is not None
    origins = [(source, context.source(source.path)) for source in action.sources]
    model = None
    with suppress(MsRecoverError):  # the slice is there, with a manifest of less
        model = manifest_in(origins[action.model][1], action.sources[action.model].path)
    subject = NamedSlice(
        action.target,
        action.rank,
        context.world_size,
        context.step,
        model.cumulative_step if model is not None else None,
        context.run_id or "",
        training=model.training.of_recovered() if model is not None and model.training is not None else None,
    )
    provenance = Provenance(
        kind="composed",
        evidence=action.evidence,
        sources=tuple(ProvenanceSource(source.rank, source.path, origin.host) for source, origin in origins),
        borrowed=action.borrowed,
    )
    strategy = model.strategy_digest if model is not None else None
    return subject.manifest(image, digests, action.group, strategy, provenance)


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


def _check_own(
    image: SliceImage, digests: Digests, action: ComposeAction, destination: Destination, context: ActionContext
) -> None:
    """Compare what was put together with the manifest that the lost slice left."""
    own = own_manifest(action, destination, context) if action.kind != "complete" else None
    if own is None:
        return
    names = (parameter.name for parameter in image.parameters)
    found = dict(zip(names, digests.parameters, strict=True))
    fits = partial(destination.holds, action.target, own.size, own.digests.file, context.stop)
    check_against(own, found, fits, borrowed=action.borrowed, whole=action.kind == "compose")
