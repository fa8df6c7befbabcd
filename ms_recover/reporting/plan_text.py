"""A plan as text for an operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ms_recover.file_names import SUPERSEDED_SUFFIX
from ms_recover.model.compose import ComposeAction
from ms_recover.model.plan import Plan, RankVerdict, RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some, many, name_ranks, shorten
from ms_recover.model.topology import Topology
from ms_recover.reporting.pieces import missing_lines
from ms_recover.reporting.rank_map import rank_map, states_of_plan
from ms_recover.reporting.tables import first_rows, note_lines, page, section, size_text, table_lines

_MOST_ROWS = 32
"""Ranks up to which every rank has a row, also the ones that keep their slice."""
_MOST_STEPS = 8


def plan_text(
    plan: Plan,
    width: int | None,
    *,
    next_command: str = "",
    refused: bool = False,
    topology: Topology | None = None,
    ascii_only: bool = False,
) -> str:
    """Return a plan: the answer first, then warnings, the picture, each rank, and why steps were rejected.

    Parameters
    ----------
    next_command : str
        The command that carries the plan out.
    refused : bool
        The plan goes back behind a newer step, which ``--require-newest`` forbids.
    topology, ascii_only
        As for `ms_recover.reporting.rank_map.rank_map`.
    """
    lines = [_world(plan), *headline_lines(plan, refused)]
    if plan.cumulative_step is not None:
        lines.append(f"step {plan.step} is step {plan.cumulative_step} of the training")
    lines += [f"WARNING: {warning}" for warning in plan.warnings]
    lines += [f"HINT: {hint}" for hint in plan.hints]
    title = f"Ranks at step {plan.step or plan.considered}"
    picture = rank_map(states_of_plan(plan), topology, width, title=title, ascii_only=ascii_only)
    lines += ["", *picture.split("\n"), "", *_rank_table(plan, width), *missing_lines(plan, width)]
    lines += outvoted_lines(((one.rank, one.target, one.set_aside) for one in plan.actions), width)
    lines += _given_up_lines(plan, width)
    if plan.group_files:
        written = ", ".join(write.target for write in plan.group_files)
        lines += ["", f"Lost rank lists that will be written again: {written}"]
    if plan.strategy_files:
        written = list_some((write.target for write in plan.strategy_files), _MOST_ROWS)
        lines += ["", f"Lost strategy files that will be written again: {written}"]
    lines += _document_lines(plan, width)
    metas = [(str(write.rank), write.target, write.reason) for write in plan.meta_files[:_MOST_ROWS]]
    title = f"{len(plan.meta_files)} meta.json to be written, so that MindFormers resumes from step {plan.step}"
    lines += section(title, ("rank", "file", "why"), metas, width)
    other_runs = by_reason((str(one.step), one.reason) for one in plan.rejected_steps if one.another_run)
    lines += given_up_lines(plan.given_up, plan.step, width)
    lines += section("Steps of other runs only", ("step", "why"), other_runs, width)
    lines += note_lines(plan.notes, width)
    if plan.changes_anything and next_command and not refused and not plan.obstacles:
        lines += ["", f"Next: {next_command}"]
    return page(lines)


def outvoted_lines(slices: Iterable[tuple[int, str, str | None]], width: int | None) -> list[str]:
    """Return the slices that another one replaces, by rank and path, and where each is kept; None for no place."""
    rows = [(str(rank), path, kept) for rank, path, kept in slices if kept is not None]
    title = "Replaced slices that nothing proves damaged, and where they are kept"
    return section(title, ("rank", "slice", "kept as"), first_rows(rows, _MOST_ROWS, 1), width)


def _given_up_lines(plan: Plan, width: int | None) -> list[str]:
    rows = [(str(one.rank), one.path, one.reason) for one in plan.set_aside]
    title = f"Slices that are given up, to be renamed with their manifests and states ({SUPERSEDED_SUFFIX} is appended)"
    return section(title, ("rank", "slice", "why"), first_rows(rows, _MOST_ROWS, 1), width)


def going_back(given_up: Sequence[RejectedStep], step: Step) -> str:
    """Return the clause of a headline about newer steps of the run that were given up, empty when there is none.

    It gives the first clause of the newest one's reason; `given_up_lines` has all reasons.
    """
    if not given_up:
        return ""
    newest = given_up[0]
    why, cut, _ = newest.reason.partition("; ")
    named = name_ranks(newest.ranks)
    if len(newest.ranks) > 1:
        why = f"no source for {why}" if why.startswith(f"{named}: ") else f"no source for {named}; {why}"
    more = f" and {len(given_up) - 1} more" if len(given_up) > 1 else ""
    return f"; going back from step {newest.step} ({why}{' ...' if cut else ''}){more} to step {step}"


def given_up_lines(given_up: Sequence[RejectedStep], step: Step | None, width: int | None) -> list[str]:
    """Return the newer steps of the run that were given up, each reason once."""
    title = "Newer steps that were given up" if step else "Steps that were rejected"
    return section(title, ("step", "why"), by_reason((str(one.step), one.reason) for one in given_up), width)


def by_reason(reasons: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each reason once, shortened, with what it is about; in the order of the first of each."""
    about: dict[str, list[str]] = {}
    for name, reason in reasons:
        about.setdefault(shorten(reason), []).append(name)
    return [(list_some(names, _MOST_STEPS), reason) for reason, names in about.items()]


def _world(plan: Plan) -> str:
    if plan.world_size_guessed:
        return f"{plan.root}: at least {many(plan.world_size, 'rank')}, guessed by {plan.world_size_from}"
    return f"{plan.root}: {many(plan.world_size, 'rank')}, {_by(plan)}"


def _by(plan: Plan) -> str:
    return plan.world_size_from if plan.world_size_from == "as given" else f"by {plan.world_size_from}"


def headline_lines(plan: Plan, refused: bool = False) -> list[str]:
    """Return the answer: its first line begins with that of the plan, in capitals."""
    bad = [rank for rank in plan.ranks if rank.verdict == "unrecoverable"]
    back = going_back(plan.given_up, plan.step) if plan.step is not None else ""
    if refused:
        undecided = [f"; step {one.step} may be newer" for one in plan.not_newest[:1] if one.may_be_newer]
        return [f"REFUSED by --require-newest: nothing is done{back or ''.join(undecided)}"]
    match plan.answer:
        case "PERMISSION DENIED":
            return _unreadable_lines(plan, bad)
        case "UNDECIDED":
            return [
                "UNDECIDED: ranks that should hold the same slice hold different contents, and no evidence settles it",
                *(f"  {text}" for text in plan.disagreements),
                "Declare the rank you distrust with --lost, or choose an older step with --step",
            ]
        case "UNHEALTHY":
            steps = ", ".join(str(one.step) for one in plan.given_up)
            return [
                f"UNHEALTHY: every step that could be recovered is {plan.given_up[0].reason}: {steps}",
                f"Name one to take it all the same, for example: --step {plan.considered}",
            ]
        case "UNRECOVERABLE":
            no_source = f"there is no source for {name_ranks([one.rank for one in bad])}{_guess(plan)}"
            lines = [f"UNRECOVERABLE: no step is complete for every rank; at the newest {no_source}"]
            if plan.partials:
                lines.append(
                    "The surviving parameters of these slices can be written beside them with: apply --partial"
                )
            return lines
        case "BLOCKED":
            return [f"{_blocked(plan)}{back}", *_obstacle_lines(plan)]
        case _:
            return [_work_line(plan) + back]


def _work_line(plan: Plan) -> str:
    """Return the answer where there is a step to go to: what each rank keeps, and what there is to do."""
    which = "rank that is" if plan.world_size == 1 else "ranks that are"
    known = f" for the {plan.world_size} {which} known" if plan.world_size_guessed else ""
    if plan.actions:
        count = len(plan.actions)
        work = f"{many(count, 'slice')} to {_how(plan)} ({size_text(plan.bytes_to_copy)})"
        kept = f"{sum(len(rank.files) for rank in plan.ranks) - count} kept"
        return f"RECOVERABLE at step {plan.step}{known}: {work}{_and_others(plan)}, {kept}{_guess(plan)}"
    small = _small_files(plan)
    if plan.world_size_guessed:
        return f"UNCERTAIN at step {plan.step}: COMPLETE{known}{f', {small}' if small else ''}{_guess(plan)}"
    known = f"for {many(plan.world_size, 'rank')} ({_by(plan)})"
    return f"COMPLETE at step {plan.step} {known}: every rank has its slice, {small or 'nothing to do'}"


def _blocked(plan: Plan) -> str:
    """Return the verdict on a plan whose files cannot all be written."""
    paths = {action.target for action in plan.actions}
    slices = sum(one.path in paths for one in plan.obstacles)
    others = len(plan.obstacles) - slices
    held = f"{slices} of {len(paths)} slices" if slices else f"{others} file{'s' * (others > 1)} beside the slices"
    return (
        f"BLOCKED at step {plan.step}: every rank has its slice or a source{_guess(plan)}, and {held} cannot be "
        "written where they belong, for the reasons below"
    )


def _obstacle_lines(plan: Plan) -> list[str]:
    """Return the causes, each once with the ranks that it concerns."""
    ranks: dict[str, list[int]] = {}
    for one in plan.obstacles:
        held = ranks.setdefault(one.reason, [])
        if one.rank is not None and one.rank not in held:
            held.append(one.rank)
    lines = [f"  {name_ranks(held)}: {reason}" if held else f"  {reason}" for reason, held in ranks.items()]
    more = [f"  and {len(lines) - _MOST_ROWS} more"] * (len(lines) > _MOST_ROWS)
    return [*lines[:_MOST_ROWS], *more]


def _small_files(plan: Plan) -> str:
    lists, metas = len(plan.group_files), len(plan.meta_files)
    documents = len(plan.documents)
    texts = [f"{lists} rank list{'s' * (lists > 1)}"] * (lists > 0) + [f"{metas} meta.json"] * (metas > 0)
    texts += [f"{documents} document{'s' * (documents > 1)}"] * (documents > 0)
    return ", ".join([f"{' and '.join(texts)} to write"] * bool(texts) + _given_up(plan))


def _and_others(plan: Plan) -> str:
    count, kept = len(plan.documents), sum(action.set_aside is not None for action in plan.actions)
    texts = [f"{count} document{'s' * (count > 1)} to write"] * (count > 0)
    texts += [f"{kept} that {'are' if kept > 1 else 'is'} replaced set aside"] * (kept > 0)
    return "".join(f", {text}" for text in [*texts, *_given_up(plan)])


def _given_up(plan: Plan) -> list[str]:
    count = len(plan.set_aside)
    return [f"{count} slice{'s' * (count > 1)} given up to set aside"] * (count > 0)


def _document_lines(plan: Plan, width: int | None) -> list[str]:
    rows = []
    for write in plan.documents:
        gaps = [f"not known: {list_some(write.unknown)}"] if write.unknown else []
        gaps += [f"not proven for this step: {list_some(write.assumed)}"] if write.assumed else []
        rows.append((write.target, write.reason, "; ".join([*write.sources, *gaps])))
    title = "Documents of MindFormers that will be written, after everything else"
    return section(title, ("document", "why", "contents"), rows, width)


def _guess(plan: Plan) -> str:
    if not plan.world_size_guessed:
        return ""
    return f"; the world size is a guess (by {plan.world_size_from}): give --world-size"


def _unreadable_lines(plan: Plan, bad: Sequence[RankVerdict]) -> list[str]:
    denied = [rank for rank in bad if rank.state == "unreadable"]
    others = [rank.rank for rank in bad if rank.state != "unreadable"]
    ranks, slices = name_ranks([rank.rank for rank in denied]), "slice" if len(denied) == 1 else "slices"
    lines = [f"PERMISSION DENIED at step {plan.considered}: the {slices} of {ranks} cannot be read; no other source"]
    lines += [
        f"  rank {rank.rank}: {f'{plan.root}/{rank.path}: ' if rank.path else ''}{rank.reason.partition('; ')[0]}"
        for rank in denied[:_MOST_ROWS]
    ]
    if len(denied) > _MOST_ROWS:
        lines.append(f"  and {len(denied) - _MOST_ROWS} more")
    if others:
        lines.append(f"No source is known for {name_ranks(others)} either")
    return [*lines, "Run the command as the owner of these files, or let the user named above read them"]


def _rank_table(plan: Plan, width: int | None) -> list[str]:
    shown: Iterable[RankVerdict] = plan.ranks
    if len(plan.ranks) > _MOST_ROWS:
        shown = [rank for rank in plan.ranks if rank.verdict != "keep"]
    rows = [
        (str(rank.rank), one.state, one.verdict, _slice(one), one.evidence or "", why_text(one))
        for rank in shown
        for one in _files(rank)
    ]
    lines = table_lines(("rank", "state", "verdict", "slice", "evidence", "why"), rows, width)
    kept = sum(len(plan.ranks) > _MOST_ROWS and rank.verdict == "keep" for rank in plan.ranks)
    rest = "1 rank that keeps its" if kept == 1 else f"{kept:,} ranks that keep their"
    return [*lines, f"and {rest} sound slice"] if kept else lines


def why_text(one: RankVerdict) -> str:
    """Return the reason of a verdict for a row that has the path of the slice in another cell."""
    why = one.reason.removeprefix(f"{one.path}: ")
    return shorten(f"{one.kind}: {why}" if one.kind else why)


def _files(rank: RankVerdict) -> tuple[RankVerdict, ...]:
    """Return the verdicts by file, those of a rank that keeps all of them as one."""
    if not rank.by_kind or any(part.verdict != "keep" for part in rank.by_kind):
        return rank.files
    paths = " and ".join(part.path or "" for part in rank.by_kind)
    reasons = dict.fromkeys(part.reason for part in rank.by_kind)
    return (replace(rank, path=paths, reason=next(iter(reasons)) if len(reasons) == 1 else rank.reason),)


def _how(plan: Plan) -> str:
    composed = sum(isinstance(action, ComposeAction) for action in plan.actions)
    return "put together" if composed == len(plan.actions) else "recover" if composed else "copy"


def _slice(rank: RankVerdict) -> str:
    if rank.verdict == "compose":
        return f"pieces -> {rank.path}"
    return f"{rank.source} -> {rank.path}" if rank.source else rank.path or ""
