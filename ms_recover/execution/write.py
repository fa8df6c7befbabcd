"""The one writer of slices: a recipe, out of what its sources supply, becomes a file of a destination.

Whether bytes are copied as a whole or put together out of pieces, here or at a URL, a slice is written in these steps:

1. Its place is looked at, and what an interrupted recovery finished is kept: `Destination.begin`, the journal.
2. A temporary file is filled from sources that are compared with their digests; a bad one is dropped, and the next
   takes its place: `copy_slice`, `compose_slice`, `Sources`.
3. The file is proven: its structure, the manifest that the lost slice left, and what the device gives back.
4. It gets its name, as `ms_recover.stores.atomic` says; what lay there is kept under another one where nothing proves
   it damaged: `Destination.commit`.
5. The manifest comes last. So a slice that a kill leaves without one counts by its structure alone, and no manifest
   ever names bytes that are not there.
"""

from __future__ import annotations

import logging

from ms_recover.execution.compose import compose_slice
from ms_recover.execution.context import ActionContext, Made
from ms_recover.execution.copy import copy_slice
from ms_recover.execution.destination import Destination
from ms_recover.execution.manifests import is_as_saved
from ms_recover.model.actions import CopyAction
from ms_recover.model.plan import Action

_log = logging.getLogger(__name__)


def write(action: Action, destination: Destination, context: ActionContext) -> Made:
    """Carry out one action of a plan: its slice and the manifest, or the one of training that fits.

    Raises
    ------
    FormatError
        When the target lies elsewhere through a link.
    MsRecoverError, ms_recover.stores.local.StoppedError
        As for `copy_slice` and `compose_slice`.
    """
    target = action.target
    _log.debug("rank %d: writing %s, %d bytes", action.rank, target, action.bytes)
    destination.begin(action)
    made = _finished_before(action, destination, context)
    if made is None:
        if isinstance(action, CopyAction):
            made = copy_slice(action, destination, context)
        else:
            made = compose_slice(action, destination, context)
        _finish(action, made, destination)
    words = (action.rank, target, made.status, made.source, made.bytes, made.digest)
    _log.info("rank %d: %s %s from %s, %d bytes, %s", *words)
    return made


def _finished_before(action: Action, destination: Destination, context: ActionContext) -> Made | None:
    """Return what an interrupted recovery finished by the same action, if its bytes still lie there."""
    journal = destination.journal
    digest = journal.proven_digest(action, context.stop) if journal is not None else None
    if digest is None or (isinstance(action, CopyAction) and action.replica.digest not in (None, digest)):
        return None
    context.progress(action.bytes)
    copied = isinstance(action, CopyAction)
    return Made(
        status="already there",
        source_rank=action.replicas[0].rank if copied else None,
        source=action.replicas[0].path if copied else ", ".join(source.path for source in action.replicas),
        digest=digest,
        kept=destination.kept_before(action),
    )


def _finish(action: Action, made: Made, destination: Destination) -> None:
    """Write the manifest of a slice that has its name, and note that the action is done."""
    if made.manifest is None or made.digest is None:
        return
    # What training saved with these bytes keeps its manifest, unless the slice lay there and was rejected with it.
    if made.is_there or not is_as_saved(destination.manifest(action.target), made.manifest):
        destination.write_manifest(action.target, made.manifest)
    if destination.journal is not None:
        destination.journal.finished(action, made.digest)
