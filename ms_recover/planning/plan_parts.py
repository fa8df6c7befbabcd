"""The plan of a tree of iterations, put together from the plans of its parts.

Each part is planned as any tree is. An iteration is recoverable when all its parts are, as slices of one run; the
newest such iteration wins. A rank's verdict is that of its worst part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.file_names import WeightKind
from ms_recover.model.contents import Contents
from ms_recover.model.history import History
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import RankVerdict, RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import RankState, Verdict
from ms_recover.planning.document_check import plan_documents
from ms_recover.planning.facts import check_kind_of_step, check_rank, gather_facts
from ms_recover.planning.history.make_history import join_histories, judge_clean, make_history
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.lineage import find_run_records
from ms_recover.planning.parts import split_parts
from ms_recover.planning.planner import (
    Planned,
    TriedStep,
    make_plan,
    try_step,
    why_unrecoverable,
)
from ms_recover.planning.required_reads import required_reads
from ms_recover.planning.runs import Run
from ms_recover.planning.world_size import WorldSize

_STATES: Sequence[RankState] = ("lost", "unreadable", "damaged", "missing", "ok")
_VERDICTS: Sequence[Verdict] = ("unrecoverable", "compose", "copy", "keep")
_MOST_NAMED = 8


def plan_parts(inventory: Inventory, parts: Sequence[Inventory], options: PlanOptions, contents: Contents) -> Planned:
    """Plan a tree of iterations, whose parts are those of `split_parts`.

    The plans of parts are joined when no file that they rest on is unread; before that the plan is the first part's.

    Errors are those of `ms_recover.planning.planner.plan_facts`, `gather_facts` and `Parts`.
    """
    return _plan_iterations(Parts(inventory, options, contents, parts))


class Parts:
    """The parts of a tree of iterations, each compared when it is needed; trees without are one part.

    Raises
    ------
    UsageError
        When the world size that is given is that of no iteration, or a rank is not in the world of the newest one, or
        of the step that is asked for.
    MissingInputError
        When there is no iteration of that step.
    """

    def __init__(
        self,
        inventory: Inventory,
        options: PlanOptions,
        contents: Contents,
        parts: Sequence[Inventory] | None = None,
    ) -> None:
        self.inventory, self.options, self._contents = inventory, options, contents
        self._parts = split_parts(inventory) if parts is None else parts
        counted = [file for file in inventory.slices if file.rank not in options.lost]
        self._runs = find_run_records(counted, inventory.set_aside)
        self._compared: dict[int, Comparison] = {}
        if inventory.iterations:
            self._check()

    def _check(self) -> None:
        inventory, options = self.inventory, self.options
        check_kind_of_step(inventory, options.step)
        if options.step is not None and options.step not in inventory.steps:
            have = ", ".join(str(known) for known in inventory.steps[:_MOST_NAMED])
            raise MissingInputError(f"{inventory.root} holds no slice of step {options.step}; it has {have}")
        worlds = {step: self.world(step) for step in inventory.steps}
        given = options.world_size
        if given is not None and all(given != world.ranks for world in worlds.values()):
            first = worlds[inventory.steps[0]]
            raise UsageError(f"the world size is given as {given}, but {first.source} are of {first.ranks} ranks")
        newest = next((step for step in inventory.steps if given in (None, worlds[step].ranks)), inventory.steps[0])
        world = worlds[options.step or newest]
        for rank in sorted(options.lost):
            check_rank(rank, world, "declared lost")
        for rank in sorted(options.ranks or ()):
            check_rank(rank, world)

    def world(self, step: Step) -> WorldSize:
        """Return the number of ranks at a step."""
        claims = [part.part for part in self._parts if part.part is not None and step in part.part.steps]
        best = max(claims, key=lambda one: one.world_size, default=None)
        if best is None:
            return WorldSize(ranks=0, source="nothing", rejected_lists={})
        return WorldSize(ranks=best.world_size, source=best.source, rejected_lists={})

    def at(self, step: Step) -> list[tuple[WeightKind | None, Comparison]]:
        """Return the parts of a step, model files first."""
        return [
            (part.part.name if part.part is not None else None, self._compare(number))
            for number, part in enumerate(self._parts)
            if step in part.steps
        ]

    def why_outside(self, step: Step) -> str | None:
        """Return the reason why a step is of another run than the one to recover; None when it is of that one."""
        facts = [compared.facts for _, compared in self.at(step)]
        return next((why for one in facts if one.lineage is not None and (why := one.why_older(step))), None)

    def every(self, kinds: Sequence[WeightKind | None] = ()) -> list[Comparison]:
        """Return all parts, or those of some kinds, that the step in the options leaves; newest first."""
        step = self.options.step
        return [
            self._compare(number)
            for number, part in enumerate(self._parts)
            if step in (None, *part.steps) and (not kinds or part.part is None or part.part.name in kinds)
        ]

    def history(self) -> History:
        """Return the history of all parts."""
        return join_histories(self.inventory, [make_history(compared.facts) for compared in self.every()])

    def unread(self, planned: Sequence[Planned]) -> bool:
        """Whether plans of parts rest on files that must still be read."""
        if self.options.quick:
            return False
        return any(not self._contents.knows(file) for one in planned for file in required_reads(one))

    def _compare(self, number: int) -> Comparison:
        if number not in self._compared:
            part, options = self._parts[number], self.options
            if part.part is not None:
                world = range(part.part.world_size)
                options = replace(
                    options,
                    world_size=None,
                    lost=frozenset(options.lost.intersection(world)),
                    ranks=None if options.ranks is None else frozenset(options.ranks.intersection(world)),
                )
            self._compared[number] = compare_slices(gather_facts(part, options, self._contents, self._runs))
        return self._compared[number]


@dataclass(frozen=True, kw_only=True)
class TriedParts:
    """The parts of one step, and whether all of them can be had."""

    step: Step
    parts: tuple[tuple[WeightKind | None, Comparison, TriedStep], ...]

    @property
    def found(self) -> bool:
        """Whether each part can be had, for the same ranks: of a part of which nothing is known there is no rank."""
        worlds = {len(tried.shown.ranks) for _, _, tried in self.parts}
        return len(worlds) == 1 and 0 not in worlds and all(tried.found is not None for _, _, tried in self.parts)

    @property
    def undecided(self) -> bool:
        """Whether replicas of some part differ, with nothing to settle who is right."""
        return any(tried.undecided for _, _, tried in self.parts)


def _plan_iterations(parts: Parts) -> Planned:
    inventory, options = parts.inventory, parts.options
    rejected: list[RejectedStep] = []
    shown: TriedParts | None = None
    found = False
    why_unclean = judge_clean(options, parts.history)
    for step in (options.step,) if options.step is not None else inventory.steps:
        world = parts.world(step)
        if options.world_size not in (None, world.ranks):
            why = f"{world.source} are of {world.ranks} ranks, not of {options.world_size}"
            rejected.append(RejectedStep(step, why, another_run=True))
            continue
        outside = parts.why_outside(step) if options.step is None else None
        if outside is not None:
            rejected.append(RejectedStep(step, outside, another_run=True))
            continue
        unclean = why_unclean(step)
        if unclean is not None:
            rejected.append(RejectedStep(step, unclean))
            continue
        tried = try_parts(parts, step)
        if tried.found or tried.undecided or shown is None:
            shown = tried
        if tried.found:
            found = True
            break
        verdicts = join_ranks(tried)
        lost = tuple(one.rank for one in verdicts if one.verdict == "unrecoverable")
        rejected.append(RejectedStep(step, why_unrecoverable(verdicts) or "it has no file", ranks=lost))
        if tried.undecided:
            break
    if shown is None and (passed := [one.step for one in rejected if not one.another_run]):
        shown = try_parts(parts, passed[0])
    if shown is None:
        raise MissingInputError(f"{inventory.root} holds no iteration of {options.world_size} ranks")
    return _join(parts, shown, tuple(rejected), found=found)


def try_parts(parts: Parts, step: Step) -> TriedParts:
    """Assess the parts of a step, the later ones as the run that the first is of."""
    tried: list[tuple[WeightKind | None, Comparison, TriedStep]] = []
    for kind, compared in parts.at(step):
        runs: Sequence[Run] | None = None
        if tried:
            first = tried[0][2].run
            runs = [run for run in compared.facts.runs(step) if _is_same(first, run)] or [first]
        tried.append((kind, compared, try_step(compared, step, runs)))
    return TriedParts(step=step, parts=tuple(tried))


def _is_same(one: Run, other: Run) -> bool:
    """Whether files of two parts may be of one run, as far as both state it."""
    return all(
        None in (a, b) or a == b
        for a, b in (
            (one.run_id, other.run_id),
            (one.started, other.started),
            (one.base, other.base),
            (one.prefix, other.prefix),
        )
    )


def _join(parts: Parts, tried: TriedParts, rejected: tuple[RejectedStep, ...], *, found: bool) -> Planned:
    """Return the joined plan; while files are unread that of the first part, because only its reads are asked for."""
    inventory = parts.inventory
    planned = tuple(
        Planned(plan=make_plan(compared, one.found, one.shown), compared=compared) for _, compared, one in tried.parts
    )
    plans = [one.plan for one in planned]
    if not plans:
        raise MissingInputError(
            f"{inventory.root}: no iteration holds a file of a rank, and nothing states what they held"
        )
    if found and parts.unread(planned):
        return Planned(plan=plans[0], compared=planned[0].compared, parts=planned)
    chosen = parts.options.step is not None
    documents, warnings = plan_documents(inventory, tried.step, chosen=chosen) if found else ((), [])
    first = plans[0]
    actions = sorted((action for plan in plans for action in plan.actions), key=lambda action: action.rank)
    notes = dict.fromkeys([*inventory.notes, *(note for plan in plans for note in plan.notes)])
    plan = replace(
        first,
        world_size=max(plan.world_size for plan in plans),
        step=tried.step if found else None,
        actions=tuple(actions) if found else (),
        group_files=(),
        strategy_files=(),
        set_aside=tuple(one for plan in plans for one in plan.set_aside) if found else (),
        ranks=join_ranks(tried),
        rejected_steps=rejected,
        notes=tuple(sorted(notes, key=lambda note: (note.path, note.reason))),
        run_id=next((plan.run_id for plan in plans if plan.run_id is not None), None),
        disagreements=tuple(dict.fromkeys(text for plan in plans for text in plan.disagreements)),
        partials=() if found else tuple(action for plan in plans for action in plan.partials),
        considered=tried.step,
        warnings=(*_other_runs(rejected), *dict.fromkeys(text for plan in plans for text in plan.warnings), *warnings),
        documents=documents,
    )
    return Planned(plan=plan, compared=planned[0].compared, parts=planned)


def _other_runs(rejected: Sequence[RejectedStep]) -> list[str]:
    return [f"step {one.step} is passed over: {one.reason}" for one in rejected if one.another_run]


def join_ranks(tried: TriedParts) -> tuple[RankVerdict, ...]:
    """Return one verdict for each rank: that of its worst part."""
    by_kind = {kind: one.shown.ranks for kind, _, one in tried.parts}
    world = max(map(len, by_kind.values()), default=0)
    joined = []
    for rank in range(world):
        parts = tuple(_part_of(kind, ranks, rank) for kind, ranks in by_kind.items())
        joined.append(join_verdicts(rank, parts))
    return tuple(joined)


def _part_of(kind: WeightKind | None, ranks: Sequence[RankVerdict], rank: int) -> RankVerdict:
    if rank < len(ranks):
        return replace(ranks[rank], part=kind)
    why = f"the files of this part are of {len(ranks)} ranks"
    return RankVerdict(rank=rank, state="missing", verdict="unrecoverable", reason=why, part=kind)


def join_verdicts(rank: int, parts: tuple[RankVerdict, ...]) -> RankVerdict:
    """Return the verdict on a rank from those on its files: that of the worst."""
    worst = min(parts, key=lambda one: (_VERDICTS.index(one.verdict), _STATES.index(one.state)))
    known = [one.bytes for one in parts if one.bytes is not None]
    reasons = [f"{one.part}: {one.reason}" for one in parts if one.verdict == worst.verdict]
    return replace(
        worst,
        rank=rank,
        state=min((one.state for one in parts), key=_STATES.index),
        reason="; ".join(reasons),
        missing=tuple(region for one in parts for region in one.missing),
        bytes=sum(known) if known else None,
        part=None,
        parts=parts,
    )
