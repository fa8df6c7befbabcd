"""The steps at which a rank keeps its own slice, or gets it from other ranks: copied, or composed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ms_recover import api
from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.loading import contents
from ms_recover.loading.contents import SliceContents
from ms_recover.model.compose import ComposeAction
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.options import ScanOptions
from ms_recover.model.rank_local import MOST_NAMED, why_refused
from ms_recover.model.slices import SliceHeader
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.plan.planner import plan_for_rank
from ms_recover.planning.plan.required_reads import required_reads_of_rank
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.scanning.read import Reading, digest_slice, read_contents
from ms_recover.stores.places import look_at_folder
from ms_recover.stores.store import OpenFile
from ms_recover.training.deciding.agreement import Candidate, Candidates, Place, why_no_common_step
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.rank_steps import RankSteps
from ms_recover.training.deciding.resumed_experiment import TAKES_ALL, Taken
from ms_recover.training.deciding.runs import experiments_of
from ms_recover.training.found_state import has_own_state
from ms_recover.training.held_slices import claim_beside
from ms_recover.training.run_state import RunState, state_if_sound
from ms_recover.training.search import Search
from ms_recover.training.set_aside import set_all_aside
from ms_recover.training.tree_view import SliceTree, TreeView

_log = logging.getLogger(__name__)


class KeptSlice:
    """Keeps the contents of the slice that it read last, until they are taken; the memory is the taker's then."""

    def __init__(self) -> None:
        self._path = ""
        self._contents: SliceContents | None = None

    def read(self, opened: OpenFile, header: SliceHeader, *, crc: bool, **means: Any) -> tuple[Digests, str | None]:
        """Read a slice as `ms_recover.scanning.read.digest_slice` does."""
        self._path, self._contents = opened.name, None
        if header.problems or header.encryption is not None:
            return digest_slice(opened, header, crc=crc, **means)
        found = contents.read_contents(opened, header, crc=crc, **means)
        assert found.digests is not None
        if found.problem is None:
            self._contents = found
        return found.digests, found.problem

    def take(self, path: str) -> SliceContents | None:
        """Return the contents of a slice and keep them no longer; None when another one was read, or none."""
        found = self._contents if path == self._path else None
        self._contents = None
        return found


@dataclass(eq=False, kw_only=True)
class OwnSteps(Candidates[OwnSlice]):
    """The steps of the tree in place at which this rank has its slice, or can get it."""

    search: Search
    steps: RankSteps
    view: TreeView | None = None
    """The tree; None where the rank sees none, or has nothing to choose there."""
    taken: Taken = TAKES_ALL
    """The experiments that are candidates."""
    source_ranks: dict[Step, int] = field(default_factory=dict)
    """Steps whose slice was copied or composed just now, and the rank it came from, the first of several."""
    outdated: bool = False
    """Whether slices may have been written since the scan."""
    _keeping: KeptSlice = field(default_factory=KeptSlice)
    """What was read of this rank's slice to prove it: it is not read again to load it."""
    _proving: str | None = None
    """The slice of this rank that is kept when it is read."""

    @classmethod
    def judged(
        cls, rank: int, search: Search, tree: SliceTree | None, runs: tuple[RunRecord, ...], taken: Taken = TAKES_ALL
    ) -> OwnSteps:
        """Judge a tree by the runs that all ranks see; without one there are no steps.

        Raises what `ms_recover.planning.tree.facts.gather_facts` and `compare_slices` raise.
        """
        made = cls(search=search, steps=RankSteps(rank=rank), taken=taken)
        if tree is not None:
            made.view = view = TreeView.of(tree, search.judging, runs, made._read)
            made.steps = RankSteps.judged(rank, view.session.facts, view.whole, search.step)
        return made

    @property
    def tree(self) -> TreeView:
        """The tree; only for a rank that sees one."""
        assert self.view is not None
        return self.view

    @property
    def inventory(self) -> Inventory:
        """The scan; only for a rank that sees a tree."""
        return self.tree.tree.inventory

    @property
    def is_empty(self) -> bool:
        """Whether the scan found no slices, of whatever worth."""
        return not (self.steps.assessments or self.steps.withdrawn)

    def newest(self, bound: Place | None, *, own_states: bool) -> Candidate | None:
        """Return the newest step up to a bound; with `own_states` at which the rank goes on with states of its own."""
        places = (self.steps.place(step) for step in self.steps.available)
        for place in sorted((one for one in places if bound is None or one <= bound), reverse=True):
            has_own = not self.takes_other_states(place[1])
            if has_own or not own_states:
                return Candidate(place=place, own_states=has_own)
        return None

    def takes_other_states(self, step: Step) -> bool:
        """Whether this rank would go on, from an available step, with another rank's states that differ from its own.

        Those are the states of generators, of callbacks, and what the program gave. Not where this was chosen.
        """
        verdict = self.steps.verdict(step)
        if self.search.rank_local == "peer" or verdict.path is None:
            return False
        rank, path = self.steps.rank, os.path.join(self.inventory.root, verdict.path)
        kept = (one.manifest for one in self.inventory.slices if one.path == verdict.path)
        own = next(kept, None) if verdict.verdict == "keep" else None
        of_group = [other for other, _ in self.peers(step) if rank in other.group]
        if not any(map(_differ, (own, *of_group))):
            return False
        return not has_own_state(rank, path, own, lambda: self.peers(step))

    def peers(self, step: Step) -> Iterator[tuple[Manifest, Callable[[], RunState | None]]]:
        """Yield the manifests of other ranks' slices of a step, of the run that it is taken from.

        With each comes a function that reads the state.
        """
        run = self.steps.assessments[step].run_id
        for file in self.inventory.slices:
            manifest = file.manifest
            if file.step == step and file.rank != self.steps.rank and manifest is not None and manifest.run_id == run:
                yield manifest, partial(state_if_sound, os.path.join(self.inventory.root, file.path), manifest)

    def own_slice(self, step: Step) -> OwnSlice:
        """Return this rank's slice of an available step; where it is to be copied or composed, its target."""
        path = self.steps.verdict(step).path
        assert path is not None
        return OwnSlice(self.steps.rank, step, os.path.join(self.inventory.root, path))

    def take_contents(self, own: OwnSlice) -> SliceContents | None:
        """Return what was read of a slice to prove it, once; None where it was not read, or was written since."""
        return self._keeping.take(own.path)

    def fingerprint(self, candidate: Candidate) -> int:
        """Return that of the run of the step's slices."""
        return self.steps.fingerprint(candidate.step)

    def withdraw(self, candidate: Candidate, why: str) -> None:
        """Name a step no more."""
        self._give_up(candidate.step, why)
        _log.warning("rank %d, step %s: %s; trying an older step", self.steps.rank, candidate.step, why)

    def missed(self, candidate: Candidate, ranks: Sequence[int]) -> None:
        """Do nothing: the ranks that could not obtain a step name it no more."""

    def why_none(self, job: TrainingJob, ranks: Sequence[int]) -> str:
        """Return the steps that each rank can be brought to, and why not to others."""
        return why_no_common_step(job, self.search.root, self.steps.available, self.steps.unavailable)

    def _give_up(self, step: Step, why: str) -> None:
        self.steps, self._keeping = self.steps.without(step, why), KeptSlice()

    def obtain(self, candidate: Candidate) -> OwnSlice | None:
        """Prove this rank's slice of a step, or copy or compose it from other ranks; None where it cannot be had.

        Raises
        ------
        VerificationError
            When replicas differ and nothing shows which is right.
        MsRecoverError
            When the slice could not be copied or composed for another reason than wrong contents.
        """
        step, rank = candidate.step, self.steps.rank
        before = self.steps.verdict(step).verdict
        self._prove(step)
        verdict = self.steps.verdict(step)
        if verdict.verdict != before:
            _log.warning("rank %d, step %s: %s", rank, step, verdict.reason)
        if verdict.verdict == "unrecoverable":
            return None
        own, lost = self.own_slice(step), self.steps.lost_values(step)
        if lost and self.search.rank_local == "refuse":
            self._refuse_others(step, why_refused(lost, rank))
            return None
        if lost and self.search.rank_local == "initial":
            _log.warning("%s: %s are left as the network begins with them", own, list_some(lost, MOST_NAMED))
        if verdict.verdict == "keep":
            _log.log(logging.WARNING if self.steps.lends(step) else logging.INFO, "%s: %s", own, verdict.reason)
            return own
        return self._get(step, own, verdict.reason, "copied from" if verdict.verdict == "copy" else _COMPOSED)

    def _refuse_others(self, step: Step, why: str) -> None:
        """Give up a step at which the rank's own values are lost; each older step may have lost the same."""
        level = logging.INFO if why in self.steps.withdrawn.values() else logging.WARNING
        _log.log(level, "rank %d, step %s: %s; trying an older step", self.steps.rank, step, why)
        self._give_up(step, why)

    def _get(self, step: Step, own: OwnSlice, reason: str, how: str) -> OwnSlice | None:
        """Copy or compose a slice."""
        folder = os.path.dirname(own.path)
        if not may_be_written(folder):
            why = f"{folder} may only be read, so the slice cannot be put there: {reason}"
            _log.warning("%s: %s; trying an older step", own, why)
            self._give_up(step, why)
            return None
        unshown, self.outdated = self.steps.why_not_shown(step), True
        try:
            source = self._recover(step, own)
        except VerificationError as error:
            _log.warning("%s: %s; trying an older step", own, error)
            self._give_up(step, str(error))
            return None
        _log.warning("%s: %s rank %d; %s", own, how, source, reason)
        if unshown is not None:
            _log.warning("step %s: %s", step, unshown)
        self.source_ranks[step] = source
        return own

    def _recover(self, step: Step, own: OwnSlice) -> int:
        """Apply the action of this rank alone; return the rank whose slice it used, the first of several."""
        plan = plan_for_rank(self.steps.compared, self.steps.assessments[step], self.steps.rank)
        outcome = api.apply(plan, ranks={self.steps.rank})
        (result,) = outcome.results
        for error in [*([result.error] if result.error else []), *outcome.errors]:
            kind = VerificationError if outcome.exit_code == VerificationError.exit_code else MsRecoverError
            raise kind(f"{own}: not copied: {error}")
        if result.source_rank is not None:
            return result.source_rank
        (action,) = plan.actions
        assert isinstance(action, ComposeAction)
        return action.source_ranks[0]

    def _prove(self, step: Step) -> None:
        """Read the rank's own slice if a manifest describes it, otherwise every source without one, and judge again.

        Raises
        ------
        VerificationError
            When replicas differ, at this step or a newer one, and nothing shows which is right.
        """
        self._keeping, session, rank = KeptSlice(), self.tree.session, self.steps.rank
        while True:
            self._proving = self.steps.verdict(step).path
            if not session.read(required_reads_of_rank(self.steps.compared, self.steps.assessments[step], rank)):
                break
            self.steps = self.steps.judged_again(step, session.facts, self.tree.whole)
        if self.steps.verdict(step).verdict != "keep":
            self._keeping = KeptSlice()
        disputed = self.steps.disputed_from(step)
        if disputed is not None:
            newer, reasons = disputed
            raise VerificationError(
                f"rank {rank}, step {newer}: {'; '.join(reasons)}: nothing shows which is right; remove the wrong "
                "slice, or name the parameters that may differ with tolerate"
            )

    def _read(self, files: Sequence[SliceFile]) -> Contents:
        root, rank = self.inventory.root, self.steps.rank
        own = [file for file in files if (file.rank, file.path) == (rank, self._proving)]
        read = read_contents(root, own, Reading(read=self._keeping.read))
        return read.merged(read_contents(root, [file for file in files if file not in own]))

    def is_set_aside(self, file: SliceFile, step: Step) -> bool:
        """Whether a slice is set aside when training resumes from a step: it is newer, or of a later run than the last.

        That is none of another experiment than the program's.
        """
        return file.rank == self.steps.rank and self._is_own(file) and self.steps.is_newer(file, step)

    def _is_own(self, file: SliceFile) -> bool:
        """Whether a slice is of the program's experiments: by its manifest, what a kill left of it, or its name."""
        own = experiments_of(self.steps.lineage, self.taken.own)
        if not own:
            return True
        claim = claim_beside(os.path.join(self.inventory.root, file.path)) if file.manifest is None else None
        return (self.steps.compared.facts.names.of(file) if claim is None else claim.base_prefix) in own

    def set_newer_aside(self, step: Step) -> None:
        """Rename this rank's slices that are newer than the step that training resumes from, with their manifests.

        Where another run was chosen, those of runs that were started later as well: the choice stays made. In
        directories that may only be read they stay, and nothing can be saved beside them.

        Raises
        ------
        StorageError
            When the file system refuses.
        """
        why, lineage = f"newer than step {step}, from which training goes on", self.steps.lineage
        if lineage is not None and lineage.chosen:
            why += f", or of later runs than {lineage.last.text}, which was chosen"
        set_all_aside(self.steps.rank, self._newer(step), why)

    def _newer(self, step: Step) -> Iterator[tuple[str, Step]]:
        """Yield the slices to set aside, with their steps; each is renamed before the next one."""
        inventory = self._scan_again() if self.outdated else self.inventory
        stay: set[str] = set()
        while newer := [one for one in inventory.slices if self.is_set_aside(one, step) and one.path not in stay]:
            for one in newer:
                path = os.path.join(inventory.root, one.path)
                if may_be_written(os.path.dirname(path)):
                    yield path, one.step
                else:
                    stay.add(one.path)
            inventory = self._scan_again()  # a scan shows one of several equal slices
        if stay:
            _log.warning(
                "rank %d: %d slices that are newer than step %s stay under %s, which may only be read: save elsewhere",
                self.steps.rank,
                len(stay),
                step,
                inventory.root,
            )

    def _scan_again(self) -> Inventory:
        options = ScanOptions(pattern=self.search.scanning.pattern, crc=False, may_be_empty=True)
        return api.scan(self.inventory.root, options)


_COMPOSED = "composed from slices of several ranks, first"


def may_be_written(folder: str) -> bool:
    """Whether files of a directory, which may have to be made, can be made and renamed."""
    facts, _ = look_at_folder(folder)
    return facts.writable and facts.fault is None


def _differ(manifest: Manifest | None) -> bool:
    """Whether the states of the ranks of a slice's group differed when it was saved."""
    return manifest is not None and manifest.training is not None and manifest.training.states_differ is True
