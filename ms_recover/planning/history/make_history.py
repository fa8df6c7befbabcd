"""The history of a tree from its facts: every step, the last clean one, and what became of parameters."""

from __future__ import annotations

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
    clean = next((one.step for one in reversed(history.steps) if one.state == "clean"), None)
    if clean is not None:
        return replace(history, clean=clean, clean_reason="")
    if not history.steps:
        why = "no step of the run has a slice or manifest"
    elif not any(one.ranks for one in history.steps):
        why = "no slice has a manifest, so that nothing states what it held when it was saved"
    elif any(one.state == "disagreed" for one in history.steps):
        why = "at no step did all ranks that hold the same agree"
    else:
        why = "no step has manifests of all ranks that hold the same, or no two ranks do"
    return replace(history, clean=None, clean_reason=why)


def why_not_clean(history: History, step: Step) -> str | None:
    """Return why a step is passed over where only clean ones are wanted; None for a clean one."""
    found = next((one for one in history.steps if one.step == step), None)
    if found is None:
        return "not clean: no manifest of the run describes it"
    if found.state == "clean":
        return None
    words = "not clean" if found.state == "disagreed" else "not known to be clean"
    since = next((one.first for one in history.disagreements if one.parameter in found.parameters), None)
    first = f", first at step {since}" if since is not None and since != step else ""
    odd = sorted({r for one in history.disagreements if one.parameter in found.parameters for r in one.outvoted})
    lost = f"; outvoted: rank {list_some(odd)}" if odd and found.state == "disagreed" else ""
    return f"{words}: {found.reason}{first}{lost}"


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
    by_step = grouped((step for one in parts for step in one.steps), lambda step: step.step)
    first = parts[0]
    steps = tuple(_join_steps(by_step[step]) for step in sorted(by_step))
    disagreements = [found for one in parts for found in one.disagreements]
    own = [found for one in parts for found in one.own]
    stopped = [found for one in parts for found in one.stopped]
    places = {one.step: place for place, one in enumerate(steps)}
    changing = {found.parameter for found in stopped}
    return with_clean(
        replace(
            first,
            root=inventory.root,
            world_size=max(one.world_size for one in parts),
            run_id=next((one.run_id for one in parts if one.run_id), None),
            steps=steps,
            runs=_join_runs([run for one in parts for run in one.runs]),
            disagreements=tuple(sorted(disagreements, key=lambda one: (places[one.first], one.parameter))),
            own=tuple(sorted(own, key=lambda one: one.parameter)),
            stopped=tuple(sorted(stopped, key=lambda one: (places[one.since], one.parameter))),
            frozen=tuple(sorted({name for one in parts for name in one.frozen} - changing)),
            alone=tuple(sorted({rank for one in parts for rank in one.alone})),
            notes=tuple(dict.fromkeys(note for one in parts for note in one.notes)),
        )
    )


def _join_steps(steps: Sequence[HistoryStep]) -> HistoryStep:
    worst = max(steps, key=lambda one: _WORST.index(one.state))
    return replace(
        worst,
        ranks=max(one.ranks for one in steps),
        missing=tuple(sorted({rank for one in steps for rank in one.missing})),
        parameters=tuple(sorted({name for one in steps for name in one.parameters})),
        reason="; ".join(dict.fromkeys(one.reason for one in steps if one.reason)),
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
    member = next((one for one in members if (one.run_id, one.started) == run), None)
    steps = [one.file.step for one in facts.counted if one.manifest is not None and identity_of(one.manifest) == run]
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
    covered: dict[int, set[str]] = {}
    there = {rank for moment in moments for rank in moment.own}
    for one in shared:
        if len(there.intersection(one.ranks)) > 1:
            for rank in one.ranks:
                covered.setdefault(rank, set()).update(one.names)
    alone: set[int] = set()
    done: set[tuple[int, int]] = set()
    for moment in moments:
        for rank, witness in moment.own.items():
            key = rank, id(witness.listed)
            if key not in done:
                done.add(key)
                if not covered.get(rank, set()).issuperset(witness.listed.index):
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
    if any(moment.own for moment in moments) and not shared and facts.stages.layouts:
        notes.append("by the strategy files no two ranks here hold the same of any parameter: nothing can be compared")
    elif any(moment.own for moment in moments) and not shared:
        notes.append(
            "nothing states that two ranks hold the same: name rank lists (--group-info), strategy files (--strategy), "
            "or say it with --group or --axes"
        )
    return notes
