"""The verbs that compare slices which are read whole: verify, seal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError
from ms_recover.model.contents import Reader
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.progress import Progress
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.verification import join_verifications, judge_slices, make_verification
from ms_recover.planning.tree.tree_facts import check_kind_of_step
from ms_recover.verbs.session import Session, reader_of

if TYPE_CHECKING:
    from ms_recover.model.verification import Verification

Sealer = Callable[
    [Sequence[tuple[SliceFile, Evidence]], Mapping[int, tuple[int, ...]], int, Mapping[str, Digests]], list[str]
]
"""Writes manifests: slices with their evidence, groups by rank, the world size, digests by path; returns the paths."""


def verify(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    deep: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> Verification:
    """Check every slice, or those of the step in `options`, against its manifest, its structure and its replicas.

    Reads all of them, with `deep` from the device instead of the page cache; other arguments as for `plan`, and where
    `read` is given it reads, however deep.

    Raises
    ------
    MissingInputError
        When there is no slice, or none of the step.
    UsageError, ContradictionError
        As `plan` does.
    """
    from ms_recover.execution.recovery_log import note_verification

    check_step_there(inventory, options.step)
    session = Session(inventory, options, read=read or reader_of(inventory, jobs, progress, from_device=deep))
    parts = [make_verification(compared) for compared in compare_read(session)]
    if inventory.iterations:
        from ms_recover.planning.plan.documents import check_documents

        joined = join_verifications(inventory.root, parts, check_documents(inventory, options.step, parts))
    else:
        joined = parts[0]  # without what other trees do not need
    note_verification(joined, inventory, options)
    return joined


def seal(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
    write: Sealer | None = None,
) -> tuple[tuple[str, ...], Verification]:
    """Write the missing manifests of sound slices, after their group's vote; arguments as for `verify`.

    With `write` that writes them, instead of this process.

    Returns the paths of the sealed slices, and the verification of all; slices that are not sound get no manifest.

    Raises
    ------
    MsRecoverError
        As `verify` does, and when a manifest cannot be written.
    """
    from ms_recover.execution.seal import seal_slices

    check_step_there(inventory, options.step)
    session = Session(inventory, options, jobs=jobs, progress=progress, read=read)
    parts = compare_read(session)
    seal = write or partial(seal_slices, inventory.root)
    sealed: list[str] = []
    for compared in parts:
        facts, judged = compared.facts, judge_slices(compared)
        sound = [
            (facts_of_slice.file, check.evidence)
            for facts_of_slice, check in judged.slices
            if check.status == "sound" and facts_of_slice.manifest is None
        ]
        sealed += seal(sound, facts.groups.members, facts.world.ranks, session.contents.digests)
    checked = [make_verification(compared, sealing=True) for compared in parts]
    return tuple(sealed), join_verifications(inventory.root, checked)


def compare_read(session: Session) -> list[Comparison]:
    """Read the slices that the step in the options leaves, and compare them, each part of the tree for itself."""
    session.read(session.files_of(session.options.step))
    return session.every_compared()


def check_step_there(inventory: Inventory, step: Step | None) -> None:
    """Raise a MissingInputError unless there is a slice, of a step if one is given."""
    check_kind_of_step(inventory, step)
    if not inventory.steps or (step is not None and step not in inventory.steps):
        missing = "no slice" if step is None else f"no slice of step {step}"
        raise MissingInputError(f"{inventory.root} holds {missing}: see recover-ckpt scan {inventory.root}")
