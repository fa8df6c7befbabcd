"""The step after reading a report: one for each answer that a plan can give."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ms_recover.model.plan import Plan
from ms_recover.model.report import Report
from ms_recover.model.texts import many, name_ranks
from ms_recover.model.verdicts import Answer

Look = Literal["well", "work", "doubt", "bad"]

LOOKS: Mapping[Answer, Look] = {
    "COMPLETE": "well",
    "RECOVERABLE": "work",
    "BLOCKED": "bad",
    "UNCERTAIN": "doubt",
    "UNDECIDED": "bad",
    "UNHEALTHY": "bad",
    "PERMISSION DENIED": "bad",
    "UNRECOVERABLE": "bad",
    "REFUSED": "bad",
}
"""How a headline looks."""


_MOST_REASONS = 8
"""Of what is in the way, in one report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What to do next.

    Parameters
    ----------
    title : str
        In a few words.
    command : str
        The command that carries the plan out; empty where none does.
    lines : tuple of (str, str)
        Sentences, each with the command that it is about, or an empty text.
    """

    title: str
    command: str = ""
    lines: tuple[tuple[str, str], ...] = ()


def next_step(report: Report, answer: Answer) -> NextStep:
    """Return what to do after this answer."""
    return _STEPS[answer](report)


def _plan_again(plan: Plan, *words: str) -> str:
    return shlex.join(["recover-ckpt", "plan", plan.root, *words])


def _complete(report: Report) -> NextStep:
    if report.next_command:
        line = ("Every rank has its slice; apply writes the small files that are listed under Plan.", "")
        return NextStep(title="apply the plan", command=report.next_command, lines=(line,))
    return NextStep(title="start the training", lines=(("It resumes from this step. Nothing has to be written.", ""),))


def _recoverable(report: Report) -> NextStep:
    doubt = ("If the job has more ranks than are known, say how many first:", _world_size(report.plan))
    lines = (doubt,) if report.plan.world_size_guessed else ()
    return NextStep(title="apply the plan", command=report.next_command, lines=lines)


def _blocked(report: Report) -> NextStep:
    reasons = dict.fromkeys(one.reason for one in report.plan.obstacles)
    lines = [(f"{reason[:1].upper()}{reason[1:]}", "") for reason in list(reasons)[:_MOST_REASONS]]
    lines += [(f"And {len(reasons) - _MOST_REASONS} more.", "")] if len(reasons) > _MOST_REASONS else []
    return NextStep(title="clear the way", lines=(*lines, ("Then plan again:", _plan_again(report.plan))))


def _uncertain(report: Report) -> NextStep:
    plan = report.plan
    known = f"Nothing is lost of the {many(plan.world_size, 'rank')} that are known, but nothing states how many"
    if plan.world_size == 1:
        known = "Nothing is lost of the 1 rank that is known, but nothing states how many"
    lines = [(f"{known} the job has. Say it:", _world_size(plan))]
    done = ("If these are all, write the small files that are listed under Plan:", report.next_command)
    lines.append(done if report.next_command else ("If these are all, start the training.", ""))
    return NextStep(title="say --world-size N", lines=tuple(lines))


def _world_size(plan: Plan) -> str:
    return _plan_again(plan, "--world-size", "N")


def _undecided(report: Report) -> NextStep:
    plan = report.plan
    ranks = [one.rank for one in plan.ranks if one.verdict == "unrecoverable"]
    which = f"of {name_ranks(ranks)} " if ranks else ""
    lines = [(f"Declare the rank {which}lost that you distrust:", _plan_again(plan, "--lost", "RANK"))]
    older = next((str(one.step) for one in report.steps if one.recoverable and one.step != plan.considered), None)
    lines += [("Or go back to an older step:", _plan_again(plan, "--step", older))] if older is not None else []
    return NextStep(title="say who is right", lines=tuple(lines))


def _unhealthy(report: Report) -> NextStep:
    plan = report.plan
    return NextStep(
        title="choose a step",
        lines=(
            ("Every rank can have its slice, but training found these steps unhealthy. Take one all the same:", ""),
            ("", _plan_again(plan, "--step", str(plan.considered))),
        ),
    )


def _denied(report: Report) -> NextStep:
    ranks = [one.rank for one in report.plan.ranks if one.state == "unreadable"]
    text = f"Run the command as the owner of the slices of {name_ranks(ranks)}, or let this user read them."
    return NextStep(title="get permission", lines=((text, ""),))


def _unrecoverable(report: Report) -> NextStep:
    plan = report.plan
    lines = [(hint, "") for hint in plan.hints]
    lines.append(("Bring a lost host or disk back, or plan with a backup:", _plan_again(plan, "--from", "URL")))
    if plan.partials:
        partial = shlex.join(["recover-ckpt", "apply", plan.root, "--partial"])
        lines.append(("The parameters that survive can be written beside the slices:", partial))
    return NextStep(title="find a source", lines=tuple(lines))


def _refused(report: Report) -> NextStep:
    plan = report.plan
    newest = [one for one in plan.not_newest if one.ranks][:1]
    lost = f" of {name_ranks(newest[0].ranks)}" if newest else ""
    back = f"step {plan.step}" if plan.step is not None else "an older step"
    return NextStep(
        title="bring the newest step back",
        lines=(
            (f"Bring the slices{lost} back, or a backup of them:", _plan_again(plan, "--from", "URL")),
            (f"To go back to {back} instead, leave --require-newest out.", ""),
        ),
    )


_STEPS: Mapping[Answer, Callable[[Report], NextStep]] = {
    "COMPLETE": _complete,
    "RECOVERABLE": _recoverable,
    "BLOCKED": _blocked,
    "UNCERTAIN": _uncertain,
    "UNDECIDED": _undecided,
    "UNHEALTHY": _unhealthy,
    "PERMISSION DENIED": _denied,
    "UNRECOVERABLE": _unrecoverable,
    "REFUSED": _refused,
}
