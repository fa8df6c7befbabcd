"""Slices that are read and compared whole, for verify, seal, complete and reshard."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError, UnrecoverableError, VerificationError
from ms_recover.file_names import WeightKind
from ms_recover.model.contents import NOTHING_READ, Contents, Reader
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import texts_of_passed_over
from ms_recover.model.progress import Progress
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.parts import Parts
from ms_recover.planning.judging.trials import trials_of
from ms_recover.planning.runs import Run
from ms_recover.planning.tree.candidates import runs_alike
from ms_recover.planning.tree.tree_facts import TreeFacts, check_kind_of_step
from ms_recover.scanning.read import read_contents
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.urls import is_url, open_plain, open_store

if TYPE_CHECKING:  # what seal and complete need beside it they load when they are called
    from ms_recover.model.compose import ComposeAction
    from ms_recover.model.outcome import ActionResult
    from ms_recover.model.verification import Verification
    from ms_recover.planning.choice import Judged

_log = logging.getLogger(__name__)

Sealer = Callable[
    [Sequence[tuple[SliceFile, Evidence]], Mapping[int, tuple[int, ...]], int, Mapping[str, Digests]], list[str]
]
"""Writes manifests: slices with their evidence, groups by rank, the world size, digests by path; returns the paths."""


def compare_read(
    inventory: Inventory,
    options: PlanOptions,
    jobs: int,
    progress: Progress | None,
    *,
    deep: bool = False,
    read: Reader | None = None,
) -> tuple[list[Comparison], Contents]:
    """Read slices and compare them, the parts of a tree of iterations each for itself.

    With `read` that reads them, instead of threads of this process.
    """
    check_step_there(inventory, options.step)
    files = files_of(inventory, options.step)
    contents = read_files(inventory, files, jobs, progress, deep=deep) if read is None else read(files)
    return Parts(TreeFacts(inventory, options, contents)).every(), contents


def check_step_there(inventory: Inventory, step: Step | None) -> None:
    """Raise a MissingInputError unless there is a slice, of a step if one is given."""
    check_kind_of_step(inventory, step)
    if not inventory.steps or (step is not None and step not in inventory.steps):
        missing = "no slice" if step is None else f"no slice of step {step}"
        raise MissingInputError(f"{inventory.root} holds {missing}: see recover-ckpt scan {inventory.root}")


def files_of(inventory: Inventory, step: Step | None, kinds: Sequence[WeightKind | None] = ()) -> list[SliceFile]:
    """Return the slices that can be read, of one step and of some parts of a tree of iterations if they are given."""
    return [
        file
        for file in inventory.slices
        if file.problem is None and step in (None, file.step) and (not kinds or file.part in kinds)
    ]


def read_files(
    inventory: Inventory, files: Sequence[SliceFile], jobs: int, progress: Progress | None, *, deep: bool = False
) -> Contents:
    """Read slices of a tree from end to end; arguments and errors as for `read_contents`."""
    return read_contents(inventory.root, files, jobs=jobs, progress=progress, from_device=deep, crc=inventory.crc_later)


class ReadSlices:
    """The slices of a tree, or of some parts of it, compared by what was read of them so far."""

    def __init__(
        self,
        inventory: Inventory,
        options: PlanOptions,
        jobs: int,
        progress: Progress | None,
        kinds: Sequence[WeightKind | None] = (),
    ) -> None:
        self.inventory, self.options = inventory, options
        self._jobs, self._progress, self._kinds = jobs, progress, kinds
        self.contents = NOTHING_READ

    def read(self, files: Sequence[SliceFile]) -> None:
        """Read slices, if they were not read before."""
        unread = {file.path: file for file in files if not self.contents.knows(file)}
        read = read_files(self.inventory, list(unread.values()), self._jobs, self._progress)
        self.contents = self.contents.merged(read)

    def read_step(self, step: Step, run: Run) -> None:
        """Read the slices of a step, and of another step those that show whether one is outvoted rightly."""
        self.read(files_of(self.inventory, step, self._kinds))
        self.read([file for one in self.at(step) for file in trials_of(one, step, runs_alike(one.facts, step, run)[0])])

    def at(self, step: Step) -> list[Comparison]:
        """Return the parts of a step, compared."""
        return Parts(TreeFacts(self.inventory, self.options, self.contents)).at(step, self._kinds)


def seal_read(
    inventory: Inventory,
    options: PlanOptions,
    jobs: int,
    progress: Progress | None,
    read: Reader | None,
    write: Sealer | None,
) -> tuple[tuple[str, ...], Verification]:
    """Write the missing manifests of sound slices; arguments and result as for `ms_recover.api.seal`."""
    from ms_recover.execution.seal import seal_slices
    from ms_recover.planning.judging.verification import join_verifications, judge_slices, make_verification

    parts, contents = compare_read(inventory, options, jobs, progress, read=read)
    seal = write or partial(seal_slices, inventory.root)
    sealed: list[str] = []
    for compared in parts:
        facts, judged = compared.facts, judge_slices(compared)
        sound = [
            (one.file, found.evidence)
            for one, found in judged.slices
            if found.status == "sound" and one.manifest is None
        ]
        sealed += seal(sound, facts.groups.members, facts.world.ranks, contents.digests)
    found = [make_verification(compared, sealing=True) for compared in parts]
    return tuple(sealed), join_verifications(inventory.root, found)


def complete_slices(
    inventory: Inventory,
    rank: int,
    options: PlanOptions,
    kinds: Sequence[WeightKind | None],
    output: str | None,
    jobs: int,
    verify: bool,
    progress: Progress | None,
    dry_run: bool = False,
) -> tuple[ActionResult, ...]:
    """Write full slices of a rank, of some parts or of a tree without; arguments and errors as for `ms_recover.api`.

    That they can be composed is enough for a step: other ranks may have none.
    """
    from ms_recover.execution.compose import complete_slice, foresee_slice
    from ms_recover.planning.choice import candidates_of, choose, judge_runs, refuse_empty
    from ms_recover.planning.explain import judge_complete

    slices = ReadSlices(inventory, options, jobs, progress, kinds)

    def judge(step: Step, run: Run) -> Judged[tuple[ComposeAction, ...]]:
        slices.read_step(step, run)
        return judge_complete(slices.at(step), step, run, rank, len(kinds))

    facts = TreeFacts(inventory, options)
    choice = choose(candidates_of(facts), partial(judge_runs, judge=judge), partial(refuse_empty, facts))
    if not choice.found:
        why = "; ".join(f"step {one.step}: {one.reason}" for one in choice.rejected)
        kind = VerificationError if choice.shown.disputed else UnrecoverableError
        raise kind(f"no full slice for rank {rank} of {inventory.root}; {why}")
    if (others := facts.text_of_others) is not None:
        _log.warning("%s: %s", inventory.root, others)
    for text in texts_of_passed_over(choice.rejected):
        _log.warning("%s: %s; step %s is taken", inventory.root, text, choice.shown.step)
    found = choice.shown.value
    if not _is_here(inventory.root) or (output is not None and is_url(output)):
        return tuple(_complete_at_url(inventory.root, output, action, verify, dry_run) for action in found)
    targets = [action.target if output is None else os.path.abspath(output) for action in found]
    actions = [replace(action, target=target) for action, target in zip(found, targets, strict=True)]
    if dry_run:
        return tuple(foresee_slice(inventory.root, action) for action in actions)
    return tuple(complete_slice(inventory.root, action, verify=verify) for action in actions)


def _is_here(root: str) -> bool:
    """Whether a tree lies in a directory of this host as it is, and not in a backup."""
    with open_store(root) as store:
        return isinstance(store, LocalStore)


def _complete_at_url(root: str, output: str | None, action: ComposeAction, verify: bool, dry_run: bool) -> ActionResult:
    """Write a full slice where the tree is a backup, or it or the output a URL, or say what would be written."""
    from ms_recover.execution.apply_store import complete_in_store

    with ExitStack() as stack:
        store = stack.enter_context(open_store(root))
        if output is None:
            return complete_in_store(store, store, action.target, action, verify=verify, dry_run=dry_run)
        folder, _, name = (output if is_url(output) else os.path.abspath(output)).rpartition("/")
        target = stack.enter_context(open_plain(folder or "/"))
        result = complete_in_store(store, target, name, action, verify=verify, dry_run=dry_run)
        return replace(result, target=f"{target.url}/{name}")
