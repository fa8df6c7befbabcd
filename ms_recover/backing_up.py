"""The verb copy: back up a proven step, the plan's, whole and sound as it lies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace

from ms_recover import api
from ms_recover.comparing import compare_read
from ms_recover.errors import UnrecoverableError, VerificationError
from ms_recover.execution.backup import copy_step, files_of_step
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.seal import sealing
from ms_recover.file_names import STRATEGY_NAME
from ms_recover.formats.manifest import encode_manifest
from ms_recover.model.backup import BackupIndex, BackupOutcome
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.judging.verification import judge_slices
from ms_recover.stores.directories import make_directories
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.urls import open_plain, open_store
from ms_recover.system_errors import explained

_MOST_NAMED = 3


def copy(
    inventory: Inventory,
    target: str,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    verify: bool = True,
    progress: Callable[[int], None] | None = None,
) -> BackupOutcome:
    """Back up a proven step: every slice sealed, contents once each by digest, read back, an index at the end.

    What is there already is not sent again; nothing is removed. The backup is a root for scans and plans, and
    a source for recoveries.

    Parameters
    ----------
    inventory, jobs, progress
        As for `ms_recover.api.plan`.
    target : str
        A URL that can be written, or a local directory: a backup, or nothing yet.
    options : PlanOptions
        Its `step` by default is the newest recoverable one.
    verify : bool
        Read every object of the step back and compare its digest, those that were there included.

    Raises
    ------
    UnrecoverableError, VerificationError
        When the step is not proven; the message names why. Nothing is written then.
    UsageError
        When the target is neither a backup nor empty, or is only read.
    StorageError
        When another copy to the same directory is at work.
    MsRecoverError
        As `ms_recover.api.plan` does, and when reading or writing fails.
    """
    plan = api.plan(inventory, options, jobs=jobs, progress=progress)
    step = _proven_step(plan)
    paths = {file.path for rank in plan.ranks for file in rank.files}
    parts, contents = compare_read(inventory, replace(options, step=step), jobs, progress)
    strategies = {one.path: one.digest for one in inventory.strategy_files}
    manifests: dict[str, bytes] = {}
    wrong: list[str] = []
    for compared in parts:
        facts = compared.facts
        for one, judged in judge_slices(compared).slices:
            if one.path not in paths:
                continue
            if judged.status != "sound" or one.path not in contents.digests:
                wrong.append(f"{one.path} {judged.status}: {judged.reason}")
            elif one.manifest is None:
                strategy = strategies.get(os.path.join(os.path.dirname(one.path), STRATEGY_NAME))
                group = facts.groups.members.get(one.file.rank, (one.file.rank,))
                read = contents.digests[one.path]
                made = sealing(one.file, judged.evidence, group, facts.world.ranks, read, strategy)
                manifests[one.path] = encode_manifest(made)
    if wrong:
        raise VerificationError(f"step {step} of {plan.root} is not proven: {list_some(wrong, _MOST_NAMED)}")
    digests = {path: contents.digests[path].file for path in paths if path is not None}
    states = {
        file.path
        for file in inventory.slices
        if file.path not in contents.states
        and file.manifest is not None
        and file.manifest.training is not None
        and file.manifest.training.state_digest is not None
    }
    given = files_of_step(inventory, step, digests, manifests, states)
    index = BackupIndex(
        step=step,
        run_id=plan.run_id or "",
        world_size=plan.world_size,
        root=plan.root,
        made=int(time.time()),
        files=(),
    )
    with closing(open_store(inventory.root)) as source, closing(open_plain(target)) as store, ExitStack() as lock:
        if isinstance(store, LocalStore):
            with explained("making", store.url):
                make_directories(store.url)
            lock.enter_context(lock_tree(store.url))
        return copy_step(source, store, given, index, jobs=jobs, verify=verify, progress=progress or _ignore)


def _proven_step(plan: Plan) -> Step:
    """Return the step of a plan that has nothing to do; errors as for `copy`."""
    if plan.step is None:
        lost = [f"rank {one.rank}: {one.reason}" for one in plan.ranks if one.verdict == "unrecoverable"]
        why = list_some(plan.disagreements or lost, _MOST_NAMED)
        raise UnrecoverableError(f"no step of {plan.root} is proven, nothing was copied: {why}")
    undone = [f"rank {one.rank}: {one.reason}" for one in plan.ranks if one.verdict != "keep"]
    if undone or plan.documents:
        undone += [f"{one.target}: {one.reason}" for one in plan.documents]
        raise VerificationError(
            f"step {plan.step} of {plan.root} is not whole, nothing was copied ({list_some(undone, _MOST_NAMED)}): "
            f"recover it first, recover-ckpt apply {plan.root}, or name another with --step"
        )
    return plan.step


def _ignore(count: int) -> None:
    pass
