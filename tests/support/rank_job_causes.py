"""What may keep a random job of several ranks from going on exactly, and the verdict on what came of one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.program_causes import Cause
from tests.support.random_rank_jobs import RankJob

STATES = r"state|generator|callback|extra|rank-local|sample|draw"
OWN_SAMPLES = r"seed|sample|shuffl|state|generator|batch"
Kind = Literal["exact", "refused", "late", "warned", "silent", "split", "slow", "not judged"]
KINDS: tuple[Kind, ...] = ("exact", "refused", "late", "warned", "silent", "split", "slow", "not judged")
"""``late``: ended by MindSpore's own limit, where a rank waits for one that never comes, see `never_comes`."""
WRONG = ("silent", "split", "slow")


@dataclass(frozen=True)
class End:
    """How one rank of the last start ended."""

    kind: Literal["done", "refused", "failed", "died"]
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SeenRanks:
    """What came of a job."""

    ends: tuple[End, ...]
    """Of the ranks, in the last start."""
    differences: tuple[str | None, ...]
    """What is not as in the undisturbed training, by rank, over all starts."""
    warnings: tuple[str, ...]
    """All that was said at WARNING by any rank."""
    waited: float
    """Seconds from the end of a rank that failed to the last one's."""


@dataclass(frozen=True)
class RankVerdict:
    """The verdict on a job."""

    kind: Kind
    why: str
    undeserved: str = ""
    """The refusal of a job that nothing keeps from going on exactly."""


GONE = "another rank is gone"
"""What a rank says whose collective has come to its limit."""
LONGEST = 10.0
"""Seconds that a rank may take to end behind another one that has failed, on a machine that is busy."""


def verdict_of_ranks(job: RankJob, seen: SeenRanks) -> RankVerdict:
    """Return the verdict on a job."""
    causes = list(causes_of_ranks(job))
    kinds = {end.kind for end in seen.ends}
    texts = [end.text for end in seen.ends if end.text]
    named = [cause.name for cause in causes if any(cause.is_named(text) for text in (*texts, *seen.warnings))]
    marks = ", ".join(marks_of_ranks(job)) or "nothing out of the ordinary"
    if never_comes(job) and "done" not in kinds and any(GONE in text for text in texts):
        return RankVerdict("late", ", ".join(named))
    if seen.waited > LONGEST or any(GONE in text for text in texts):
        return RankVerdict("slow", f"{seen.waited:.0f} s: {marks}: {' | '.join(texts)}")
    if kinds == {"refused"}:
        refused = [cause.name for cause in causes if any(cause.is_named(text) for text in texts)]
        return RankVerdict("refused", ", ".join(refused) or "without a cause", "" if refused else " | ".join(texts))
    if len(kinds) > 1:
        ends = "; ".join(f"rank {rank} {end.kind}: {end.text[:160]}" for rank, end in enumerate(seen.ends))
        return RankVerdict("split", f"{marks}: {ends}")
    if kinds != {"done"}:
        return RankVerdict("silent", f"{', '.join(kinds)}: {marks}: {' | '.join(texts)}")
    if not any(seen.differences):
        return RankVerdict("exact", "")
    serious = [cause.name for cause in causes if cause.effect != "noted" and cause.name in named]
    if serious:
        return RankVerdict("warned", ", ".join(serious))
    return RankVerdict("silent", marks)


def never_comes(job: RankJob) -> bool:
    """Whether a rank of a loop saves where another does not: that one is in its step, and never calls the library.

    Nothing but time could show it, as docs/resume.md says. With ``Model`` the callbacks are compared.
    """
    return job.base.trainer == "loop" and job.argument in ("saver", "save_steps")


def causes_of_ranks(job: RankJob) -> Iterator[Cause]:
    """Yield what may keep the job from going on exactly."""
    base = job.base
    lost = job.lost != "none"
    if base.trainer == "loop" and base.noise != "none":
        yield Cause("noise in a loop", "stops", r"random|own code|generator")
    killed = any(kind == "file" for kind, *_ in job.crashes)
    if base.network == "dropout":
        yield Cause("dropout", "differs", r"dropout|random")
    if job.change in ("shard 0", "shards swapped"):
        yield Cause(job.change, "stops", r"shard")
    if job.change == "seed":
        yield Cause("seed", "stops", r"seed|sample")
    if lost or killed:
        if base.callback or base.noise != "none":
            yield Cause("own states", "differs", STATES)
        if base.shuffle == "by rank" or base.data == "own":
            yield Cause("own samples", "differs", OWN_SAMPLES)
        if base.network == "bank":
            yield Cause("bank", "stops", r"bank|rank-local")
        if base.network == "norm":
            yield Cause("statistics", "differs", r"moving_|statistics")
        if job.lost in ("state", "flipped state"):
            yield Cause(job.lost, "differs", STATES)
        if not base.saves_states:
            yield Cause("no states", "differs", STATES)
    if not base.saves_states:
        yield Cause("nothing proves samples", "differs", r"sample|seed|shuffl|state")
    if job.lost == "other experiment":
        yield Cause("other experiment", "differs", r"\brun\b|runs|experiment")
    if job.argument != "none":
        yield Cause(f"{job.argument} of one rank", "stops", _SAYS[job.argument])
    if job.base.trainer == "manifests" and job.change == "more epochs":
        yield Cause("more epochs", "noted", r"epoch")


_SAYS = {
    "run": r"\brun\b|argument",
    "variable": r"MS_RECOVER_RUN|\brun\b",
    "ckpt_file": r"ckpt_file|argument",
    "rank_local": r"rank_local|argument",
    "epochs": r"epochs|argument",
    "saver": r"saver|saves|callback|SliceCheckpoint|argument|does not call",
    "save_steps": r"save_steps|argument|step",
    "keep": r"keep|argument",
    "asynchronous": r"async|argument",
    "format": r"format|argument",
    "prefix": r"prefix|experiment|argument",
}


def marks_of_ranks(job: RankJob) -> list[str]:
    """Return what is out of the ordinary about a job."""
    base = job.base
    marks = [f"{base.ranks} ranks"] if base.ranks != 2 else []
    marks += [base.trainer] if base.trainer != "model" else []
    marks += [base.network] if base.network != "mlp" else []
    marks += ["seed by rank"] if base.shuffle == "by rank" else []
    marks += [f"noise of {base.noise}"] if base.noise != "none" else []
    marks += ["extra" if base.trainer == "loop" else "callback"] if base.callback else []
    marks += [f"lost {job.lost} by rank {job.lost_by}"] if job.lost != "none" else []
    marks += [f"{job.argument} of rank {job.argument_of}"] if job.argument != "none" else []
    marks += [f"change {job.change}"] if job.change != "none" else []
    marks += [f"crash {kind}" for kind, *_ in job.crashes if kind in ("file", "stop")]
    marks += ["chain"] if len(job.crashes) > 1 else []
    return marks


Found = Mapping[str, Any]


def summary_of_ranks(found: Sequence[Found]) -> list[str]:
    """Return a table of the verdicts with the jobs of each."""
    kinds = Counter(one["verdict"] for one in found)
    lines = [f"{len(found)} jobs: " + ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)]
    for kind in KINDS[1:]:
        lines += [f"{kind} {one['number']}: {one['why'][:400]}" for one in found if one["verdict"] == kind]
    return lines


def problems_of_ranks(found: Sequence[Found], before: Mapping[str, str] | None = None) -> list[str]:
    """Return what is not as it must be; `before` has the jobs that were exact, the digest of each by its number."""
    problems = []
    for one in found:
        if one["verdict"] in WRONG:
            problems.append(f"{one['verdict'].upper()}: {one['number']}: {one['why'][:300]}")
        if one["undeserved"]:
            problems.append(f"REFUSED WITHOUT A CAUSE: {one['number']}: {one['undeserved'][:300]}")
        if one["plain"] and one["verdict"] not in ("exact", "not judged"):
            problems.append(f"PLAIN AND NOT EXACT: {one['number']}: {one['verdict']}: {one['why'][:300]}")
        was = (before or {}).get(str(one["number"]))
        if was == one["digest"] and one["verdict"] not in ("exact", "not judged"):
            problems.append(f"NO LONGER EXACT: {one['number']}: {one['verdict']}: {one['why'][:300]}")
    return problems
