"""What may keep a random job of several ranks from going on exactly, and the verdict on what came of one. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tests.support.program_causes import Cause
from tests.support.random_rank_jobs import RankJob

STATES = r"state file is lost|go on as those|those of rank|states? of rank|own state|not proven|rank-local"
OWN_SAMPLES = r"seed|sample|shuffl|state|generator|batch"
WITHOUT_STATES = re.compile(r"the state of random generators and callbacks is not restored")
"""Said at each resume from slices of MindSpore's callback, and so no word about what one rank lost."""
Kind = Literal["exact", "refused", "late", "warned", "silent", "split", "slow", "not judged"]
KINDS: tuple[Kind, ...] = ("exact", "refused", "late", "warned", "silent", "split", "slow", "not judged")
"""``late``: ended by MindSpore's own limit, where a rank waits for one that never comes, see `never_comes`."""
WRONG = ("silent", "split", "slow")


@dataclass(frozen=True)
class RankCause(Cause):
    """What may keep a job from going on exactly. Only one with the effect ``stops`` excuses a refusal."""

    ranks: tuple[int, ...] = ()
    """Whom it concerns: each says a word, or rank 0 names it; empty for all, where one word of rank 0 is enough."""
    unlike: re.Pattern[str] | None = None
    """A text that does not name it, although it has such words."""

    def is_named(self, text: str) -> bool:
        """Whether a message names it."""
        return super().is_named(text) and (self.unlike is None or not self.unlike.search(text))

    def is_warned_of(self, warnings: Sequence[Sequence[str]]) -> bool:
        """Whether every rank that it concerns has a word; `warnings` by rank."""
        said = [[text for text in texts if self.is_named(text)] for texts in warnings]
        if not self.ranks:
            return bool(said[0]) or all(said)
        return all(said[rank] or any(_names_rank(text, rank) for text in said[0]) for rank in self.ranks)


def _names_rank(text: str, rank: int) -> bool:
    return re.search(rf"\branks?(\(s\))? (\d+(, | and ))*{rank}\b", text) is not None


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
    warnings: tuple[tuple[str, ...], ...]
    """What each rank said at WARNING, and rank 0 in its line of what is not proven."""
    waited: float
    """Seconds from the end of a rank that failed to the last one's."""
    undisturbed: float = 0.0
    """Seconds from the first rank's end to the last one's in the undisturbed training."""
    own: bool = False
    """Whether a step lay there at the last start of which each rank had its own slice and state."""
    described: bool = True
    """Whether a state of another rank lay there, which has the description of the lost one."""

    @property
    def record(self) -> dict[str, Any]:
        """As results keep it."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> SeenRanks:
        """Return what results have kept."""
        ends = tuple(End(**one) for one in record["ends"])
        warnings = tuple(map(tuple, record["warnings"]))
        return cls(**{**record, "ends": ends, "differences": tuple(record["differences"]), "warnings": warnings})


@dataclass(frozen=True)
class RankVerdict:
    """The verdict on a job."""

    kind: Kind
    why: str
    undeserved: str = ""
    """The refusal of a job that nothing keeps from going on exactly."""


GONE = "another rank is gone"
"""What a rank says whose collective has come to its limit."""
LONGEST = 5.0
"""Seconds that a rank may take to end behind another one that has failed, beyond what an undisturbed end takes."""
BUSY = 3.0
"""Seconds more, because the processes of a job share few cores, and one that ends frees its memory for a while."""


def verdict_of_ranks(job: RankJob, seen: SeenRanks) -> RankVerdict:
    """Return the verdict on a job."""
    causes = list(causes_of_ranks(job, own=seen.own, described=seen.described))
    kinds = {end.kind for end in seen.ends}
    texts = [end.text for end in seen.ends]
    marks = ", ".join(marks_of_ranks(job)) or "nothing out of the ordinary"
    if never_comes(job) and "done" not in kinds and any(GONE in text for text in texts):
        return RankVerdict("late", f"{job.argument} of one rank")
    if seen.waited - seen.undisturbed > LONGEST + BUSY or any(GONE in text for text in texts):
        return RankVerdict("slow", f"{seen.waited:.0f} s: {marks}: {' | '.join(texts)}")
    if kinds == {"refused"}:
        stops = [one.name for one in causes if one.effect == "stops" and all(map(one.is_named, texts))]
        return RankVerdict("refused", ", ".join(stops) or "without a cause", "" if stops else " | ".join(texts))
    if len(kinds) > 1:
        ends = "; ".join(f"rank {rank} {end.kind}: {end.text[:160]}" for rank, end in enumerate(seen.ends))
        return RankVerdict("split", f"{marks}: {ends}")
    if kinds != {"done"}:
        return RankVerdict("silent", f"{', '.join(kinds)}: {marks}: {' | '.join(texts)}")
    if job.base.odd == "one shard" and not any(UNREAD in text for text in seen.warnings[0]):
        return RankVerdict("silent", f"nobody says that a shard has no reader: {marks}")
    if not any(seen.differences):
        return RankVerdict("exact", "")
    values = _begin_with_values(seen.differences)
    named = [
        one.name
        for one in causes
        if one.effect != "noted" and not (values and one.first == "samples") and one.is_warned_of(seen.warnings)
    ]
    return RankVerdict("warned", ", ".join(named)) if named else RankVerdict("silent", marks)


def _begin_with_values(differences: Iterable[str | None]) -> bool:
    """Whether what differs first on any rank are values at the begin of a step, and so no samples."""
    first = [(int(step), kind) for one in differences if one for kind, step in _EVENT.findall(one)[:1]]
    return (min(first)[0], "values") in first if first else False


_EVENT = re.compile(r"\('(\w+)', (\d+)")
UNREAD = "nobody reads shard"


def never_comes(job: RankJob) -> bool:
    """Whether a rank of a loop saves where another does not: that one is in its step, and never calls the library.

    Nothing but time could show it, as docs/resume.md says. With ``Model`` the callbacks are compared.
    """
    return job.base.trainer == "loop" and job.argument in ("saver", "save_steps")


def causes_of_ranks(job: RankJob, *, own: bool = False, described: bool = True) -> Iterator[RankCause]:
    """Yield what may keep the job from going on exactly; see `SeenRanks` for what lay there at the last start.

    States alone never refuse a recovery. Where a step has each rank's `own` slice and state, all go back to it. Without
    noise a lost rank's samples follow from its description, which another rank keeps.
    """
    base = job.base
    losers = {job.lost_by} if job.lost != "none" else set()
    killed = {rank for kind, rank, *_ in job.crashes if kind == "file"}
    losers |= killed
    ranks = tuple(sorted(losers))
    if base.trainer == "loop" and base.noise != "none":
        yield RankCause("noise in a loop", "stops", r"random|own code|generator")
    if base.network == "dropout":
        yield RankCause("dropout", "differs", r"dropout|random")
    if job.change in ("shard 0", "shards swapped"):
        yield RankCause(job.change, "stops", r"shard")
    if job.change == "seed":
        yield RankCause("seed", "stops", r"seed|sample")
    if losers and (not own or job.argument == "prefix"):  # slices of a rank's own prefix are not used
        if base.callback or base.noise != "none":
            yield RankCause("own states", "differs", STATES, ranks=ranks)
        if (base.shuffle == "by rank" or base.data == "own") and base.saves_states and not described:
            yield RankCause("own samples", "differs", OWN_SAMPLES, ranks=ranks)
        if base.network == "bank":
            unlike = None if base.saves_states else WITHOUT_STATES
            yield RankCause(
                "bank", "stops", r"\bbank\b|rank-local|shows whether some were its own", ranks=ranks, unlike=unlike
            )
    slices = tuple(rank for rank in ranks if rank in killed or job.lost not in ("state", "flipped state"))
    if base.network == "norm" and slices:  # no rank goes back for them
        yield RankCause("statistics", "differs", r"moving_|statistics", ranks=slices)
    if base.network == "bank" and not base.saves_states:  # nothing compares them at a save, and one step shows nothing
        yield RankCause("bank of one step", "stops", r"different contents in 'bank'.*nothing settles who is right")
    if not base.saves_states:
        yield RankCause("nothing proves samples", "differs", r"sample|seed|shuffl", "samples", unlike=WITHOUT_STATES)
    if job.lost == "other experiment":
        yield RankCause("other experiment", "stops", r"\brun\b|runs|experiment")
    if base.odd == "one shard":
        yield RankCause("one shard", "stops", UNREAD)
    if base.odd == "unequal epochs":
        yield RankCause("unequal epochs", "stops", r"epoch|different steps")
    if job.argument in _SAYS:
        yield RankCause(f"{job.argument} of one rank", "stops", _SAYS[job.argument])
    if job.base.trainer == "manifests" and job.change == "more epochs":
        yield RankCause("more epochs", "noted", r"epoch")


_SAYS = {
    "run": r"\brun\b|argument",
    "variable": r"MS_RECOVER_RUN|\brun\b",
    "ckpt_file": r"ckpt_file|argument",
    "rank_local": r"rank_local|argument",
    "epochs": r"epochs|argument",
    "saver": r"saver|saves|callback|SliceCheckpoint|argument|does not call",
    "save_steps": r"save_steps|argument|step",
    "asynchronous": r"async|argument",
    "prefix": r"prefix|experiment",
}
"""How many slices a rank keeps and their format are its own, and stop nothing."""


def marks_of_ranks(job: RankJob) -> list[str]:
    """Return what is out of the ordinary about a job."""
    base = job.base
    marks = [f"{base.ranks} ranks"] if base.ranks != 2 else []
    marks += [base.trainer] if base.trainer != "model" else []
    marks += [base.network] if base.network != "mlp" else []
    marks += [base.odd] if base.odd != "none" else []
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
