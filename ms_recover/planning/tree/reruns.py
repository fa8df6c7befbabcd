"""Later reruns that a plan goes behind: those that may be newer, and the slices of those that are given up.

MindSpore appends ``_N`` to the prefix of a rerun, one more than the highest in the directory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ms_recover.file_names import last_named_rank
from ms_recover.model.actions import FileState
from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.plan import GivenUpSlice, RankVerdict, RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.positions import Saved
from ms_recover.planning.tree.runs import Run

_FEW = 2
"""Ranks of a world in which one slice may make a step whole."""

_NO_ORDER = "and nothing states which of both was trained longer"


def later_reruns(facts: Facts, planned: Saved, run: Run) -> tuple[RejectedStep, ...]:
    """Return the newest step of each later rerun that stands behind the planned run's in the order, with the reason.

    Nothing states whether it is newer, or it is of a training that went back. So too the last of the planned run's own
    steps that were written later, where names are MindFormers' and nothing else orders them. Where manifests state when
    runs began, or the operator chooses a run, these decide.
    """
    chosen = [file for file in facts.files_at(planned.step, planned) if run.why_foreign(file) is None]
    decided = facts.lineage is not None or facts.options.run is not None or facts.options.newest
    if decided or facts.kind is not None or not chosen:
        return ()
    names, number = facts.names, facts.names.number_of
    bases, own = {names.of(file) for file in chosen}, {file.prefix for file in chosen}
    latest = written = max(file.mtime_ns for file in chosen)
    passed, known, rerun = [], set(own), max(map(number, chosen))
    last: Saved | None = None
    for saved in facts.saved[_place(facts, planned) :]:
        files = [file for file in facts.files_at(saved.step, saved) if names.of(file) in bases]
        later = {file.prefix: number(file) for file in files if number(file) > rerun and file.prefix not in known}
        if later and max(file.mtime_ns for file in files if file.prefix in later) > written:
            known |= later.keys()
            prefix = max(later, key=lambda name: later[name])
            ranks = tuple(sorted({file.rank for file in files if file.prefix == prefix}))
            if len(ranks) > 1 or facts.world.ranks <= _FEW:  # otherwise a stray slice
                reason = f"{_why_undecided(prefix, saved, planned, ranks)}; --run {prefix} chooses it"
                passed.append(RejectedStep(saved.step, reason, another_run=True, may_be_newer=True))
        times = [file.mtime_ns for file in files if file.prefix in own and file.name_has_rank]
        if saved != planned and saved.trained is None and min(times, default=latest) > latest:
            latest, last = max(times), saved
    if last is not None:
        reason = f"it was written after step {planned.step}, {_NO_ORDER}; --step {last.step} chooses it"
        passed.append(RejectedStep(last.step, reason, another_run=True, may_be_newer=True))
    return tuple(passed)


def _place(facts: Facts, found: Saved) -> int:
    """Return the place of a step in the order: that of the newest one of its name where no time is given."""
    named = (place for place, one in enumerate(facts.saved) if one.step == found.step)
    return next(place for place in named if found.paths in (None, facts.saved[place].paths))


def _why_undecided(prefix: str, saved: Saved, found: Saved, ranks: Sequence[int]) -> str:
    many = f"rank {ranks[0]} has" if len(ranks) == 1 else f"{len(ranks)} ranks have"
    begin = f"{many} it of the later run {prefix!r}, written after step {found.step}"
    if saved.trained is None or found.trained is None:
        return f"{begin}, {_NO_ORDER}"
    return f"{begin}, as step {saved.trained} of the training, not {found.trained}: training seems to have gone back"


def given_up_slices(facts: Facts, planned: Saved, ranks: Sequence[RankVerdict]) -> tuple[GivenUpSlice, ...]:
    """Return the slices of later reruns that a plan of a tree of MindFormers gives up, by rank and path.

    They are newer than the step, and of no step of which every rank has a slice. MindSpore would name the next run's
    slices by them, on some ranks and not on others.
    """
    named = all(last_named_rank((given.path or "").rpartition("/")[2]) for given in ranks)
    if facts.lineage is not None or facts.options.ranks is not None or not named:
        return ()
    names = facts.names
    bases = {names.of(file) for file in facts.files_at(planned.step, planned)}
    later: dict[str, list[SliceFile | OrphanManifest]] = defaultdict(list)
    every: tuple[SliceFile | OrphanManifest, ...] = (*facts.inventory.slices, *facts.inventory.orphans)
    for file in every:
        if names.of(file) in bases and names.number_of(file) > planned.rerun:
            later[file.prefix].append(file)
    before = facts.saved[: _place(facts, planned)]
    newer = {file.prefix for saved in before for file in facts.files_at(saved.step, saved)}
    partly = {prefix: files for prefix, files in later.items() if prefix in newer and not _is_whole(facts, files)}
    given_up = [_given_up(file, files) for prefix, files in partly.items() for file in files]
    return tuple(sorted(given_up, key=lambda given: (given.rank, given.path)))


def _is_whole(facts: Facts, files: Iterable[SliceFile | OrphanManifest]) -> bool:
    """Whether there is a step of which every rank has a slice."""
    ranks: dict[Step, set[int]] = defaultdict(set)
    for file in files:
        if isinstance(file, SliceFile):
            ranks[file.step].add(file.rank)
    return any(len(held) >= facts.world.ranks for held in ranks.values())


def _given_up(file: SliceFile | OrphanManifest, files: Iterable[SliceFile | OrphanManifest]) -> GivenUpSlice:
    ranks = sorted({other.rank for other in files})
    have = f"rank {ranks[0]} alone has" if len(ranks) == 1 else f"only ranks {list_some(ranks)} have"
    reason = (
        f"{have} slices of the rerun {file.prefix!r}: MindSpore would name the next run's slices by them, differently "
        "from rank to rank, and MindFormers would not resume from those"
    )
    state = FileState(file.size, file.mtime_ns) if isinstance(file, SliceFile) else None
    return GivenUpSlice(rank=file.rank, path=file.path, state=state, reason=reason)
