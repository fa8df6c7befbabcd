"""Put a slice together and give it its manifest."""

from __future__ import annotations

import os

from ms_recover.errors import UsageError
from ms_recover.execution.compose import run_compose
from ms_recover.execution.copy import CopyOptions
from ms_recover.execution.journal import Journal
from ms_recover.execution.manifests import TOOL, manifest_of, write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.compose import ComposeAction
from ms_recover.model.manifest import Manifest
from ms_recover.model.outcome import ActionResult
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.steps import Step


def run_complete(root: str, action: ComposeAction, *, verify: bool = True) -> ActionResult:
    """Write a full slice that ``recover-ckpt complete`` asks for; what lies under the target's name stays.

    Raises
    ------
    MsRecoverError
        As `run_compose` does, and when the target exists.
    """
    path = os.path.join(root, action.target)
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already: move it away, or name another file with --output")
    return run_compose(root, action, CopyOptions(verify, lambda: False, lambda count: None)).result


def rebuild_slice(
    root: str,
    action: ComposeAction,
    step: Step | None,
    world_size: int,
    run_id: str | None,
    journal: Journal | None,
    options: CopyOptions,
) -> ActionResult:
    """Carry out a compose action; a whole slice gets a manifest that names its sources.

    Parameters
    ----------
    root : str
        The tree.
    action : ComposeAction
        What to do.
    step, world_size, run_id
        Of the plan, for the manifest.
    journal : Journal or None
        What an interrupted recovery had finished.
    options : CopyOptions
        How.

    Raises
    ------
    MsRecoverError
        As `run_compose` does, and when the manifest cannot be written.
    """
    path = os.path.join(root, action.target)
    digest = journal.digest_of(action.target, path) if journal is not None else None
    if digest is not None and os.path.exists(path + MANIFEST_SUFFIX):
        options.progress(action.bytes)
        sources = ", ".join(source.path for source in action.sources)
        return ActionResult(action.rank, None, sources, action.target, "already there", digest=digest)
    composed = run_compose(root, action, options)
    if action.kind == "compose":
        assert step is not None
        model_path = os.path.join(root, action.sources[action.model].path)
        model = manifest_of(model_path)
        manifest = Manifest(
            run_id=run_id or "",
            rank=action.rank,
            world_size=world_size,
            step=step,
            cumulative_step=model.cumulative_step if model is not None else None,
            file=os.path.basename(path),
            size=composed.image.size,
            digests=composed.digests,
            parameters=composed.image.parameters,
            group=action.group,
            strategy_digest=model.strategy_digest if model is not None else None,
            provenance=Provenance(
                kind="composed",
                evidence=action.evidence,
                sources=tuple(ProvenanceSource(source.rank, source.path) for source in action.sources),
                borrowed=action.borrowed,
            ),
            tool=TOOL,
        )
        write_manifest(path, manifest, options.later)
        if journal is not None:
            journal.finished(action.target, path, composed.digests.file)
    return composed.result
