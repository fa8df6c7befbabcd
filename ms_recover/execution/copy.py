"""One copy action: a recipe of one whole piece, from a replica to a durable, checked file under its final name."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.context import ActionContext, Made
from ms_recover.execution.destination import Destination, own_manifest
from ms_recover.execution.manifests import TOOL, NamedSlice, check_against, manifest_in, seal_open
from ms_recover.execution.sources import BadSourceError, Sources, blaming_source
from ms_recover.execution.state_files import MOST_STATE, STATE_MODE
from ms_recover.file_names import STATE_SUFFIX
from ms_recover.formats.header import crc_problem, parse_header
from ms_recover.formats.reading import pread
from ms_recover.model.actions import CopyAction
from ms_recover.model.manifest import Manifest
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.slices import SliceHeader
from ms_recover.model.verdicts import ActionStatus
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.digest import Digester, digest_of
from ms_recover.stores.local_store import LocalFile
from ms_recover.stores.store import OpenFile
from ms_recover.system_errors import DENIED, explained

_log = logging.getLogger(__name__)
_TARGET_ERRNOS = (*DENIED, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def copy_slice(action: CopyAction, destination: Destination, context: ActionContext) -> Made:
    """Write the slice of one action: copy from the first replica that proves sound.

    Returns
    -------
    Made
        ``"copied"``, or ``"already there"`` when the target holds the source's bytes; replicas that failed are named.

    Raises
    ------
    MissingInputError, StorageError
        When reading or writing fails.
    VerificationError
        When no source is what the plan saw, the target is not, the copy is not what was written, or it contradicts the
        manifest that the slice itself left.
    ms_recover.stores.local.StoppedError
        When asked to stop.
    """
    sources = Sources([f"rank {replica.rank}" for replica in action.replicas])

    def copy() -> Made:
        return _Copy(action, sources.first(range(len(action.replicas))), destination, context).carry_out()

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

    def __init__(self, action: CopyAction, number: int, destination: Destination, context: ActionContext) -> None:
        self._action, self._number, self._destination, self._context = action, number, destination, context
        self._replica = action.replicas[number]
        self._source = context.source(self._replica.path)
        self._manifest: Manifest | None = None

    def carry_out(self) -> Made:
        """Copy, unless the bytes lie there; result and errors as for `copy_slice`."""
        action, replica, destination = self._action, self._replica, self._destination
        with self._blamed():
            opened = self._source.open(replica.path, replica.state)
        with opened:
            with self._blamed():
                self._manifest = manifest_in(self._source, replica.path)
            digest = self._digest_there(opened)
            if digest is None:
                return self._write(opened)
        self._context.progress(opened.size)
        manifest = self._manifest or self._sealed(destination.store.open(action.target))
        return self._made("already there", digest, manifest, kept=destination.kept_before(action))

    def _made(self, status: ActionStatus, digest: str, manifest: Manifest, *, kept: str | None, size: int = 0) -> Made:
        action, replica, destination = self._action, self._replica, self._destination
        if manifest.digests.file != digest:
            where = destination.path(action.target)
            raise VerificationError(f"{where} does not hold the bytes its source's manifest names: plan again")
        own = replica.rank == action.rank and self._source.url != destination.store.url
        stated = own and self._bring_state(manifest)
        return Made(
            status=status,
            source_rank=replica.rank,
            source=replica.path,
            bytes=size,
            digest=digest,
            kept=kept,
            manifest=self._manifest_of_copy(manifest, stated=stated),
        )

    def _blamed(self) -> AbstractContextManager[None]:
        return blaming_source(self._number)

    def _digest_there(self, opened: OpenFile) -> str | None:
        """Return the digest when the target already holds the source's bytes.

        Raises
        ------
        VerificationError
            When a file lies there that the plan did not see.
        """
        action, stop = self._action, self._context.stop
        digest = self._destination.holds(action.target, opened.size, self._replica.digest, stop)
        if digest is not None:
            with self._blamed():
                if digest == (self._replica.digest or opened.digest(stop)):
                    return digest
        self._destination.check_target(action.target, action.replaces)
        return None

    def _write(self, opened: OpenFile) -> Made:
        """Write the target, and give it its name."""
        action, destination = self._action, self._destination
        with destination.new_file(action.target, opened.size, self._replica.path) as file:
            digest = self._fill(file, opened)
            manifest = self._manifest or self._sealed(LocalFile(file.path))
            with self._blamed():
                opened.check_unchanged()
            destination.check_target(action.target, action.replaces)
            kept = destination.commit(file, action.target, digest, set_aside=action.set_aside is not None)
            return self._made("copied", digest, manifest, kept=kept, size=opened.size)

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
            self._destination.check_written(file, digest, context.stop)
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
        own = own_manifest(action, self._destination, self._context)
        if own is None or own.digests.file == digest or header.encryption is not None:
            return
        if manifest is not None:  # which names the bytes that were copied, see `_check`
            digests = manifest.digests.parameters
        else:
            digester = Digester(header.contents)
            opened.read_range(0, opened.size, digester.update, stop)
            digests = digester.digests().parameters
        names = (parameter.name for parameter in header.parameters)
        found: Mapping[str, str] = dict(zip(names, digests, strict=True))
        fits = partial(self._destination.holds, action.target, own.size, own.digests.file, stop)
        check_against(own, found, fits, borrowed=action.borrowed)

    def _sealed(self, file: OpenFile) -> Manifest:
        """Return a manifest of the bytes that came from a source without one."""
        action, context = self._action, self._context
        assert context.step is not None
        with file:
            run = context.run_id or ""
            subject = NamedSlice(action.target, action.rank, context.world_size, context.step, None, run)
            return seal_open(file, subject, action.group)

    def _bring_state(self, manifest: Manifest) -> bool:
        """Copy the slice's own state file from another tree; return whether it holds what the manifest names.

        One that is missing or damaged is warned of. Errors are those of writing it.
        """
        training, target, path = manifest.training, self._action.target, self._replica.path + STATE_SUFFIX
        if training is None or training.state_digest is None:
            return False
        where = self._destination.path(target)
        try:
            data = self._source.read_small(path, "a state file", MOST_STATE)
        except MsRecoverError as error:
            _log.warning("%s: its state file cannot be obtained: %s", where, error)
            return False
        if digest_of(data) != training.state_digest:
            _log.warning("%s: its state file at %s is damaged, and left out", where, self._source.url)
            return False
        self._destination.write_small(target + STATE_SUFFIX, data, STATE_MODE, of=target, at_once=True)
        return True

    def _manifest_of_copy(self, manifest: Manifest, *, stated: bool) -> Manifest:
        """Return the manifest of a copied slice: that of its source, or a new one, which names the source.

        With `stated` the slice's own state file came as well.
        """
        action = self._action
        proven = self._manifest is not None and self._manifest.provenance.proven
        provenance = Provenance(
            kind="copied",
            evidence="manifest" if proven and action.evidence != "operator" else action.evidence,
            sources=(ProvenanceSource(self._replica.rank, self._replica.path, self._source.host),),
            borrowed=action.borrowed,
        )
        return replace(
            manifest,
            rank=action.rank,
            file=os.path.basename(action.target),
            group=action.group,
            provenance=provenance,
            tool=TOOL,
            training=manifest.training if stated or manifest.training is None else manifest.training.of_recovered(),
        )
