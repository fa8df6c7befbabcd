"""MindFormers' records: steps that its health monitor found unsound, and the ``meta.json`` from which it resumes.

Its resume takes the smallest (epoch, step) of all ``meta.json``, then the newest step not above it of which every
``rank_N`` has a file of the same prefix (``mindformers/tools/resume_ckpt.py``). It looks at names only, so that after a
recovery each ``meta.json`` must name the rank's slice of the recovered step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ms_recover.file_names import META_NAME
from ms_recover.model.inventory import MetaFile, SliceFile, UnhealthySlice
from ms_recover.model.plan import MetaWrite, RankVerdict
from ms_recover.model.steps import Step


def why_unhealthy(files: Iterable[SliceFile], unhealthy: Sequence[UnhealthySlice], step: Step) -> str | None:
    """Return why a step is unhealthy, by the prefix that most of its slices have; None when nothing says so."""
    prefixes = Counter(file.prefix for file in files)
    if not unhealthy or not prefixes:
        return None
    prefix = min(prefixes, key=lambda one: (-prefixes[one], one))
    found = next((one for one in unhealthy if (one.step, one.prefix) == (step, prefix)), None)
    return f"marked unhealthy in {found.path}" if found is not None else None


def plan_meta_files(metas: Sequence[MetaFile], ranks: Iterable[RankVerdict], step: Step) -> tuple[MetaWrite, ...]:
    """Return the ``meta.json`` to write so that MindFormers resumes from a step; none for trees without any."""
    places = Counter(meta.place for meta in metas if meta.place.names_rank)
    if not places:
        return ()
    place = places.most_common(1)[0][0]
    there = {meta.rank: meta for meta in metas if meta.place == place}
    writes = []
    for verdict in ranks:
        folder, _, file = (verdict.path or "").rpartition("/")
        target, meta = place.of(verdict.rank), there.get(verdict.rank)
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
    if meta.step > step:
        return f"names step {meta.step}, training resumes from {step}"
    if meta.step < step:
        return f"names the older step {meta.step}"
    return f"names {meta.file}"
