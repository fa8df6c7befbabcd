"""One copy action: from a replica to a durable, checked file under its final name, with its manifest."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.bad_source import BadSourceError, blaming_source
from ms_recover.execution.context import ActionContext, Written, result_of
from ms_recover.execution.manifests import (
    TOOL,
    check_against,
    is_as_saved,
    make_manifest,
    manifest_in,
    write_manifest,
)
from ms_recover.execution.state_files import bring_state
from ms_recover.execution.targets import check_target, check_written
from ms_recover.formats.header import crc_problem, parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.actions import CopyAction, Replica
from ms_recover.model.manifest import Manifest
from ms_recover.model.outcome import ActionResult
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.slices import SliceHeader
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.digest import Digester, holds
from ms_recover.stores.store import OpenFile
from ms_recover.system_errors import DENIED, explained

_log = logging.getLogger(__name__)
_REPLACED = (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EIO)
"""Of a target that cannot be read."""
_TARGET_ERRNOS = (*DENIED, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def copy_slice(action: CopyAction, context: ActionContext) -> ActionResult:
    """Carry out one action: copy from the first replica that proves sound, and write the manifest.

    Returns
    -------
    ActionResult
        ``"copied"``, or ``"already there"`` when the target holds the source's bytes; replicas that failed are named.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    FormatError
        When the target lies elsewhere through a link.
    VerificationError
        When no source is what the plan saw, the target is not, the copy is not what was written, or it contradicts the
        manifest that the slice itself left.
    ms_recover.stores.local.StoppedError
        When asked to stop.
    """
    context.check_place(action)
    digest = context.journal.proven_digest(action, context.stop) if context.journal is not None else None
    if digest is not None and action.replica.digest in (None, digest):
        context.progress(action.bytes)
        written = Written(status="already there", digest=digest, kept=context.kept_before(action))
        return result_of(action, action.replica.rank, action.replica.path, written)
    dropped: list[str] = []
    last: MsRecoverError | None = None
    for replica in action.replicas:
        try:
            result = _copy_from(action, replica, context)
        except BadSourceError as failure:
            last = failure.error
            dropped.append(f"rank {replica.rank}: {last}")
            _log.warning("rank %d: source dropped: %s", action.rank, last)
        else:
            return replace(result, dropped=tuple(dropped))
    assert last is not None
    if len(dropped) > 1:
        raise VerificationError(f"no source is left for rank {action.rank}: {'; '.join(dropped)}") from last
    raise last


def _copy_from(action: CopyAction, replica: Replica, context: ActionContext) -> ActionResult:
    target, source = context.path(action.target), context.source(replica.path)
    with blaming_source():
        opened = source.open(replica.path, replica.state)
    with opened:
        with blaming_source():
            manifest = manifest_in(source, replica.path)
        digest = _digest_there(opened, target, action, replica, context)
        if is_there := digest is not None:
            written = Written(status="already there", digest=digest, kept=context.kept_before(action))
            context.progress(opened.size)
        else:
            digest, kept = _write(opened, manifest, action, replica, context)
            written = Written(status="copied", bytes=opened.size, digest=digest, kept=kept)
    origin = ProvenanceSource(replica.rank, replica.path, source.host)
    own = replica.rank == action.rank and source.url != context.root
    stated = own and bring_state(source, replica.path, manifest, target)
    copied = _manifest_of_copy(action, origin, manifest, context, stated=stated)
    if copied.digests.file != digest:
        raise VerificationError(f"{target} does not hold the bytes its source's manifest names: plan again")
    # What training saved with these bytes keeps its own manifest, unless the slice lay there and was rejected with it.
    if is_there or not is_as_saved(target, copied):
        write_manifest(target, copied, context.syncs)
    if context.journal is not None:
        context.journal.finished(action, digest)
    return result_of(action, replica.rank, replica.path, written)


def _digest_there(
    opened: OpenFile, target: str, action: CopyAction, replica: Replica, context: ActionContext
) -> str | None:
    """Return the digest when the target already holds the source's bytes.

    Raises
    ------
    VerificationError
        When a file lies there that the plan did not see.
    """
    with explained("reading", target):
        try:
            digest = holds(target, opened.size, replica.digest, context.stop)
        except OSError as error:
            if error.errno in _REPLACED:
                digest = None  # nothing there, or unreadable: replaced by name when the plan saw it
            else:
                raise
    if digest is not None:
        with blaming_source():
            if digest == (replica.digest or opened.digest(context.stop)):
                return digest
    check_target(target, action.replaces)
    return None


def _write(
    opened: OpenFile, manifest: Manifest | None, action: CopyAction, replica: Replica, context: ActionContext
) -> tuple[str, str | None]:
    """Write the target; return its digest, and where the slice is kept that was there."""
    with context.new_file(action.target, replica.path) as file:
        digest = _fill(file, opened, manifest, action, replica, context)
        with blaming_source():
            opened.check_unchanged()
        check_target(file.target, action.replaces)
        return digest, context.commit(file, action)


def _fill(
    file: AtomicFile,
    opened: OpenFile,
    manifest: Manifest | None,
    action: CopyAction,
    replica: Replica,
    context: ActionContext,
) -> str:
    """Write, check and sync the temporary file; return its digest."""
    try:
        with explained(f"copying {opened.name} to", file.path):
            size, digest = opened.copy_to(file.descriptor, context.stop, context.progress)
            file.settle(opened.form())
    except MsRecoverError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _TARGET_ERRNOS:
            raise
        raise BadSourceError(error) from error
    with blaming_source():
        if size != opened.size:
            raise VerificationError(
                f"{opened.name} gave {size} bytes instead of {opened.size}: it changes while it is read; plan again"
            )
        for expected in (replica.digest, manifest.digests.file if manifest is not None else None):
            if expected not in (None, digest):
                raise VerificationError(
                    f"{opened.name} holds other bytes ({digest}) than its manifest or the plan says ({expected}): "
                    "it is damaged, plan again to repair it"
                )
        # The source is still cached, of the copy's pages most are dropped; the target's name states the format.
        read_at = opened.read_at if opened.near else pread(file.descriptor)
        header = parse_header(read_at, opened.size, name=file.target)
        problem = (*header.problems, crc_problem(read_at, opened.size, header, stop=context.stop))[0]
        if problem is not None:
            raise VerificationError(f"{opened.name} is damaged ({problem}): plan again to repair it")
        _check_own(header, opened, digest, manifest, action, context)
    if context.verify:
        check_written(file, digest, context.stop)
    return digest


def _check_own(
    header: SliceHeader,
    opened: OpenFile,
    digest: str,
    manifest: Manifest | None,
    action: CopyAction,
    context: ActionContext,
) -> None:
    """Compare the copied parameters with the manifest that the lost slice left."""
    own = context.own_manifest(action)
    if own is None or own.digests.file == digest or header.encryption is not None:
        return
    if manifest is not None and manifest.digests.file == digest:
        digests = manifest.digests.parameters
    else:
        digester = Digester(header.contents)
        opened.read_range(0, opened.size, digester.update, context.stop)
        digests = digester.digests().parameters
    names = (parameter.name for parameter in header.parameters)
    found: Mapping[str, str] = dict(zip(names, digests, strict=True))
    check_against(own, found, context.path(action.target), borrowed=action.borrowed, stop=context.stop)


def _manifest_of_copy(
    action: CopyAction, origin: ProvenanceSource, manifest: Manifest | None, context: ActionContext, *, stated: bool
) -> Manifest:
    """Return the manifest of a copied slice: that of its source, or a new one, which names the source.

    With `stated` the slice's own state file came as well.
    """
    assert context.step is not None
    target = context.path(action.target)
    proven = manifest is not None and manifest.provenance.proven
    provenance = Provenance(
        kind="copied",
        evidence="manifest" if proven and action.evidence != "operator" else action.evidence,
        sources=(origin,),
        borrowed=action.borrowed,
    )
    if manifest is None:
        made = make_manifest(target, action.rank, context.step, context.world_size, action.group, context.run_id or "")
        manifest = replace(made, strategy_digest=None)  # the file that lies here now need not be that of the source
    return replace(
        manifest,
        rank=action.rank,
        file=os.path.basename(target),
        group=action.group,
        provenance=provenance,
        tool=TOOL,
        training=manifest.training if stated or manifest.training is None else manifest.training.of_recovered(),
    )
