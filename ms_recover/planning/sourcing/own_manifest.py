"""The manifest that a rank's damaged or lost slice left: it states what comes in its place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ms_recover.model.manifest import Manifest
from ms_recover.model.texts import name_some
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.judgement import StepJudgement


def find_own_manifest(facts: Facts, judgement: StepJudgement, rank: int) -> Manifest | None:
    """Return the manifest of the planned run that proves what a rank's slice of the step must hold.

    Its slice is gone, or known to be damaged: one that still fits a slice is that slice's, which is replaced for
    another reason, and does not state what comes in its place. Nor does that of a rank that is declared lost.
    """
    if rank in facts.lost:
        return None
    step, run = judgement.step, judgement.run
    for manifest in (
        *_of_damaged(facts, judgement, rank),
        *(one.manifest for one in facts.orphans.get((rank, step), ()) if run.why_foreign(one) is None),
    ):
        if manifest is not None and manifest.provenance.proven and (manifest.rank, manifest.step) == (rank, step):
            return manifest
    return None


def _of_damaged(facts: Facts, judgement: StepJudgement, rank: int) -> Iterator[Manifest | None]:
    for one in facts.at(judgement.step, rank):
        judged = judgement.slices.get(one.path)
        if judged is not None and judged.proven_damaged:
            yield one.manifest


def stated_contents(manifest: Manifest | None) -> dict[str, str]:
    """Return the digest of each parameter that a manifest states; none without one."""
    if manifest is None:
        return {}
    names = (parameter.name for parameter in manifest.parameters)
    return dict(zip(names, manifest.digests.parameters, strict=False))


def other_contents(manifest: Manifest | None, source: SliceFacts, borrowed: Collection[str]) -> tuple[str, ...]:
    """Return the parameters of a source that a manifest states otherwise, `borrowed` ones aside."""
    stated = stated_contents(manifest).items()
    found = ((name, digest, source.digest_of(name)) for name, digest in stated if name not in borrowed)
    return tuple(name for name, digest, theirs in found if theirs not in (None, digest))


def why_other_contents(rank: int, source: SliceFacts, names: Sequence[str]) -> str:
    """Return why a source is no replica of a rank's slice."""
    return (
        f"rank {source.rank} holds other contents of {name_some(names)} than the manifest states that the slice of "
        f"rank {rank} left; that may be removed if it is wrong"
    )
