"""The verbs: inspect, scan, plan, explain, check, apply, complete, verify, seal.

Each imports its room on use, so that a plan loads nothing that only writing needs.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ms_recover.errors import UsageError
from ms_recover.file_names import WEIGHT_KINDS, WeightKind
from ms_recover.model.contents import Reader
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.progress import Progress

if TYPE_CHECKING:
    from ms_recover.comparing import Sealer
    from ms_recover.model.explanation import Explanation
    from ms_recover.model.inspection import Inspection
    from ms_recover.model.outcome import ActionResult, Outcome
    from ms_recover.model.plan import Plan
    from ms_recover.model.verification import Verification
    from ms_recover.stores.store import Store

__all__ = ["apply", "check", "complete", "complete_iteration", "explain", "inspect", "plan", "scan", "seal", "verify"]


def inspect(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Identify a slice, ``group_info.pb``, strategy file or document of MindFormers, and list contents and problems.

    With `crc` the CRC of a slice that has one is checked, which reads the whole file. The path may be a URL.

    Raises
    ------
    MissingInputError, StorageError
        When the file does not exist or cannot be read.
    """
    from ms_recover.scanning.inspect import inspect_file

    return inspect_file(path, crc=crc)


def scan(
    root: str | os.PathLike[str],
    options: ScanOptions = DEFAULT_SCAN,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Inventory:
    """List the slices, rank lists, strategy files and manifests of a checkpoint tree, sorted.

    Parameters
    ----------
    root : str or path
        A directory with a directory for each rank, or the URL of one: see docs/stores.md. Of a distant tree no slice is
        read whole: CRCs are left to what reads slices.
    stop : callable, optional
        Asked now and then; True ends a CRC check early.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`; the bytes read to check CRCs.

    Raises
    ------
    MissingInputError
        When the tree does not exist, or holds no rank's directory.
    UsageError
        When the pattern is invalid.
    FormatError
        When a file named in the options is malformed.
    StorageError
        When the root cannot be read, or a distant tree not as a whole.
    """
    from ms_recover.scanning.scan import scan as scan_tree

    return scan_tree(root, options, stop=stop, progress=progress)


def plan(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> Plan:
    """Find the newest step that every rank can have, and read its slices to prove it.

    Changes nothing, and gives the same plan for the same input. The plan says whether it is recoverable, and which
    obstacles would keep a file from being written where it belongs; `apply` carries it out.

    Parameters
    ----------
    inventory : Inventory
        The result of `scan`.
    options : PlanOptions
        The operator's choices.
    jobs : int
        Threads that read.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`.
    read : callable, optional
        Reads the slices instead of this function.

    Raises
    ------
    OlderStepError
        When the plan goes back to an older step and `options.require_newest` is set; the error has the plan.
    MissingInputError
        When there is no slice, or none of the step in `options`.
    UsageError
        When a lost rank is outside the world, the world size is invalid, or one of the directories to follow is none.
    ContradictionError
        When rank lists contradict each other.
    """
    from ms_recover.evidence import plan_with_evidence, with_obstacles
    from ms_recover.planning.planner import refuse_older_step

    planned, _ = plan_with_evidence(inventory, options, jobs=jobs, progress=progress, read=read)
    made = with_obstacles(planned.plan, options.follow)
    if options.require_newest:
        refuse_older_step(made)
    return made


def explain(
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> tuple[Plan, Explanation]:
    """Do what `plan` does, and list for each parameter of one rank its holders and its chosen source.

    Raises
    ------
    UsageError
        When the rank is not in the world.
    OlderStepError, MissingInputError, ContradictionError
        As `plan` does; an OlderStepError has the explanation too.
    """
    from ms_recover.evidence import plan_with_evidence, with_obstacles
    from ms_recover.planning.explain import explain_planned
    from ms_recover.planning.planner import refuse_older_step

    planned, _ = plan_with_evidence(inventory, options, jobs=jobs, progress=progress, read=read)
    explanation = explain_planned(planned, rank)
    made = with_obstacles(planned.plan, options.follow)
    if options.require_newest:
        refuse_older_step(made, explanation)
    return made, explanation


def check(plan: Plan) -> None:
    """Check that a plan can be carried out: it is recoverable and its sources have not changed.

    Raises
    ------
    UnrecoverableError
        When the plan has no step.
    MissingInputError, VerificationError
        When a source is missing or has changed.
    """
    from ms_recover.execution.apply import check_plan

    check_plan(plan)


def apply(
    plan: Plan,
    *,
    jobs: int = 1,
    verify: bool = True,
    ranks: Collection[int] | None = None,
    progress: Progress | None = None,
    lock_timeout: float = 600.0,
    partial: bool = False,
    require_newest: bool = False,
    sources: Mapping[str, Store] | None = None,
    scratch: str | None = None,
) -> Outcome:
    """Carry out a plan in threads; the outcome has the gravest exit code of its actions.

    The actions are independent: one that fails does not stop the others, and all can be repeated. A slice that is
    replaced though nothing proves it damaged is kept beside itself; the results name it.

    Parameters
    ----------
    verify : bool
        Read each copy back before it gets its final name.
    ranks : collection of int, optional
        Carry out the actions of these ranks only.
    lock_timeout : float
        Seconds to wait for another recovery of the same tree, where `ranks` is given; otherwise it is an error at once.
    partial : bool
        Where the plan has no step, write the surviving parameters of the lost slices under other names.
    require_newest : bool
        Refuse a plan that goes back behind a newer step, as the option of `plan` does.
    sources : mapping, optional
        The stores of the slices of the plan that lie elsewhere, by path.
    scratch : str, optional
        Where the root is a URL: the local folder in which files are made before they are sent, by default that for
        temporary files. Such a root is not locked: run one recovery of it at a time.

    Raises
    ------
    OlderStepError
        When the plan goes back to an older step and `require_newest` is set; nothing is done.
    UnrecoverableError
        When the plan has no step.
    StorageError
        When another recovery is at work on the tree.
    KeyboardInterrupt
        After every temporary file is removed.
    """
    from ms_recover.execution.apply import apply_plan
    from ms_recover.execution.recovery_log import noted
    from ms_recover.planning.planner import refuse_older_step

    if require_newest:
        refuse_older_step(plan)
    with noted(plan) as note:
        return note(
            apply_plan(
                plan,
                jobs=jobs,
                verify=verify,
                ranks=ranks,
                progress=progress,
                lock_timeout=lock_timeout,
                partial=partial,
                sources=sources,
                scratch=scratch,
            )
        )


def complete(
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    output: str | None = None,
    jobs: int = 1,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ActionResult:
    """Write a full slice for a rank from its own and its peers' parts, as ``remove_redundancy=True`` leaves them.

    Parameters
    ----------
    inventory, jobs, progress, verify
        As for `plan` and `apply`.
    options : PlanOptions
        Its `step` by default is the newest of the run, by default of the present one, that lacks no parameter of the
        rank; one at which replicas differ is the last that is tried.
    output : str, optional
        File to write, or its URL; by default ``{name}.complete.ckpt`` (or ``.safetensors``) in the rank's directory.
    dry_run : bool
        Write nothing: the result has the bytes that would be written, errors are the same.

    Raises
    ------
    UnrecoverableError
        When a parameter has no source; the message names it.
    VerificationError
        When it has none because replicas differ, with nothing to settle who is right.
    UsageError
        When `output` exists, or the tree has iterations: see `complete_iteration`.
    MissingInputError, ContradictionError, StorageError
        As `plan` and `apply` do.
    """
    from ms_recover.comparing import complete_slices

    if inventory.iterations:
        raise UsageError(f"{inventory.root} holds iterations, whose slices are several files: use complete_iteration")
    (result,) = complete_slices(inventory, rank, options, (None,), output, jobs, verify, progress, dry_run)
    return result


def complete_iteration(
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    kinds: Sequence[WeightKind] = WEIGHT_KINDS,
    output: str | None = None,
    jobs: int = 1,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> tuple[ActionResult, ...]:
    """Do what `complete` does for the model file and the optimizer file of an iteration, or one of the `kinds`.

    An `output` is for one of them alone.

    Raises
    ------
    MsRecoverError
        As `complete` does; nothing is written unless all files can be.
    """
    from ms_recover.comparing import complete_slices

    held = [kind for kind in kinds if any(file.part == kind for file in inventory.slices)]
    return complete_slices(inventory, rank, options, held or kinds, output, jobs, verify, progress, dry_run)


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
    from ms_recover.comparing import compare_read
    from ms_recover.execution.recovery_log import note_verification
    from ms_recover.planning.judging.verification import join_verifications, make_verification

    parts, _ = compare_read(inventory, options, jobs, progress, deep=deep, read=read)
    found = [make_verification(compared) for compared in parts]
    if inventory.iterations:
        from ms_recover.planning.document_check import check_documents

        joined = join_verifications(inventory.root, found, check_documents(inventory, options.step, found))
    else:
        joined = found[0]  # without what other trees do not need
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
    from ms_recover.comparing import seal_read

    return seal_read(inventory, options, jobs, progress, read, write)
