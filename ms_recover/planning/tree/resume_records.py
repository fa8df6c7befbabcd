"""MindFormers' records: steps that its health monitor found unsound, and the ``meta.json`` from which it resumes.

Its resume takes the smallest (epoch, step) of all ``meta.json``, then the newest step not above it of which every
``rank_N`` has a file of the same prefix (``mindformers/tools/resume_ckpt.py``). It looks at names only, so that after a
recovery each ``meta.json`` must name the rank's slice of the recovered step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ms_recover.file_names import META_NAME, last_named_rank
from ms_recover.model.inventory import MetaFile, SliceFile, UnhealthySlice
from ms_recover.model.plan import MetaWrite, RankVerdict
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.positions import NO_POSITIONS, Positions
from ms_recover.planning.tree.prefixes import base_of, rerun_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun:
    """The run that ``meta.json`` calls the last, by its prefix, and its newest step.

    `since` is the position of its first slice that is there, None where nothing states one.
    """

    prefix: str
    until: Step
    since: int | None = None

    def why_abandoned(self, files: Iterable[SliceFile], step: Step, trained: int | None = None) -> str | None:
        """Return why all slices of a step are of an earlier run, which this one went back behind; else None.

        `trained` is the position of the step. Names count where nothing states positions.
        """
        prefixes = {file.prefix for file in files}
        behind = step > self.until if trained is None or self.since is None else trained >= self.since
        earlier = (rerun_of(name) < rerun_of(self.prefix) for name in prefixes)
        if {base_of(name) for name in prefixes} != {base_of(self.prefix)} or not behind or not all(earlier):
            return None
        names = list_some(map(repr, sorted(prefixes)))
        option = " or ".join(f"--run {prefix}" for prefix in sorted(prefixes))
        return (
            f"its slices have the prefix {names}: meta.json names the later run {self.prefix!r}, up to {self.until}; "
            f"{option} takes it"
        )


def why_unhealthy(files: Iterable[SliceFile], unhealthy: Sequence[UnhealthySlice], step: Step) -> str | None:
    """Return why a step is unhealthy, by the prefix that most of its slices have; None when nothing says so."""
    prefixes = Counter(file.prefix for file in files)
    prefix = min(prefixes, key=lambda name: (-prefixes[name], name), default=None)
    marks = (mark for mark in unhealthy if (mark.step, mark.prefix) == (step, prefix))
    return next((f"marked unhealthy in {mark.path}" for mark in marks), None)


def find_named_run(metas: Iterable[MetaFile], positions: Positions = NO_POSITIONS) -> NamedRun | None:
    """Return the run that most ``meta.json`` name; None where no run has most, or none can be read.

    One is a witness, not a judge: a rank that died before it wrote its own still names the run before.
    """
    steps: dict[str, list[Step]] = defaultdict(list)
    for meta in metas:
        if meta.step is not None and meta.prefix:
            steps[meta.prefix].append(meta.step)
    prefix = max(steps, key=lambda name: len(steps[name]), default="")
    if 2 * len(steps[prefix]) <= sum(map(len, steps.values())):
        return None
    return NamedRun(prefix=prefix, until=max(steps[prefix]), since=positions.first_of(prefix))


def why_names_differ(metas: Sequence[MetaFile], ranks: Iterable[RankVerdict], step: Step) -> str | None:
    """Return why MindFormers' own resume refuses a step of which every rank has a slice, None when it does not.

    It looks for one prefix on all ranks, and MindSpore appends the ``_N`` of a rerun in each directory by itself.
    """
    if not metas:
        return None
    forms: dict[str, list[int]] = {}
    for verdict in ranks:
        name = (verdict.path or "").rpartition("/")[2]
        rank = last_named_rank(name)
        if rank is not None:
            start, end = rank.span("rank")
            forms.setdefault(f"{name[:start]}{{rank}}{name[end:]}", []).append(verdict.rank)
    if len(forms) < 2:
        return None
    most = max(forms, key=lambda form: (len(forms[form]), form))
    others = "; ".join(
        f"rank {list_some(ranks_of)}: {form}" for form, ranks_of in sorted(forms.items()) if form != most
    )
    return (
        f"MindFormers resumes from step {step} only when all ranks' names are alike: most are {most}, but {others}; "
        "rename the slices, their manifests and what meta.json names"
    )


def plan_meta_files(metas: Sequence[MetaFile], ranks: Iterable[RankVerdict], step: Step) -> tuple[MetaWrite, ...]:
    """Return the ``meta.json`` to write so that MindFormers resumes from a step; none for trees without any."""
    places = Counter(meta.place for meta in metas if meta.place.names_rank)
    if not places:
        return ()
    place = places.most_common(1)[0][0]
    by_rank = {meta.rank: meta for meta in metas if meta.place == place}
    writes = []
    for verdict in ranks:
        folder, _, file = (verdict.path or "").rpartition("/")
        target, meta = place.of(verdict.rank), by_rank.get(verdict.rank)
        why = _why_written(meta, file, step)
        if target == f"{folder}/{META_NAME}" and why is not None:
            named = meta.file if meta is not None and meta.step is not None else None
            writes.append(MetaWrite(rank=verdict.rank, target=target, file=file, replaces=named, reason=why))
    return tuple(writes)


def _why_written(meta: MetaFile | None, file: str, step: Step) -> str | None:
    if meta is None:
        return "missing"
    if meta.step is None:
        return meta.problem
    if meta.step == step and meta.file == file:
        return None
    alike = meta.file.rpartition("-")[0] == file.rpartition("-")[0]
    if alike and meta.step > step:
        return f"names step {meta.step}, training resumes from {step}"
    if alike and meta.step < step:
        return f"names the older step {meta.step}"
    return f"names {meta.file}"
