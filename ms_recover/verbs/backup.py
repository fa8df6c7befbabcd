"""The verb copy: back up a proven step, the plan's, whole and sound as it lies.

>>> from ms_recover import api
>>> with api.open_target("s3://bucket/run7", "/checkpoints") as target:               # doctest: +SKIP
...     api.copy(api.scan("/checkpoints"), target, jobs=4)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from ms_recover.errors import UnrecoverableError, VerificationError
from ms_recover.execution.backup import BadSourcesError, CopyOptions, Given, copy_step, files_of_step
from ms_recover.execution.backup_target import open_target
from ms_recover.execution.seal import sealing
from ms_recover.file_names import STRATEGY_NAME
from ms_recover.formats.manifest import encode_manifest
from ms_recover.model.backup import BackupIndex, BackupOutcome
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.verification import judge_slices
from ms_recover.scanning.read import Reading, read_store, state_problems
from ms_recover.stores.store import Store
from ms_recover.stores.urls import open_store
from ms_recover.verbs.recover import plan as make_plan
from ms_recover.verbs.session import Session
from ms_recover.verbs.verify import check_step_there, compare_read

_log = logging.getLogger(__name__)
_MOST_NAMED = 3


def copy(  # noqa: PLR0913 (the keywords of programs)
    inventory: Inventory,
    target: str | Store,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    verify: bool | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> BackupOutcome:
    """Back up a proven step: every slice sealed, contents once each by digest, read back, an index at the end.

    What is there already is not sent again; nothing is removed. The backup is a root for scans and plans, and
    a source for recoveries. The target is tried before anything is read: `open_target` can do that before the scan.

    Parameters
    ----------
    inventory, jobs, progress
        As for `ms_recover.api.plan`.
    target : str or Store
        A URL that can be written, or a local directory: a backup, or nothing yet; or what `open_target` opened.
    options : PlanOptions
        Its `step` by default is the newest recoverable one.
    verify : bool, optional
        True reads every slice of the step, and every object back, those that were there included; False reads nothing
        back. By default slices without a manifest are read, the others are digested when they are sent, and what was
        sent is read back. An object has its digest in every case.
    dry_run : bool
        Write nothing, and say what would be written; errors are those of the copy.

    Raises
    ------
    UnrecoverableError, VerificationError
        When the step is not proven; the message names why. There is no such step in the backup then.
    UsageError
        When the target is neither a backup nor empty, is only read, or lies in the tree.
    StorageError
        When another copy to the same directory is at work, or it has too little room.
    MsRecoverError
        As `ms_recover.api.plan` does, and when reading or writing fails.
    """
    wanted = CopyOptions(jobs=jobs, verify=verify, dry_run=dry_run, progress=progress or (lambda count: None))
    with ExitStack() as stack:
        if isinstance(target, str):
            target = stack.enter_context(open_target(target, inventory.root, dry_run=dry_run))
        source = stack.enter_context(closing(open_store(inventory.root)))
        reading = _Reading(inventory, source, jobs, progress, presumes=verify is not True)
        while True:
            given, index = _whole_step(inventory, options, reading)
            try:
                return copy_step(source, target, given, index, wanted)
            except BadSourcesError as error:
                if not reading.refute([note.path for note in error.notes]):
                    raise VerificationError(f"{error}: it changes, or its device fails; copy again") from error
                _log.info("%s: planned again, without the word of its manifest", error)


class _Reading:
    """The contents of slices, of which each is read once at most.

    Those whose manifest fits are presumed to hold what it says: their bytes are compared with it when they are sent.
    """

    def __init__(
        self,
        inventory: Inventory,
        source: Store,
        jobs: int,
        progress: Callable[[int], None] | None,
        *,
        presumes: bool,
    ) -> None:
        self._source, self._presumes = source, presumes
        self._reading = Reading(jobs=jobs, progress=progress or (lambda count: None), crc=inventory.crc_later)
        self._refuted: set[str] = set()
        self._read = self._presumed = NOTHING_READ

    def was_read(self, path: str) -> bool:
        """Whether a slice was read, and not presumed."""
        return path in self._read.digests

    def refute(self, paths: Sequence[str]) -> bool:
        """Read some slices from now on, whatever their manifests say; False where all of them were read before."""
        new = {path for path in paths if path in self._presumed.digests}
        self._refuted |= new
        kept = {path: digests for path, digests in self._presumed.digests.items() if path not in new}
        states = {path: wrong for path, wrong in self._presumed.states.items() if path not in new}
        self._presumed = replace(self._presumed, digests=kept, states=states)
        return bool(new)

    def __call__(self, files: Sequence[SliceFile]) -> Contents:
        """Return the contents of slices, and of those before; errors as for `read_store`."""
        presumed = [file for file in files if self._is_presumed(file) and not self._presumed.knows(file)]
        if presumed:
            digests = {file.path: file.manifest.digests for file in presumed if file.manifest is not None}
            states = state_problems(self._source, presumed, jobs=self._reading.jobs)
            self._presumed = self._presumed.merged(Contents(digests, {}, states))
        unread = [file for file in files if not self._is_presumed(file) and not self._read.knows(file)]
        if unread:
            self._read = self._read.merged(read_store(self._source, unread, self._reading))
        return self._presumed.merged(self._read)

    def _is_presumed(self, file: SliceFile) -> bool:
        manifest = file.manifest
        return (
            self._presumes
            and manifest is not None
            and file.problem is None
            and file.path not in self._refuted
            and not self._read.knows(file)
            and (manifest.size, manifest.parameters) == (file.size, file.parameters)
        )


def _whole_step(inventory: Inventory, options: PlanOptions, reading: _Reading) -> tuple[list[Given], BackupIndex]:
    """Return the files of the step to copy, and its index, still without them; errors as for `copy`."""
    plan = _plan(inventory, options, reading)
    step = _proven_step(plan)
    paths = {file.path for rank in plan.ranks for file in rank.files}
    check_step_there(inventory, step)
    session = Session(inventory, replace(options, step=step), read=reading)
    parts, contents = compare_read(session), session.contents
    strategies = {file.path: file.digest for file in inventory.strategy_files}
    manifests: dict[str, bytes] = {}
    wrong: list[str] = []
    for compared in parts:
        made, unsound = _manifests_to_make(compared, paths, contents, strategies)
        manifests |= made
        wrong += unsound
    # What was presumed may be why: then the step is judged once more by its bytes.
    if wrong and reading.refute([file.path for file in inventory.slices]):
        return _whole_step(inventory, options, reading)
    if wrong:
        raise VerificationError(f"step {step} of {plan.root} is not proven: {list_some(wrong, _MOST_NAMED)}")
    digests = {path: contents.digests[path].file for path in paths if path is not None}
    index = BackupIndex(
        step=step,
        run_id=plan.run_id or "",
        world_size=plan.world_size,
        root=plan.root,
        made=int(time.time()),
        files=(),
    )
    states = _sound_states(inventory, contents)
    return files_of_step(inventory, step, digests, reading.was_read, manifests, states), index


def _manifests_to_make(
    compared: Comparison, paths: Collection[str | None], contents: Contents, strategies: Mapping[str, str]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the manifests of those slices of a part that have none, by path; and why others are not sound."""
    facts, manifests, unsound = compared.facts, dict[str, bytes](), list[str]()
    for facts_of_slice, check in judge_slices(compared).slices:
        path, file = facts_of_slice.path, facts_of_slice.file
        if path not in paths:
            continue
        if check.status != "sound" or path not in contents.digests:
            unsound.append(f"{path} {check.status}: {check.reason}")
        elif facts_of_slice.manifest is None:
            strategy = strategies.get(os.path.join(os.path.dirname(path), STRATEGY_NAME))
            group = facts.groups.members.get(file.rank, (file.rank,))
            made = sealing(file, check.evidence, group, facts.world.ranks, contents.digests[path], strategy)
            manifests[path] = encode_manifest(made)
    return manifests, unsound


def _sound_states(inventory: Inventory, contents: Contents) -> dict[str, str]:
    """Return the digests of state files that are those which the manifests of their slices name."""
    stated = {
        file.path: file.manifest.training.state_digest
        for file in inventory.slices
        if file.manifest is not None and file.manifest.training is not None
    }
    return {path: digest for path, digest in stated.items() if digest is not None and path not in contents.states}


def _plan(inventory: Inventory, options: PlanOptions, reading: _Reading) -> Plan:
    """Return the plan of the step to copy.

    Slices are presumed at a step alone whose every rank is to be kept: that is what sending them shows to be right or
    wrong. A step that is passed over, or not whole, is so by what was read.
    """
    while True:
        plan = make_plan(inventory, options, read=reading)
        whole = plan.step if plan.recoverable and not _undone(plan) else None
        if not reading.refute([file.path for file in inventory.slices if file.step != whole]):
            return plan


def _undone(plan: Plan) -> list[str]:
    undone = [f"rank {rank.rank}: {rank.reason}" for rank in plan.ranks if rank.verdict != "keep"]
    return undone + [f"{write.target}: {write.reason}" for write in plan.documents]


def _proven_step(plan: Plan) -> Step:
    """Return the step of a plan that has nothing to do; errors as for `copy`."""
    if plan.step is None:
        lost = [f"rank {rank.rank}: {rank.reason}" for rank in plan.ranks if rank.verdict == "unrecoverable"]
        why = list_some(plan.disagreements or lost, _MOST_NAMED)
        raise UnrecoverableError(f"no step of {plan.root} is proven, nothing was copied: {why}")
    undone = _undone(plan)
    if undone:
        raise VerificationError(
            f"step {plan.step} of {plan.root} is not whole, nothing was copied ({list_some(undone, _MOST_NAMED)}): "
            f"recover it first, recover-ckpt apply {plan.root}, or name another with --step"
        )
    return plan.step
