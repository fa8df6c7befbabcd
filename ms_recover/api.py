"""The verbs: inspect, scan, assess, plan, check, apply, verify, seal.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ms_recover.errors import FormatError, MissingInputError, UnrecoverableError
from ms_recover.execution.rebuild import run_complete
from ms_recover.execution.runner import check_plan as check
from ms_recover.execution.runner import run_plan as apply
from ms_recover.execution.seal import seal_slices
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.header import check_crc, read_header
from ms_recover.formats.identify import identify
from ms_recover.formats.strategy import read_strategy
from ms_recover.inventory.naming import SliceName, rank_in_path, read_slice_name
from ms_recover.inventory.read import read_contents
from ms_recover.inventory.scan import scan
from ms_recover.model.compose import ComposeAction
from ms_recover.model.explanation import Explanation
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import Inventory, RankPath, SliceFile
from ms_recover.model.outcome import ActionResult
from ms_recover.model.plan import Plan, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.model.verification import Verification
from ms_recover.planning.assess import assess_step
from ms_recover.planning.audit import judge_slices, make_verification
from ms_recover.planning.explain import complete_slice, explain_rank
from ms_recover.planning.planner import make_plan, wanted_contents
from ms_recover.planning.situation import Situation, check_rank, understand
from ms_recover.redundancy.contents import Contents
from ms_recover.redundancy.tolerance import Tolerance

__all__ = ["apply", "assess", "check", "complete", "explain", "inspect", "plan", "scan", "seal", "verify"]


def inspect(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Say what a file is and what it holds.

    Parameters
    ----------
    path : str or path
        The file.
    crc : bool
        Check a slice's CRC, where it has one, which reads the whole file.

    Returns
    -------
    Inspection
        Damage is told in its ``problems``.

    Raises
    ------
    MissingInputError, StorageError
        When the file is not there or cannot be read.
    """
    name = os.fspath(path)
    kind = identify(name)
    if isinstance(read_slice_name(RankPath(("",)), 0, os.path.basename(name)), SliceName):
        kind = kind if kind in ("group_info", "strategy") else "slice"  # by its name; what is wrong is told below
    try:
        if kind in ("ckpt", "encrypted-ckpt", "safetensors", "slice"):
            header = read_header(name)
            problems = header.problems
            if not problems and crc and header.crc is not None and (problem := check_crc(name, header)) is not None:
                problems = (problem,)
            return Inspection(name, header.kind, problems, header=header)
        if kind == "group_info":
            owner = rank_in_path(os.path.dirname(os.path.abspath(name)))
            return Inspection(name, kind, group_info=read_group_info(name, owner=owner))
        if kind == "strategy":
            return Inspection(name, kind, strategy=read_strategy(name))
    except FormatError as error:
        return Inspection(name, kind, (str(error),))
    return Inspection(name, kind, (f"not a slice, a group_info.pb or a strategy file but {kind}",))


def plan(
    inventory: Inventory,
    *,
    step: Step | None = None,
    lost: Collection[int] = (),
    world_size: int | None = None,
    newest: bool = False,
    tolerate: Iterable[str] = (),
    quick: bool = False,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Find the newest step that every rank can have, and prove it by reading its slices.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    step, lost, world_size, newest, tolerate
        As for `ms_recover.planning.planner.make_plan`, which decides.
    quick : bool
        Read headers and manifests only: replicas are not compared by contents.
    jobs : int
        Threads that read.
    progress : callable, optional
        Told the bytes read since the last call.

    Raises
    ------
    MissingInputError, UsageError, ContradictionError
        As `make_plan` does.
    """
    return explain(
        inventory,
        None,
        step=step,
        lost=lost,
        world_size=world_size,
        newest=newest,
        tolerate=tolerate,
        quick=quick,
        jobs=jobs,
        progress=progress,
    )[0]


def explain(
    inventory: Inventory,
    rank: int | None,
    *,
    step: Step | None = None,
    lost: Collection[int] = (),
    world_size: int | None = None,
    newest: bool = False,
    tolerate: Iterable[str] = (),
    quick: bool = False,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
    ranks: Collection[int] | None = None,
    read: Callable[[Sequence[SliceFile]], Contents] | None = None,
) -> tuple[Plan, Explanation | None]:
    """Plan, and say for one rank who holds which of its parameters.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    rank : int or None
        The rank; None for the plan alone.
    step, lost, world_size, newest, tolerate, quick, jobs, progress
        As for `plan`.
    ranks : collection of int, optional
        Only these need a slice, because the others are cared for elsewhere.
    read : callable, optional
        Reads slices instead, where they do not all lie below the inventory's root.

    Raises
    ------
    MissingInputError, UsageError, ContradictionError
        As `plan` does, and when the rank is not in the world.
    """
    contents = Contents()
    patterns = tuple(tolerate)
    while True:
        made = make_plan(
            inventory,
            step=step,
            lost=lost,
            world_size=world_size,
            newest=newest,
            contents=contents,
            tolerate=patterns,
            ranks=ranks,
        )
        wanted = () if quick else wanted_contents(inventory, made, lost)
        unread = [file for file in wanted if not contents.knows(file)]
        if not unread:
            break
        found = read(unread) if read else read_contents(inventory.root, unread, jobs=jobs, progress=progress)
        contents.digests.update(found.digests)
        contents.problems.update(found.problems)
    if rank is None:
        return made, None
    check_rank(rank, made.world_size, made.world_size_from)
    situation = understand(
        inventory,
        lost=lost,
        world_size=world_size,
        newest=newest,
        contents=contents,
        tolerance=Tolerance.with_more(patterns),
    )
    assert made.considered is not None
    return made, explain_rank(situation, made.considered, rank, made.run_id)


def complete(
    inventory: Inventory,
    rank: int,
    *,
    step: Step | None = None,
    output: str | None = None,
    world_size: int | None = None,
    tolerate: Iterable[str] = (),
    jobs: int = 1,
    verify: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ActionResult:
    """Write a full slice for a rank out of its own and its peers' parts, as ``remove_redundancy=True`` leaves them.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    rank : int
        The rank.
    step : Step, optional
        Which step; by default the newest at which nothing is missing.
    output : str, optional
        File to write; by default ``{name}.complete.ckpt`` (or ``.safetensors``) in the rank's directory.
    world_size, tolerate, jobs, progress
        As for `plan`.
    verify : bool
        Read the file back before it gets its name.

    Raises
    ------
    UnrecoverableError
        When nobody holds some of its parameters; they are named.
    MissingInputError, UsageError, ContradictionError, VerificationError, StorageError
        As `plan` and `apply` do, and when `output` exists.
    """
    steps = [step] if step is not None else list(inventory.steps)
    why = f"{inventory.root} holds no slice"
    for candidate in steps:
        situation = _read_situation(inventory, candidate, False, world_size, tolerate, jobs, progress)
        check_rank(rank, situation.world_size, situation.world_size_from)
        found = complete_slice(situation, candidate, rank)
        if isinstance(found.action, ComposeAction):
            target = os.path.abspath(output) if output is not None else found.action.target
            return run_complete(inventory.root, replace(found.action, target=target), verify=verify)
        why = f"step {candidate}: {found.reason}"
    raise UnrecoverableError(f"no full slice for rank {rank} of {inventory.root}; {why}")


def assess(
    inventory: Inventory,
    step: Step,
    *,
    world_size: int | None = None,
    lost: Collection[int] = (),
    newest: bool = False,
) -> StepAssessment:
    """Say what every rank has at one step, and who could replace what is gone.

    Where ranks share no file system each sees a part of the tree only; its own verdict is what counts then.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    step : Step
        The step.
    world_size, lost, newest
        As for `plan`.

    Raises
    ------
    UsageError, ContradictionError
        As `plan` does.
    """
    return assess_step(understand(inventory, lost=lost, world_size=world_size, newest=newest), step)


def verify(
    inventory: Inventory,
    *,
    step: Step | None = None,
    deep: bool = False,
    world_size: int | None = None,
    tolerate: Iterable[str] = (),
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Check every slice against its manifest, its structure and its peers; reads all of them.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    step : Step, optional
        Check this step only.
    deep : bool
        Read from the device, not from the page cache.
    world_size, tolerate, jobs, progress
        As for `plan`.

    Raises
    ------
    MissingInputError
        When there is no slice, or none of `step`.
    UsageError, ContradictionError
        As `plan` does.
    """
    situation = _read_situation(inventory, step, deep, world_size, tolerate, jobs, progress)
    return make_verification(situation, inventory.root, step)


def seal(
    inventory: Inventory,
    *,
    step: Step | None = None,
    world_size: int | None = None,
    tolerate: Iterable[str] = (),
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> tuple[tuple[str, ...], Verification]:
    """Write manifests for sound slices that have none, after their group's vote.

    Parameters
    ----------
    inventory, step, world_size, tolerate, jobs, progress
        As for `verify`.

    Returns
    -------
    (tuple of str, Verification)
        The slices that were sealed, and what was found; slices that are not sound get no manifest.

    Raises
    ------
    MsRecoverError
        As `verify` does, and when a manifest cannot be written.
    """
    situation = _read_situation(inventory, step, False, world_size, tolerate, jobs, progress)
    judged, _ = judge_slices(situation, step)
    sound = [(file, found.evidence) for file, found in judged if found.status == "sound" and file.manifest is None]
    digests = situation.contents.digests
    sealed = seal_slices(inventory.root, sound, situation.groups.members, situation.world_size, digests)
    return tuple(sealed), make_verification(situation, inventory.root, step, sealing=True)


def _read_situation(
    inventory: Inventory,
    step: Step | None,
    deep: bool,
    world_size: int | None,
    tolerate: Iterable[str],
    jobs: int,
    progress: Callable[[int], None] | None,
) -> Situation:
    if not inventory.steps or (step is not None and step not in inventory.steps):
        what = "no slice" if step is None else f"no slice of step {step}"
        raise MissingInputError(f"{inventory.root} holds {what}: see recover-ckpt scan {inventory.root}")
    files = [file for file in inventory.slices if file.problem is None and step in (None, file.step)]
    contents = read_contents(inventory.root, files, jobs=jobs, progress=progress, from_device=deep)
    tolerance = Tolerance.with_more(tolerate)
    return understand(inventory, world_size=world_size, contents=contents, tolerance=tolerance)
