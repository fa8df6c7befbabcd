"""The verbs: inspect, scan, plan, explain, check, apply, complete, verify, seal.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ms_recover.errors import MissingInputError, UnrecoverableError
from ms_recover.execution.apply import apply_plan, check_plan
from ms_recover.execution.compose import complete_slice as write_complete
from ms_recover.execution.seal import seal_slices
from ms_recover.execution.slice_source import SliceSource
from ms_recover.model.compose import ComposeAction
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.explanation import Explanation
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import Plan
from ms_recover.model.verification import Verification
from ms_recover.planning.explain import explain_rank, find_complete_slice
from ms_recover.planning.facts import check_rank, gather_facts
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.verification import judge_slices, make_verification
from ms_recover.planning.planner import Planned, plan_facts, required_reads
from ms_recover.scanning.inspect import inspect_file
from ms_recover.scanning.read import read_contents
from ms_recover.scanning.scan import scan as scan_tree

__all__ = ["apply", "check", "complete", "explain", "inspect", "plan", "scan", "seal", "verify"]

Progress = Callable[[int], None]
"""Called with the bytes read or written since the last call, from any thread."""

Reader = Callable[[Sequence[SliceFile]], Contents]
"""Reads whole slices, including those outside the inventory's root."""


def inspect(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Identify a file and list its contents.

    Parameters
    ----------
    path : str or path
        A slice, a ``group_info.pb`` or a strategy file.
    crc : bool
        Check the CRC of a slice that has one, which reads the whole file.

    Returns
    -------
    Inspection
        Damage is listed in its `problems`.

    Raises
    ------
    MissingInputError, StorageError
        When the file does not exist or cannot be read.
    """
    return inspect_file(path, crc=crc)


def scan(
    root: str | os.PathLike[str], options: ScanOptions = DEFAULT_SCAN, *, stop: Callable[[], bool] | None = None
) -> Inventory:
    """List the slices, rank lists, strategy files and manifests of a checkpoint tree.

    Parameters
    ----------
    root : str or path
        The tree: a directory with a directory for each rank.
    options : ScanOptions
        The layout of the tree.
    stop : callable, optional
        Asked now and then; True ends a CRC check early.

    Returns
    -------
    Inventory
        Sorted, and the same for the same tree.

    Raises
    ------
    MissingInputError
        When the tree does not exist, or holds no rank's directory.
    UsageError
        When the pattern is invalid.
    FormatError
        When a file named in the options is malformed.
    StorageError
        When the root cannot be read.
    """
    return scan_tree(root, options, stop=stop)


def plan(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> Plan:
    """Find the newest step that every rank can have, and read its slices to prove it.

    Reads, and changes nothing. The plan says whether it is recoverable; `apply` carries it out.

    Parameters
    ----------
    inventory : Inventory
        The result of `scan`.
    options : PlanOptions
        The operator's choices.
    jobs : int
        Threads that read.
    progress : callable, optional
        Called with the bytes read since the last call.
    read : callable, optional
        Reads the slices instead of this function.

    Returns
    -------
    Plan
        The same for the same input.

    Raises
    ------
    MissingInputError
        When there is no slice, or none of the step in `options`.
    UsageError
        When a lost rank is outside the world, or the world size is invalid.
    ContradictionError
        When rank lists contradict each other.
    """
    return plan_with_evidence(inventory, options, jobs=jobs, progress=progress, read=read)[0].plan


def plan_with_evidence(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> tuple[Planned, Contents]:
    """Do what `plan` does, and return the evidence and the digests that were read as well."""
    contents = NOTHING_READ
    while True:
        planned = plan_facts(gather_facts(inventory, options, contents))
        wanted = () if options.quick else required_reads(planned)
        unread = [file for file in wanted if not contents.knows(file)]
        if not unread:
            return planned, contents
        more = read(unread) if read else read_contents(inventory.root, unread, jobs=jobs, progress=progress)
        contents = contents.merged(more)


def explain(
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> tuple[Plan, Explanation]:
    """Plan, and list for each parameter of one rank its holders and its chosen source.

    Parameters
    ----------
    inventory, options, jobs, progress, read
        As for `plan`.
    rank : int
        The rank.

    Raises
    ------
    UsageError
        When the rank is not in the world.
    MissingInputError, ContradictionError
        As `plan` does.
    """
    planned, _ = plan_with_evidence(inventory, options, jobs=jobs, progress=progress, read=read)
    return planned.plan, explain_planned(planned, rank)


def explain_planned(planned: Planned, rank: int) -> Explanation:
    """Explain one rank of a plan by the evidence it was made from; errors as for `explain`."""
    check_rank(rank, planned.facts.world)
    assert planned.plan.considered is not None  # plans of trees are of a step
    return explain_rank(planned.compared, planned.plan.considered, rank, planned.plan.run_id)


def check(plan: Plan) -> None:
    """Check that a plan can be carried out: it is recoverable and its sources have not changed.

    Raises
    ------
    UnrecoverableError
        When the plan has no step.
    MissingInputError, VerificationError
        When a source is missing or has changed.
    """
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
    sources: Mapping[str, SliceSource] | None = None,
) -> Outcome:
    """Carry out a plan. Its actions are independent: one that fails does not stop the others, and all can be repeated.

    Parameters
    ----------
    plan : Plan
        A recoverable plan.
    jobs : int
        Threads.
    verify : bool
        Read each copy back before it gets its final name.
    ranks : collection of int, optional
        Carry out the actions of these ranks only.
    progress : callable, optional
        Called with the bytes copied since the last call, from any thread.
    lock_timeout : float
        Seconds to wait for another recovery of the same tree, where `ranks` is given; otherwise it is an error at once.
    partial : bool
        Where the plan has no step, write the surviving parameters of the lost slices under other names.
    sources : mapping, optional
        The slices of the plan that lie on other hosts, by path.

    Returns
    -------
    Outcome
        With the gravest exit code of the actions.

    Raises
    ------
    UnrecoverableError
        When the plan has no step.
    StorageError
        When another recovery is at work on the tree.
    KeyboardInterrupt
        After every temporary file is removed.
    """
    return apply_plan(
        plan,
        jobs=jobs,
        verify=verify,
        ranks=ranks,
        progress=progress,
        lock_timeout=lock_timeout,
        partial=partial,
        sources=sources,
    )


def complete(
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    output: str | None = None,
    jobs: int = 1,
    verify: bool = True,
    progress: Progress | None = None,
) -> ActionResult:
    """Write a full slice for a rank from its own and its peers' parts, as ``remove_redundancy=True`` leaves them.

    Parameters
    ----------
    inventory : Inventory
        The result of `scan`.
    rank : int
        The rank.
    options : PlanOptions
        Its `step` by default is the newest without missing parameters.
    output : str, optional
        File to write; by default ``{name}.complete.ckpt`` (or ``.safetensors``) in the rank's directory.
    jobs, progress
        As for `plan`.
    verify : bool
        Read the file back before it gets its name.

    Raises
    ------
    UnrecoverableError
        When a parameter has no source; the message names it.
    MissingInputError, UsageError, ContradictionError, VerificationError, StorageError
        As `plan` and `apply` do, and when `output` exists.
    """
    steps = [options.step] if options.step is not None else list(inventory.steps)
    why = f"{inventory.root} holds no slice"
    for candidate in steps:
        compared, _ = _compare_read(inventory, replace(options, step=candidate), jobs, progress)
        check_rank(rank, compared.facts.world)
        found = find_complete_slice(compared, candidate, rank)
        if isinstance(found.action, ComposeAction):
            target = os.path.abspath(output) if output is not None else found.action.target
            return write_complete(inventory.root, replace(found.action, target=target), verify=verify)
        why = f"step {candidate}: {found.reason}"
    raise UnrecoverableError(f"no full slice for rank {rank} of {inventory.root}; {why}")


def verify(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    deep: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Verification:
    """Check every slice against its manifest, its structure and its replicas; reads all of them.

    Parameters
    ----------
    inventory : Inventory
        The result of `scan`.
    options : PlanOptions
        With a step only this step is checked.
    deep : bool
        Read from the device, not from the page cache.
    jobs, progress
        As for `plan`.

    Raises
    ------
    MissingInputError
        When there is no slice, or none of the step.
    UsageError, ContradictionError
        As `plan` does.
    """
    compared, _ = _compare_read(inventory, options, jobs, progress, deep=deep)
    return make_verification(compared)


def seal(
    inventory: Inventory, options: PlanOptions = DEFAULT_PLAN, *, jobs: int = 1, progress: Progress | None = None
) -> tuple[tuple[str, ...], Verification]:
    """Write the missing manifests of sound slices, after their group's vote.

    Parameters
    ----------
    inventory, options, jobs, progress
        As for `verify`.

    Returns
    -------
    (tuple of str, Verification)
        The sealed slices, and the verification of all; slices that are not sound get no manifest.

    Raises
    ------
    MsRecoverError
        As `verify` does, and when a manifest cannot be written.
    """
    compared, contents = _compare_read(inventory, options, jobs, progress)
    facts, judged = compared.facts, judge_slices(compared)
    sound = [
        (one.file, found.evidence) for one, found in judged.slices if found.status == "sound" and one.manifest is None
    ]
    sealed = seal_slices(inventory.root, sound, facts.groups.members, facts.world.ranks, contents.digests)
    return tuple(sealed), make_verification(compared, sealing=True)


def _compare_read(
    inventory: Inventory, options: PlanOptions, jobs: int, progress: Progress | None, *, deep: bool = False
) -> tuple[Comparison, Contents]:
    step = options.step
    if not inventory.steps or (step is not None and step not in inventory.steps):
        missing = "no slice" if step is None else f"no slice of step {step}"
        raise MissingInputError(f"{inventory.root} holds {missing}: see recover-ckpt scan {inventory.root}")
    files = [file for file in inventory.slices if file.problem is None and step in (None, file.step)]
    contents = read_contents(inventory.root, files, jobs=jobs, progress=progress, from_device=deep)
    return compare_slices(gather_facts(inventory, options, contents)), contents
