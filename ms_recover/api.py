"""The verbs: inspect, scan, assess, plan, explain, check, apply, complete, verify, seal.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ms_recover.errors import MissingInputError, UnrecoverableError
from ms_recover.execution.rebuild import run_complete
from ms_recover.execution.runner import check_plan as check
from ms_recover.execution.runner import run_plan as apply
from ms_recover.execution.seal import seal_slices
from ms_recover.model.compose import ComposeAction
from ms_recover.model.explanation import Explanation
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.outcome import ActionResult
from ms_recover.model.plan import Plan, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.model.verification import Verification
from ms_recover.planning.assess import assess_step
from ms_recover.planning.audit import judge_slices, make_verification
from ms_recover.planning.explain import complete_slice, explain_rank
from ms_recover.planning.planner import make_plan, wanted_contents
from ms_recover.planning.redundancy.contents import Contents
from ms_recover.planning.redundancy.tolerance import Tolerance
from ms_recover.planning.situation import Situation, check_rank, understand
from ms_recover.scanning.inspect import inspect_file as inspect
from ms_recover.scanning.read import read_contents
from ms_recover.scanning.scan import scan

__all__ = ["apply", "assess", "check", "complete", "explain", "inspect", "plan", "scan", "seal", "verify"]

JUDGING = ("lost", "world_size", "newest", "tolerate")
"""Options by which `plan` judges slices; `explain` goes by the same."""


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
    ranks: Collection[int] | None = None,
    read: Callable[[Sequence[SliceFile]], Contents] | None = None,
    contents: Contents | None = None,
) -> Plan:
    """Find the newest step that every rank can have, and prove it by reading its slices.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    step, lost, world_size, newest, tolerate, ranks
        As for `ms_recover.planning.planner.make_plan`, which decides.
    quick : bool
        Read headers and manifests only: replicas are not compared by contents.
    jobs : int
        Threads that read.
    progress : callable, optional
        Told the bytes read since the last call.
    read : callable, optional
        Reads slices instead, where they do not all lie below the inventory's root.
    contents : Contents, optional
        What reading slices gave before; what is read now is added to it.

    Raises
    ------
    MissingInputError, UsageError, ContradictionError
        As `make_plan` does.
    """
    contents = Contents() if contents is None else contents
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
            return made
        contents.add(read(unread) if read else read_contents(inventory.root, unread, jobs=jobs, progress=progress))


def explain(
    inventory: Inventory,
    made: Plan,
    rank: int,
    *,
    contents: Contents | None = None,
    lost: Collection[int] = (),
    world_size: int | None = None,
    newest: bool = False,
    tolerate: Iterable[str] = (),
) -> Explanation:
    """Say for one rank who holds which of its parameters, and whom a plan takes them from.

    Parameters
    ----------
    inventory : Inventory
        What was planned over.
    made : Plan
        What `plan` made of it.
    rank : int
        The rank.
    contents, lost, world_size, newest, tolerate
        As they were given to `plan`, which has added to `contents` what it read.

    Raises
    ------
    UsageError
        When the rank is not in the world.
    """
    check_rank(rank, made.world_size, made.world_size_from)
    situation = understand(
        inventory,
        lost=lost,
        world_size=world_size,
        newest=newest,
        contents=contents,
        tolerance=Tolerance.with_more(tolerate),
    )
    assert made.considered is not None  # plans that `plan` makes are of a step
    return explain_rank(situation, made.considered, rank, made.run_id)


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
