"""Inventories, plans and outcomes as text for an operator."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import Inventory, Note
from ms_recover.model.outcome import Outcome
from ms_recover.model.plan import Plan, RankVerdict
from ms_recover.model.steps import Step
from ms_recover.model.verification import Verification
from ms_recover.reporting.pieces import missing_lines
from ms_recover.reporting.tables import ranks_text, render_table, size_text

_SHOW_ALL_RANKS = 32


def plan_text(plan: Plan, width: int | None, *, next_command: str = "") -> str:
    """Return a plan: the answer first, then each rank, then why newer steps were rejected.

    Parameters
    ----------
    plan : Plan
        The plan.
    width : int or None
        Columns of the terminal, None for a pipe.
    next_command : str
        What to type to carry it out.
    """
    size = f"{plan.world_size} ranks, by {plan.world_size_from}"
    if plan.world_size_from == "as given":
        size = f"{plan.world_size} ranks, as given"
    lines = [f"{plan.root}: {size}"]
    bad = [rank for rank in plan.ranks if rank.verdict == "unrecoverable"]
    if plan.disagreements:
        lines.append(
            "UNDECIDED: ranks that should hold the same slice hold different contents, and nothing says who is right"
        )
        lines += [f"  {text}" for text in plan.disagreements]
        lines.append("Declare the one you distrust with --lost, or choose an older step with --step")
    elif plan.step is None:
        lines.append(
            "UNRECOVERABLE: no step can be had by every rank; at the newest nobody can replace rank "
            f"{ranks_text(rank.rank for rank in bad)}"
        )
        if plan.partials:
            lines.append("What survives of these slices can be written beside them with: apply --partial")
    elif plan.actions:
        count = len(plan.actions)
        lines.append(
            f"RECOVERABLE at step {plan.step}: {count} slice{'s' * (count > 1)} to {_how(plan)} "
            f"({size_text(plan.bytes_to_copy)}), {len(plan.ranks) - count} kept"
        )
    else:
        lines.append(f"COMPLETE at step {plan.step}: every rank has its slice, nothing to do")
    lines += ["", _rank_table(plan, width)]
    lines += missing_lines(plan, width)
    if plan.group_files:
        written = ", ".join(write.target for write in plan.group_files)
        lines += ["", f"Lost rank lists that will be written again: {written}"]
    if plan.rejected_steps:
        rows = [(str(rejected.step), rejected.reason) for rejected in plan.rejected_steps]
        title = "Newer steps that were rejected" if plan.step else "Steps that were rejected"
        lines += ["", f"{title}:", render_table(("step", "why"), rows, width)]
    lines += _notes(plan.notes, width)
    if plan.actions and next_command:
        lines += ["", f"Next: {next_command}"]
    return "\n".join(lines)


def _rank_table(plan: Plan, width: int | None) -> str:
    shown: Iterable[RankVerdict] = plan.ranks
    if len(plan.ranks) > _SHOW_ALL_RANKS:
        shown = [rank for rank in plan.ranks if rank.verdict != "keep"]
    rows = [
        (
            str(rank.rank),
            rank.state,
            rank.verdict,
            _slice(rank),
            rank.evidence or "",
            rank.reason,
        )
        for rank in shown
    ]
    table = render_table(("rank", "state", "verdict", "slice", "evidence", "why"), rows, width, right=("rank",))
    kept = len(plan.ranks) - len(rows)
    return f"{table}\nand {kept} ranks that keep their sound slice" if kept else table


def _how(plan: Plan) -> str:
    composed = sum(isinstance(action, ComposeAction) for action in plan.actions)
    return "put together" if composed == len(plan.actions) else "recover" if composed else "copy"


def _slice(rank: RankVerdict) -> str:
    if rank.verdict == "compose":
        return f"pieces -> {rank.path}"
    return f"{rank.source} -> {rank.path}" if rank.source else rank.path or ""


def inventory_text(inventory: Inventory, width: int | None) -> str:
    """Return what a scan found: one line a step, then what is damaged, then rank lists and notes."""
    by_step: dict[Step, list[int]] = defaultdict(list)
    damaged: dict[Step, list[int]] = defaultdict(list)
    size: dict[Step, int] = defaultdict(int)
    for file in inventory.slices:
        (damaged if file.problem else by_step)[file.step].append(file.rank)
        size[file.step] += file.size
    lines = [f"{inventory.root}: files of {len(inventory.ranks)} ranks ({ranks_text(inventory.ranks)})", ""]
    rows = [
        (
            str(step),
            str(len(set(by_step[step]))),
            ranks_text(set(damaged[step])),
            _absent(inventory, step),
            size_text(size[step]),
        )
        for step in inventory.steps
    ]
    lines.append(
        render_table(("step", "sound", "damaged", "missing", "size"), rows, width, right=("sound", "size"))
        if rows
        else "no slice"
    )
    bad = [(str(file.rank), file.path, file.problem) for file in inventory.slices if file.problem]
    if bad:
        lines += ["", "Damaged:", render_table(("rank", "slice", "why"), bad, width, right=("rank",))]
    groups = [
        (
            "" if file.rank is None else str(file.rank),
            file.path,
            ranks_text(file.info.restore_ranks) if file.info else file.problem or "",
        )
        for file in inventory.group_files
    ]
    if len(groups) > _SHOW_ALL_RANKS:
        lines += ["", f"{len(groups)} rank lists, {sum(file.info is None for file in inventory.group_files)} malformed"]
        groups = [row for row, file in zip(groups, inventory.group_files, strict=True) if file.info is None]
    if groups:
        lines += ["", "Who holds the same slice:"]
        lines.append(render_table(("rank", "rank list", "same slice on ranks"), groups, width, right=("rank",)))
    elif not inventory.group_files:
        lines += ["", "No group_info.pb: who holds the same slice is not known; name the files with --group-info"]
    return "\n".join(lines + _notes(inventory.notes, width))


def _absent(inventory: Inventory, step: Step) -> str:
    have = {file.rank for file in inventory.slices if file.step == step}
    return ranks_text(rank for rank in inventory.ranks if rank not in have)


def outcome_text(outcome: Outcome, width: int | None) -> str:
    """Return what applying a plan did: the answer first."""
    failed = sum(result.status == "failed" for result in outcome.results)
    copied = [result for result in outcome.results if result.status in ("copied", "composed")]
    read_back = ", each read back and compared" if outcome.verified and copied else ""
    if failed or outcome.errors:
        head = (
            f"FAILED: {failed} of {len(outcome.results)} slices could not be recovered, the others are whole; "
            "mend what is named below and run the command again"
        )
    elif outcome.partial:
        head = (
            f"PARTIAL: what survives of {len(outcome.results)} slices of step {outcome.step} is written beside them; "
            "none of them is whole"
        )
    elif not copied:
        head = f"DONE: every rank already had its slice of step {outcome.step}"
    else:
        total = size_text(sum(result.bytes for result in copied))
        how = " and ".join(f"{count} {status}" for status, count in Counter(one.status for one in copied).items())
        head = f"DONE: every rank has its slice of step {outcome.step}; {how} ({total}){read_back}"
    lines = [f"{outcome.root}", head]
    rows = [
        (str(result.rank), result.status, f"{result.source} -> {result.target}", result.error or result.digest or "")
        for result in outcome.results
    ]
    dropped = [(str(result.rank), text) for result in outcome.results for text in result.dropped]
    if rows:
        lines += ["", render_table(("rank", "status", "slice", "digest or error"), rows, width, right=("rank",))]
    if dropped:
        lines += ["", "Sources that proved damaged and were passed over; run the command again to repair them:"]
        lines.append(render_table(("for rank", "source"), dropped, width, right=("for rank",)))
    if outcome.group_files:
        lines += ["", f"Rank lists written again: {', '.join(outcome.group_files)}"]
    lines += [f"error: {error}" for error in outcome.errors]
    return "\n".join(lines)


def verification_text(found: Verification, width: int | None) -> str:
    """Return what verifying found: the answer first, then what is wrong, then a line for each step."""
    if found.wrong:
        head = f"WRONG: {len(found.wrong)} of {len(found.checks)} slices are not what they should be"
    else:
        head = f"SOUND: all {len(found.checks)} slices"
    lines = [found.root, head]
    if found.wrong:
        bad = [(str(check.rank), check.status, check.path, check.reason) for check in found.wrong]
        lines += ["", render_table(("rank", "status", "slice", "why"), bad, width, right=("rank",))]
    if found.disagreements:
        lines += ["", "Ranks that should hold the same slice hold different contents, and nothing says who is right:"]
        lines += [f"  {text}" for text in found.disagreements]
    absent = dict(found.missing)
    rows = []
    for step in sorted({check.step for check in found.checks}, reverse=True):
        checks = [check for check in found.checks if check.step == step]
        by = Counter(check.evidence for check in checks if check.status == "sound")
        rests = ", ".join(
            f"{by[evidence]} by {evidence}" for evidence in ("manifest", "vote", "structure") if by[evidence]
        )
        wrong = ranks_text({check.rank for check in checks if check.status != "sound"})
        rows.append((str(step), rests, wrong, ranks_text(absent.get(step, ()))))
    lines += ["", render_table(("step", "sound", "wrong", "missing"), rows, width)]
    return "\n".join(lines)


def _notes(notes: tuple[Note, ...], width: int | None) -> list[str]:
    if not notes:
        return []
    rows = [(note.path, note.reason) for note in notes]
    return ["", "Seen and not used, or worth a look:", render_table(("path", "why"), rows, width)]
