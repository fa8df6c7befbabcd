"""The tree as one rank sees it, and the proof behind its own slices."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ms_recover import api
from ms_recover.errors import MissingInputError, UsageError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.loading.contents import SliceContents
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Manifest, RunStep
from ms_recover.model.options import DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.planning.choice import assess_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.plan.required_reads import required_reads_of_rank
from ms_recover.planning.supply.lent_values import lost_values, text_of_kept, why_not_shown
from ms_recover.planning.tree.candidates import Candidate, candidate_at, find_candidates, runs_of
from ms_recover.planning.tree.lineage import Lineage, RunRecord, find_run_records
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.scanning.naming import read_file_name
from ms_recover.scanning.read import Reading, read_contents
from ms_recover.scanning.survey import survey_folder
from ms_recover.scanning.tree import Tree
from ms_recover.stores.local_store import LocalStore
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.resumed_experiment import TAKES_ALL, Taken
from ms_recover.training.found_state import has_own_state
from ms_recover.training.held_slices import claim_beside
from ms_recover.training.kept_slice import KeptSlice
from ms_recover.training.run_state import RunState, state_if_sound

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RankView:
    """The tree as one rank sees it; other ranks may see other parts."""

    rank: int
    seen: Inventory | None = None
    """The scan; None where the rank sees no tree."""
    comparison: Comparison | None = None
    """What the slices show about each other; None before it is judged."""
    contents: Contents = NOTHING_READ
    """Digests of the slices that were read so far."""
    scanning: ScanOptions = DEFAULT_SCAN
    rank_local: RankLocalChoice = "refuse"
    """What becomes of a step at which rank-local values of this rank are lost."""
    assessments: Mapping[Step, StepAssessment] = field(default_factory=dict)
    """Newest step first. Only the verdict on this rank counts."""
    withdrawn: Mapping[Step, str] = field(default_factory=dict)
    """Steps that are not resumed from, and the reasons: they belong to an older run, or an attempt failed."""
    back_from: tuple[Step, tuple[int, ...]] | None = None
    """A newer step that was passed over, and the ranks that would have had the states of others there."""
    source_ranks: Mapping[Step, int] = field(default_factory=dict)
    """Steps whose slice was copied or composed just now, and the rank it came from, the first of several."""
    known_runs: tuple[RunRecord, ...] = ()
    """The runs that some rank sees."""
    outdated: bool = False
    """Whether slices may have been written since the scan."""
    overlooked: str | None = None
    """Where the scan found no slice: why there may be some all the same."""
    taken: Taken = TAKES_ALL
    """The experiments that are candidates."""
    keeping: KeptSlice | None = None
    """What was read of this rank's slice to prove it, where that is sound: it is not read again to load it."""

    @property
    def has_slices(self) -> bool:
        """Whether the scan found slices, of any worth."""
        return bool(self.assessments or self.withdrawn)

    def lends(self, step: Step) -> bool:
        """Whether this rank's slice has values of another rank since it was recovered earlier."""
        path = self.verdict(step).path
        held = (one for one in self.compared.facts.at(step, self.rank) if one.path == path)
        return any(text_of_kept(one) for one in held)

    def takes_other_states(self, step: Step) -> bool:
        """Whether this rank would go on, from an available step, with another rank's states that differ from its own.

        Those are the states of generators, of callbacks, and what the program gave. Not where this was chosen.
        """
        verdict = self.verdict(step)
        if self.rank_local == "peer" or verdict.path is None:
            return False
        path = os.path.join(self.inventory.root, verdict.path)
        kept = (one.manifest for one in self.inventory.slices if one.path == verdict.path)
        own = next(kept, None) if verdict.verdict == "keep" else None
        of_group = [other for other, _ in self.peers(step) if self.rank in other.group]
        if not any(map(differ, (own, *of_group))):
            return False
        return not has_own_state(self.rank, path, own, lambda: self.peers(step))

    def peers(self, step: Step) -> Iterator[tuple[Manifest, Callable[[], RunState | None]]]:
        """Yield the manifests of other ranks' slices of a step, of the run that it is taken from.

        With each comes a function that reads the state.
        """
        run = self.assessments[step].run_id
        for file in self.inventory.slices:
            manifest = file.manifest
            if file.step == step and file.rank != self.rank and manifest is not None and manifest.run_id == run:
                yield manifest, partial(state_if_sound, os.path.join(self.inventory.root, file.path), manifest)

    def lost_values(self, step: Step) -> tuple[str, ...]:
        """Return the rank-local parameters of which the slice has, or gets, another rank's values."""
        return lost_values(self.compared.facts, self.assessments[step], self.rank)

    def why_not_shown(self, step: Step) -> str | None:
        """Return that nothing shows whether values which this rank gets from another one were its own."""
        return why_not_shown(self.compared.facts, self.assessments[step], self.rank)

    @property
    def available_steps(self) -> list[Step]:
        """Steps at which this rank has its slice or can get it, newest first."""
        return [
            step
            for step in self.assessments
            if step not in self.withdrawn and self.verdict(step).verdict != "unrecoverable"
        ]

    @property
    def unavailable_steps(self) -> dict[Step, str]:
        """The other steps and the reasons, newest first."""
        available = self.available_steps
        reasons = {step: self.verdict(step).reason for step in self.assessments if step not in available}
        reasons.update(self.withdrawn)
        return {step: reasons[step] for step in sorted(reasons, reverse=True)}

    @property
    def compared(self) -> Comparison:
        """The comparison; only for a rank that sees a tree."""
        assert self.comparison is not None
        return self.comparison

    @property
    def inventory(self) -> Inventory:
        """The scan; only for a rank that sees a tree."""
        assert self.seen is not None
        return self.seen

    @property
    def lineage(self) -> Lineage | None:
        """The run to resume, and those that it goes on from; None where nothing states it."""
        return self.comparison.facts.lineage if self.comparison is not None else None

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs whose manifests this rank sees."""
        if self.seen is None:
            return ()
        return find_run_records(self.inventory.slices, self.inventory.set_aside)

    def generation(self, step: Step) -> int:
        """Return the place in the lineage of the run that a step is taken from."""
        return self.comparison.facts.times_of(step)[0].generation if self.comparison is not None else 0

    def is_set_aside(self, file: SliceFile, step: Step) -> bool:
        """Whether a slice is set aside when training resumes from a step: it is newer, or of a later run than the last.

        That is none of another experiment than the program's.
        """
        if file.rank != self.rank or not self._is_own(file):
            return False
        order = self.lineage.order(file) if self.lineage is not None else None
        if order is not None:
            return order > (self.generation(step), step)
        return file.step > step or (self.lineage is not None and self.lineage.is_later(file.manifest))

    @property
    def own_experiments(self) -> tuple[str, ...]:
        """The experiments of the program, as far as it or what it resumes states them."""
        stated = self.lineage.last if self.lineage is not None else None
        return self.taken.own or (stated.experiments if stated is not None and stated.base_prefix is not None else ())

    def _is_own(self, file: SliceFile) -> bool:
        """Whether a slice is of the program's experiments: by its manifest, what a kill left of it, or its name."""
        own = self.own_experiments
        if not own:
            return True
        claim = claim_beside(os.path.join(self.inventory.root, file.path)) if file.manifest is None else None
        return (self.compared.facts.names.of(file) if claim is None else claim.base_prefix) in own

    def verdict(self, step: Step) -> RankVerdict:
        """Return the verdict on this rank at a step."""
        return self.assessments[step].ranks[self.rank]

    def own_slice(self, step: Step) -> OwnSlice:
        """Return this rank's slice of an available step; where it is to be copied or composed, its target."""
        path = self.verdict(step).path
        assert path is not None
        return OwnSlice(self.rank, step, os.path.join(self.inventory.root, path))

    def take_contents(self, own: OwnSlice) -> SliceContents | None:
        """Return what was read of a slice to prove it, once; None where it was not read, or was written since."""
        return self.keeping.take(own.path) if self.keeping is not None else None

    def run_fingerprint(self, step: Step) -> int:
        """Return a 32-bit number that differs between runs, 0 when the run of the step's slices is unknown."""
        run_id = self.assessments[step].run_id
        if not run_id:
            return 0
        started = self.run_of(step).started
        return int.from_bytes(
            hashlib.blake2b(f"{run_id}@{started}".encode(), digest_size=4).digest(), "big", signed=True
        )

    def run_of(self, step: Step) -> RunStep:
        """Return a step with the run that it is taken from."""
        run = runs_of(self.compared.facts, step)[0]
        return RunStep(self.assessments[step].run_id or "", step, run.started)

    def judged(
        self,
        judging: PlanOptions,
        runs: tuple[RunRecord, ...] = (),
        rank_local: RankLocalChoice = "refuse",
        only: Step | None = None,
    ) -> RankView:
        """Return the view in which the scan is judged with these options, and with the runs that some rank sees.

        With `only` no other step is available. Raises what `ms_recover.planning.tree.facts.gather_facts` and
        `compare_slices` raise.
        """
        if self.seen is None:
            return replace(self, known_runs=runs)
        if not self.seen.slices:  # what a start left that saved nothing states no number of ranks
            judging = replace(judging, world_size=None)
        tree = Parts(TreeFacts(self.seen, judging, NOTHING_READ, runs))
        (compared,) = tree.every()
        assessments: dict[Step, StepAssessment] = {}
        passed_over: dict[Step, str] = {}
        for one in find_candidates(tree.facts, only) if self.seen.slices else ():
            if isinstance(one, Candidate):
                assessments[one.step] = _assess(compared, one, self.rank)
            else:
                passed_over[one.step] = one.reason
        if only is not None and self.seen.slices and only not in self.seen.steps:
            passed_over[only] = "there is no slice of it"
        return replace(
            self,
            comparison=compared,
            known_runs=runs,
            rank_local=rank_local,
            assessments=assessments,
            withdrawn=passed_over,
        )

    def withdraw(self, step: Step, reason: str, *, outdated: bool = False) -> RankView:
        """Return the view in which a step is not available."""
        withdrawn = {**self.withdrawn, step: reason}
        return replace(self, withdrawn=withdrawn, outdated=self.outdated or outdated, keeping=None)

    def prove(self, step: Step) -> RankView:
        """Read the rank's own slice if a manifest describes it, otherwise every source without one, and judge again.

        Raises VerificationError when replicas differ, at this step or a newer one, and nothing shows which is right.
        """
        view, keeping = replace(self, keeping=None), KeptSlice()
        while unread := view._unread(step):
            root, path = view.inventory.root, view.verdict(step).path
            own = [file for file in unread if (file.rank, file.path) == (view.rank, path)]
            others = [file for file in unread if file not in own]
            contents = view.contents.merged(read_contents(root, own, Reading(read=keeping.read))).merged(
                read_contents(root, others)
            )
            options = view.compared.facts.options
            tree = Parts(TreeFacts(view.inventory, options, contents, view.known_runs))
            (compared,) = tree.every()
            assessments = {**view.assessments, step: _assess(compared, candidate_at(tree.facts, step), view.rank)}
            view = replace(view, comparison=compared, contents=contents, assessments=assessments)
        if view.verdict(step).verdict == "keep":
            view = replace(view, keeping=keeping)
        for newer, assessment in view.assessments.items():
            if newer >= step and assessment.disagreements:
                raise VerificationError(
                    f"rank {self.rank}, step {newer}: {'; '.join(assessment.disagreements)}: nothing shows which is "
                    "right; remove the wrong slice, or name the parameters that may differ with tolerate"
                )
        return view

    def _unread(self, step: Step) -> tuple[SliceFile, ...]:
        required = required_reads_of_rank(self.compared, self.assessments[step], self.rank)
        return tuple(file for file in required if not self.contents.knows(file))


def scan_tree(root: str, rank: int, scanning: ScanOptions = DEFAULT_SCAN) -> RankView:
    """Scan the tree as one rank sees it; one that is missing or has no slices gives a view without steps.

    Raises what `ms_recover.api.scan` raises.
    """
    try:
        inventory = api.scan(root, scanning)
    except MissingInputError as error:
        _log.warning("rank %d: %s", rank, error)
        return RankView(rank=rank, scanning=scanning, overlooked=_overlooked(root, str(error)))
    if inventory.iterations:
        raise UsageError(
            f"{inventory.root} holds iterations of MindFormers, which its own resume loads: recover them with "
            "recover-ckpt apply, or name the folder of SliceCheckpoint"
        )
    for other in inventory.other_sets:
        _log.warning("rank %d: %s", rank, other.text)
    overlooked = None if inventory.slices else _why_overlooked(inventory)
    return RankView(rank=rank, seen=inventory, scanning=scanning, overlooked=overlooked)


def differ(manifest: Manifest | None) -> bool:
    """Whether the states of the ranks of a slice's group differed when it was saved."""
    return manifest is not None and manifest.training is not None and manifest.training.states_differ is True


def _assess(compared: Comparison, candidate: Candidate, rank: int) -> StepAssessment:
    """Judge every rank at a step: as of the best run, or of another set of its slices if this rank has one there."""
    step, (first, *others) = candidate.step, candidate.runs
    assessed = assess_step(compared, step, first)
    for run in others:
        if assessed.disagreements or assessed.ranks[rank].verdict != "unrecoverable":
            break
        if run.run_id and (run.run_id, run.started) == (first.run_id, first.started):
            other = assess_step(compared, step, run)
            assessed = other if other.ranks[rank].verdict != "unrecoverable" else assessed
    return assessed


def _why_overlooked(inventory: Inventory) -> str | None:
    if inventory.denied:
        _, note = inventory.denied[0]
        return f"{os.path.join(inventory.root, note.path)}: {note.reason}"
    if inventory.orphans:
        return f"{inventory.root} holds manifests of slices that are gone, such as that of {inventory.orphans[0].path}"
    return _overlooked(inventory.root, f"{inventory.root} holds no slice where the directories of ranks are")


def _overlooked(root: str, why: str) -> str | None:
    """Return `why` a scan without slices does not show that there are none; None for a root that is empty of them."""
    if not os.path.lexists(root):
        return None
    if not os.path.isdir(root) or not os.access(root, os.R_OK | os.X_OK):
        return why
    named = [
        path for path in survey_folder(Tree(LocalStore(root))).paths if _is_named_as_slice(os.path.join(root, path))
    ]
    return f"{why}; {named[0]} has the name of a slice" if named else None


def _is_named_as_slice(path: str) -> bool:
    named = read_file_name(os.path.basename(path))
    return (named is not None and not named.rest) or os.path.exists(path + MANIFEST_SUFFIX)
