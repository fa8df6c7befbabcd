"""The history of a tree from its facts: every step, the last clean one, and what became of parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ms_recover.errors import UsageError
from ms_recover.model.grouped import grouped
from ms_recover.model.history import History, HistoryRun, HistoryStep
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.history.changes import find_changes
from ms_recover.planning.history.compare import compare_moments
from ms_recover.planning.history.shared import Shared, find_shared
from ms_recover.planning.history.witnesses import Moment, find_moments
from ms_recover.planning.tree.candidates import text_of_others_in
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lineage import RunRecord, find_run_records, identity_of
from ms_recover.planning.tree.tree_facts import TreeFacts

_WORST = ("clean", "uncompared", "disagreed")


def make_history(facts: Facts, tree: TreeFacts) -> History:
    """Return the history of the run that a plan would recover, of one part of a tree, by manifests alone."""
    moments = find_moments(facts, tree)
    shared, notes = find_shared(facts, moments)
    compared = compare_moments(moments, shared, facts.tolerance, facts.kind)
    changes = find_changes(moments)
    return with_clean(
        History(
            root=facts.inventory.root,
            world_size=facts.world.ranks,
            run_id=next((moment.run_id for moment in reversed(moments) if moment.run_id), None),
            steps=compared.steps,
            clean=None,
            clean_reason="",
            runs=_runs(facts),
            disagreements=compared.disagreements,
            own=compared.own,
            stopped=changes.stopped,
            frozen=changes.frozen,
            alone=_alone(moments, shared),
            notes=(*filter(None, [text_of_others_in(facts)]), *_missing(facts, moments, shared), *notes),
        )
    )


def make_tree_history(tree: TreeFacts) -> History:
    """Return the history of a tree, over all its parts."""
    found = [make_history(facts, tree) for facts in tree.every()]
    return join_histories(tree.inventory, found) if tree.inventory.iterations else found[0]


def with_clean(history: History) -> History:
    """Return a history with its last clean step, or the reason why there is none."""
    clean = next((entry.step for entry in reversed(history.steps) if entry.state == "clean"), None)
    if clean is not None:
        return replace(history, clean=clean, clean_reason="")
    if not history.steps:
        why = "no step of the run has a slice or manifest"
    elif not any(entry.ranks for entry in history.steps):
        why = "no slice has a manifest, so that nothing states what it held when it was saved"
    elif any(entry.state == "disagreed" for entry in history.steps):
        why = "at no step did all ranks that hold the same agree"
    else:
        why = "no step has manifests of all ranks that hold the same, or no two ranks do"
    return replace(history, clean=None, clean_reason=why)


def why_not_clean(history: History, step: Step) -> str | None:
    """Return why a step is passed over where only clean ones are wanted; None for a clean one."""
    entry = next((entry for entry in history.steps if entry.step == step), None)
    if entry is None:
        return "not clean: no manifest of the run describes it"
    if entry.state == "clean":
        return None
    words = "not clean" if entry.state == "disagreed" else "not known to be clean"
    differing = [disagreement for disagreement in history.disagreements if disagreement.parameter in entry.parameters]
    since = next((disagreement.first for disagreement in differing), None)
    first = f", first at step {since}" if since is not None and since != step else ""
    odd = sorted({rank for disagreement in differing for rank in disagreement.outvoted})
    lost = f"; outvoted: rank {list_some(odd)}" if odd and entry.state == "disagreed" else ""
    return f"{words}: {entry.reason}{first}{lost}"


def judge_clean(options: PlanOptions, make: Callable[[], History]) -> Callable[[Step], str | None]:
    """Return the function that says why a step is not clean; None for all steps unless the options ask for clean ones.

    Raises
    ------
    UsageError
        When the options name a step as well.
    """
    if not options.clean:
        return lambda step: None
    if options.step is not None:
        raise UsageError(
            f"--clean chooses the step itself: leave out --step {options.step}, or --clean to take that step as it is"
        )
    return partial(why_not_clean, make())


def join_histories(inventory: Inventory, parts: Sequence[History]) -> History:
    """Return the history of a tree of iterations from those of its parts: a step is as its worst part."""
    by_step = grouped((step for part in parts for step in part.steps), lambda step: step.step)
    first = parts[0]
    steps = tuple(_join_steps(by_step[step]) for step in sorted(by_step))
    disagreements = [disagreement for part in parts for disagreement in part.disagreements]
    own = [values for part in parts for values in part.own]
    stopped = [stop for part in parts for stop in part.stopped]
    places = {entry.step: place for place, entry in enumerate(steps)}
    # A parameter that stopped in one part was trained, also where another part never saw it change.
    changing = {stop.parameter for stop in stopped}
    return with_clean(
        replace(
            first,
            root=inventory.root,
            world_size=max(part.world_size for part in parts),
            run_id=next((part.run_id for part in parts if part.run_id), None),
            steps=steps,
            runs=_join_runs([run for part in parts for run in part.runs]),
            disagreements=tuple(
                sorted(disagreements, key=lambda disagreement: (places[disagreement.first], disagreement.parameter))
            ),
            own=tuple(sorted(own, key=lambda values: values.parameter)),
            stopped=tuple(sorted(stopped, key=lambda stop: (places[stop.since], stop.parameter))),
            frozen=tuple(sorted({name for part in parts for name in part.frozen} - changing)),
            alone=tuple(sorted({rank for part in parts for rank in part.alone})),
            notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        )
    )


def _join_steps(steps: Sequence[HistoryStep]) -> HistoryStep:
    worst = max(steps, key=lambda entry: _WORST.index(entry.state))
    return replace(
        worst,
        ranks=max(entry.ranks for entry in steps),
        missing=tuple(sorted({rank for entry in steps for rank in entry.missing})),
        parameters=tuple(sorted({name for entry in steps for name in entry.parameters})),
        reason="; ".join(dict.fromkeys(entry.reason for entry in steps if entry.reason)),
    )


def _join_runs(runs: Sequence[HistoryRun]) -> tuple[HistoryRun, ...]:
    """Return each run once, with the steps that any part has of it."""
    joined: dict[tuple[str, int | None], HistoryRun] = {}
    for run in runs:
        before = joined.get((run.run_id, run.started), run)
        joined[run.run_id, run.started] = replace(
            before,
            first=min((step for step in (before.first, run.first) if step is not None), default=None),
            last=max((step for step in (before.last, run.last) if step is not None), default=None),
        )
    return tuple(joined.values())


def _runs(facts: Facts) -> tuple[HistoryRun, ...]:
    records = find_run_records((one.file for one in facts.counted), facts.inventory.set_aside)
    return tuple(_run(facts, one) for one in records)


def _run(facts: Facts, record: RunRecord) -> HistoryRun:
    run = (record.run_id, record.started)
    members = facts.lineage.members if facts.lineage is not None else ()
    member = next((member for member in members if (member.run_id, member.started) == run), None)
    steps = [
        slice_.file.step
        for slice_ in facts.counted
        if slice_.manifest is not None and identity_of(slice_.manifest) == run
    ]
    return HistoryRun(
        run_id=record.run_id,
        started=record.started,
        resumed_from=record.resumed_from,
        first=min(steps, default=record.newest),
        last=record.newest,
        followed=facts.lineage is None or member is not None,
        until=member.until if member is not None else None,
    )


def _alone(moments: Sequence[Moment], shared: Sequence[Shared]) -> tuple[int, ...]:
    """Return the ranks with some parameter that no other rank with values shares."""
    covered: dict[int, set[str]] = defaultdict(set)
    for block in shared:
        for rank in block.ranks:
            covered[rank].update(block.names)
    alone: set[int] = set()
    done: set[tuple[int, int]] = set()
    for moment in moments:
        for rank, witness in moment.own.items():
            key = rank, id(witness.listed)
            if key not in done:
                done.add(key)
                if not covered[rank].issuperset(witness.listed.index):
                    alone.add(rank)
    return tuple(sorted(alone))


def _missing(facts: Facts, moments: Sequence[Moment], shared: Sequence[Shared]) -> list[str]:
    """Return what is not there to compare, and what would help."""
    notes = []
    bare = sorted({moment.step for moment in moments if moment.bare})
    if bare and not any(moment.witnesses for moment in moments):
        notes.append(
            "no slice has a manifest: train with SliceCheckpoint or SliceManifests, or write them with "
            f"recover-ckpt seal {facts.inventory.root}; what was saved without stays unproven"
        )
    elif bare:
        notes.append(f"steps with slices without manifests, which are no evidence here: {list_some(bare, 8)}")
    if any(moment.own for moment in moments) and not shared:
        notes.append(
            "by the strategy files no two ranks here hold the same of any parameter: nothing can be compared"
            if facts.stages.layouts
            else "nothing states that two ranks hold the same: name rank lists (--group-info), strategy files "
            "(--strategy), or say it with --group or --axes"
        )
    return notes
