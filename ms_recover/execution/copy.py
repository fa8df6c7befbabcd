"""One copy action: from a replica to a durable, checked file under its final name, with its manifest."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.context import ActionContext, Written, result_of
from ms_recover.execution.manifests import (
    TOOL,
    check_against,
    is_as_saved,
    make_manifest,
    manifest_in,
    write_manifest,
)
from ms_recover.execution.sources import BadSourceError, Sources, blaming_source
from ms_recover.execution.state_files import bring_state
from ms_recover.execution.targets import check_target, check_written
from ms_recover.formats.header import crc_problem, parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.actions import CopyAction
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
    sources = Sources(action.replicas)

    def copy() -> ActionResult:
        return _Copy(action, sources.first(range(len(action.replicas))), context).carry_out()

    def warn(failure: BadSourceError) -> None:
        _log.warning("rank %d: source dropped: %s", action.rank, failure.error)

    try:
        return replace(sources.attempt(copy, warn), dropped=tuple(sources.dropped))
    except MsRecoverError as error:
        if len(sources.dropped) < max(2, len(action.replicas)):
            raise
        raise VerificationError(f"no source is left for rank {action.rank}: {'; '.join(sources.dropped)}") from error


class _Copy:
    """The copy from one replica, which a `BadSourceError` blames."""

    def __init__(self, action: CopyAction, number: int, context: ActionContext) -> None:
        self._action, self._context, self._number = action, context, number
        self._replica = action.replicas[number]
        self._source = context.source(self._replica.path)
        self._target = context.path(action.target)
        self._manifest: Manifest | None = None

    def carry_out(self) -> ActionResult:
        """Copy, and write the manifest; result and errors as for `copy_slice`."""
        action, context, replica = self._action, self._context, self._replica
        with self._blamed():
            opened = self._source.open(replica.path, replica.state)
        with opened:
            with self._blamed():
                self._manifest = manifest_in(self._source, replica.path)
            digest = self._digest_there(opened)
            if is_there := digest is not None:
                written = Written(status="already there", digest=digest, kept=context.kept_before(action))
                context.progress(opened.size)
            else:
                digest, kept = self._write(opened)
                written = Written(status="copied", bytes=opened.size, digest=digest, kept=kept)
        own = replica.rank == action.rank and self._source.url != context.root
        stated = own and bring_state(self._source, replica.path, self._manifest, self._target)
        copied = self._manifest_of_copy(stated=stated)
        if copied.digests.file != digest:
            raise VerificationError(f"{self._target} does not hold the bytes its source's manifest names: plan again")
        # What training saved with these bytes keeps its manifest, unless the slice lay there and was rejected with it.
        if is_there or not is_as_saved(self._target, copied):
            write_manifest(self._target, copied, context.syncs)
        if context.journal is not None:
            context.journal.finished(action, digest)
        return result_of(action, replica.rank, replica.path, written)

    def _blamed(self) -> AbstractContextManager[None]:
        return blaming_source(self._number)

    def _digest_there(self, opened: OpenFile) -> str | None:
        """Return the digest when the target already holds the source's bytes.

        Raises
        ------
        VerificationError
            When a file lies there that the plan did not see.
        """
        expected, stop = self._replica.digest, self._context.stop
        with explained("reading", self._target):
            try:
                digest = holds(self._target, opened.size, expected, stop)
            except OSError as error:
                if error.errno in _REPLACED:
                    digest = None  # nothing there, or unreadable: replaced by name when the plan saw it
                else:
                    raise
        if digest is not None:
            with self._blamed():
                if digest == (expected or opened.digest(stop)):
                    return digest
        check_target(self._target, self._action.replaces)
        return None

    def _write(self, opened: OpenFile) -> tuple[str, str | None]:
        """Write the target; return its digest, and where the slice is kept that was there."""
        with self._context.new_file(self._action.target, self._replica.path) as file:
            digest = self._fill(file, opened)
            with self._blamed():
                opened.check_unchanged()
            check_target(file.target, self._action.replaces)
            return digest, self._context.commit(file, self._action)

    def _fill(self, file: AtomicFile, opened: OpenFile) -> str:
        """Write, check and sync the temporary file; return its digest."""
        context = self._context
        try:
            with explained(f"copying {opened.name} to", file.path):
                size, digest = opened.copy_to(file.descriptor, context.stop, context.progress)
                file.settle(opened.form())
        except MsRecoverError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _TARGET_ERRNOS:
                raise
            raise BadSourceError(error, self._number) from error
        with self._blamed():
            self._check(file, opened, size, digest)
        if context.verify:
            check_written(file, digest, context.stop)
        return digest

    def _check(self, file: AtomicFile, opened: OpenFile, size: int, digest: str) -> None:
        """See that the bytes which were copied are those that the source should have, and a whole slice."""
        if size != opened.size:
            raise VerificationError(
                f"{opened.name} gave {size} bytes instead of {opened.size}: it changes while it is read; plan again"
            )
        manifest = self._manifest
        for expected in (self._replica.digest, manifest.digests.file if manifest is not None else None):
            if expected not in (None, digest):
                raise VerificationError(
                    f"{opened.name} holds other bytes ({digest}) than its manifest or the plan says ({expected}): "
                    "it is damaged, plan again to repair it"
                )
        # The source is still cached, of the copy's pages most are dropped; the target's name states the format.
        read_at = opened.read_at if opened.near else pread(file.descriptor)
        header = parse_header(read_at, opened.size, name=file.target)
        problem = (*header.problems, crc_problem(read_at, opened.size, header, stop=self._context.stop))[0]
        if problem is not None:
            raise VerificationError(f"{opened.name} is damaged ({problem}): plan again to repair it")
        self._check_own(header, opened, digest)

    def _check_own(self, header: SliceHeader, opened: OpenFile, digest: str) -> None:
        """Compare the copied parameters with the manifest that the lost slice left."""
        manifest, action, stop = self._manifest, self._action, self._context.stop
        own = self._context.own_manifest(action)
        if own is None or own.digests.file == digest or header.encryption is not None:
            return
        if manifest is not None and manifest.digests.file == digest:
            digests = manifest.digests.parameters
        else:
            digester = Digester(header.contents)
            opened.read_range(0, opened.size, digester.update, stop)
            digests = digester.digests().parameters
        names = (parameter.name for parameter in header.parameters)
        found: Mapping[str, str] = dict(zip(names, digests, strict=True))
        check_against(own, found, self._target, borrowed=action.borrowed, stop=stop)

    def _manifest_of_copy(self, *, stated: bool) -> Manifest:
        """Return the manifest of a copied slice: that of its source, or a new one, which names the source.

        With `stated` the slice's own state file came as well.
        """
        action, context, manifest = self._action, self._context, self._manifest
        assert context.step is not None
        proven = manifest is not None and manifest.provenance.proven
        provenance = Provenance(
            kind="copied",
            evidence="manifest" if proven and action.evidence != "operator" else action.evidence,
            sources=(ProvenanceSource(self._replica.rank, self._replica.path, self._source.host),),
            borrowed=action.borrowed,
        )
        if manifest is None:
            known = context.step, context.world_size, action.group, context.run_id or ""
            made = make_manifest(self._target, action.rank, *known)
            manifest = replace(made, strategy_digest=None)  # the file that lies here need not be that of the source
        return replace(
            manifest,
            rank=action.rank,
            file=os.path.basename(self._target),
            group=action.group,
            provenance=provenance,
            tool=TOOL,
            training=manifest.training if stated or manifest.training is None else manifest.training.of_recovered(),
        )
