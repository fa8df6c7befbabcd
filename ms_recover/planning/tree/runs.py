"""Runs: which slices of a step were saved together, so that a step is never put together from two of them.

A slice belongs to a run by the run id of its manifest, and by the prefix of its name. MindSpore appends ``_N`` to the
prefix of a rerun, in each directory by itself (``_chg_ckpt_file_name_if_same_exist``), so that ranks of one run may
bear different ``_N``: these are one run as long as no rank has slices of two of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ms_recover.file_names import ending_of
from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage, identity_of
from ms_recover.planning.tree.prefixes import NO_NAMES, Experiments, base_of, find_experiments


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The identity of slices that were saved together.

    The run id is that of manifests, None when none names a run; with the time of its start where manifests state it,
    because a launcher may give one id to several starts. The base is the prefix without rerun suffix, None when
    prefixes do not separate the slices. The whole prefix is there where ranks have slices of several reruns, the ending
    where they have slices of both formats. `trained` are the steps since the beginning of the training, where anything
    states them; where slices of one name were saved at several times, `apart` has the paths of the others.
    """

    run_id: str | None = None
    started: int | None = None
    base: str | None = None
    prefix: str | None = None
    ending: str | None = None
    trained: int | None = None
    apart: frozenset[str] = frozenset()
    names: Experiments = field(default=NO_NAMES, compare=False)

    def why_foreign(self, file: SliceFile | OrphanManifest) -> str | None:
        """Return the reason why a slice belongs to another run, None when it belongs to this one."""
        manifest = file.manifest
        if self.run_id is not None and manifest is not None and manifest.run_id != self.run_id:
            theirs = f"run {manifest.run_id}" if manifest.run_id else "a run without a name"
            return f"belongs to {theirs}, not to {self.run_id or 'the one without a name'}"
        started = identity_of(manifest)[1]
        if None not in (started, self.started) and started != self.started:
            return f"belongs to another start of run {self.run_id}"
        if self.base is not None and self.names.of(file) != self.base:
            return f"its prefix {file.prefix!r} is that of another run than {self.base!r}"
        if self.prefix is not None and file.prefix != self.prefix:
            theirs = f"belongs to the run with the prefix {file.prefix!r}, not to {self.prefix!r}, which was chosen"
            return f"{theirs}; --run {file.prefix} takes it"
        if self.ending is not None and ending_of(file.path) != self.ending:
            return f"is no {self.ending} file, and those of the step were chosen"
        if self.apart and file.path in self.apart:
            return "is of another step of the training that has the same name"
        return None

    @property
    def text(self) -> str:
        """The run, for messages; with the step of the training where one name was given to several."""
        name = self.run_id or self.prefix or self.base
        return f"run {name} at step {self.trained} of the training" if self.apart else f"run {name}"

    def may_be(self, other: Run) -> bool:
        """Whether files of two parts of a tree may be of one run, as far as both state it."""
        identity, base = (self.run_id, other.run_id), (self.base, other.base)
        start, prefix = (self.started, other.started), (self.prefix, other.prefix)
        return all(None in pair or len(set(pair)) == 1 for pair in (identity, start, base, prefix))


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderRuns:
    """The runs that saved a tree's slices before the present one, over all steps.

    `present` has the prefixes, without rerun suffix, that may be recovered, `reasons` every other prefix and why not;
    `followed` are those of them that as many ranks may have, and that times alone call older. `newest` is the id of the
    run that was started last, and its newest step, where manifests and times show it. `chosen` is the prefix by which a
    person named the run to recover, `exact` whether slices bear it as it is, and not with the ``_N`` of reruns alone.
    """

    present: frozenset[str]
    reasons: dict[str, str]
    followed: frozenset[str] = frozenset()
    newest: tuple[str, Step] | None = None
    chosen: str | None = None
    exact: bool = False
    names: Experiments = field(default=NO_NAMES, compare=False)

    def of_present(self, files: Iterable[SliceFile]) -> list[SliceFile]:
        """Return the slices of a step that may be of the present run.

        Some slice of a step must bear the prefix that was chosen; those of other ranks may have another ``_N``.
        """
        own = [file for file in files if self.names.of(file) in self.present]
        if self.chosen is None:
            return own
        own = [file for file in own if not identity_of(file.manifest)[0]]
        return own if not self.exact or any(file.prefix == self.chosen for file in own) else []

    def why_older(self, files: Iterable[SliceFile]) -> str | None:
        """Return the reason why the slices of a step are not of the present run; None when some may be."""
        saved = list(files)
        if not saved or self.of_present(saved):
            return None
        if self.chosen is not None:
            names = sorted({_name_of(file) for file in saved})
            have = f"its slices are of the run {' or '.join(map(repr, names))}"
            return f"{have}, and the run with the prefix {self.chosen!r} was chosen; {_option(names)}"
        reasons = "; ".join(self.reasons[base] for base in sorted({self.names.of(file) for file in saved}))
        return f"{reasons}; {_option(sorted({_name_of(file) for file in saved}))}"

    def others_at(self, step: Step, files: Sequence[SliceFile], taken: Set[str]) -> list[str]:
        """Return a warning for each other run that saved a step, of which the slices with some paths are `taken`."""
        own = [file for file in files if file.path in taken]
        prefixes, names = {file.prefix for file in own}, {_name_of(file) for file in own}
        bases = {self.names.of(file) for file in own}
        reruns = [file.rank for file in files if self.names.of(file) in bases]
        single = len(set(reruns)) == len(reruns)
        others: dict[str, list[SliceFile]] = defaultdict(list)
        for file in files if own and self.chosen is None else ():
            same = self.names.of(file) in bases if single else file.prefix in prefixes
            if _name_of(file) not in names and (identity_of(file.manifest)[0] or not same):
                others[_name_of(file)].append(file)
        return [
            f"step {step} of another run is passed over: {self._why_not(theirs, own)}; {_option([name])}"
            for name, theirs in sorted(others.items())
        ]

    def _why_not(self, theirs: Sequence[SliceFile], own: Sequence[SliceFile]) -> str:
        base = self.names.of(theirs[0])
        if base in self.reasons and base not in {self.names.of(file) for file in own}:
            return self.reasons[base]
        run_id = identity_of(theirs[0].manifest)[0]
        name = f"slices of run {run_id}" if run_id else f"slices with the prefix {theirs[0].prefix!r}"
        later = min(file.mtime_ns for file in theirs) > max(file.mtime_ns for file in own)
        when = ", written after those that are taken" if later else ""
        return f"{_ranks_text(theirs)} {name} as well{when}"

    def why_not_last(self, step: Step, run_id: str | None) -> str | None:
        """Return a warning when a step is of a run that another one followed; times prove no more than that."""
        if self.newest is None or run_id in (None, self.newest[0]) or step <= self.newest[1]:
            return None
        last, until = self.newest
        return (
            f"step {step} is of the older run {run_id}: run {last} was written later and is at step {until}; if that "
            f"is the run to recover, name its step with --step {until}"
        )


def why_alone(slices: Iterable[SliceFile], taken: Set[str]) -> str | None:
    """Return a warning when a single rank has the run of which slices are `taken`, and other ranks have other runs."""
    every = list(slices)
    names = {_name_of(file) for file in every if file.path in taken}
    own = [file for file in every if _name_of(file) in names]
    if len({file.rank for file in own}) != 1 or len({file.rank for file in every}) == 1:
        return None
    paths = list_some(sorted(file.path for file in own if file.path in taken))
    return f"only rank {own[0].rank} has this run, with {paths}; structure only: no replica and no manifest proves it"


def _name_of(file: SliceFile) -> str:
    return identity_of(file.manifest)[0] or file.prefix


def _option(names: Iterable[str]) -> str:
    return f"{' or '.join(f'--run {name}' for name in names)} takes it"


def find_older_runs(
    slices: Sequence[SliceFile], chosen: str | None = None, names: Experiments | None = None
) -> OlderRuns:
    """Tell the present run from those that older runs, or single ranks, left behind.

    It is the one `chosen` by its prefix. Otherwise a prefix that at most half as many ranks have as another is a
    leftover. Of several that are left, one whose slices were all written after all slices of the others is the present
    one; otherwise times prove nothing and all are present. Prefixes of manifests with a run id are present: these tell
    their runs apart. `names` has the experiments of slices, where more than these tell them.
    """
    names = find_experiments(slices) if names is None else names
    if chosen is not None:
        exact = any(file.prefix == chosen and not identity_of(file.manifest)[0] for file in slices)
        own = (file for file in slices if chosen == (file.prefix if exact else base_of(file.prefix)))
        present = frozenset(map(names.of, own))
        return OlderRuns(present=present, reasons={}, chosen=chosen, exact=exact, names=names)
    by_base = grouped(slices, names.of)
    by_id = grouped(slices, lambda file: identity_of(file.manifest)[0])
    by_id.pop("", None)
    named = {names.of(file) for files in by_id.values() for file in files}
    large = _widespread(by_base) | named
    followed: set[str] = set()
    reasons = {
        base: f"only {_ranks_text(by_base[base])} the prefix {base!r}, of another run"
        for base in sorted(by_base.keys() - large)
    }
    if not named and (last := _written_last(by_base, large)) is not None:
        followed = large - {last}
        for base in sorted(followed):
            reasons[base] = f"the slices with the prefix {base!r} are of an older run than those of {last!r}"
    run = _written_last(by_id, _widespread(by_id))
    newest = (run, max(file.step for file in by_id[run])) if run is not None else None
    present = frozenset(large - followed)
    return OlderRuns(present=present, reasons=reasons, followed=frozenset(followed), newest=newest, names=names)


def _widespread(families: Mapping[str, Sequence[SliceFile]]) -> set[str]:
    """Return the families that more than half as many ranks have as any other."""
    ranks = {name: len({file.rank for file in files}) for name, files in families.items()}
    most = max(ranks.values(), default=0)
    return {name for name, count in ranks.items() if 2 * count > most}


def _written_last(families: Mapping[str, Sequence[SliceFile]], names: set[str]) -> str | None:
    """Return the family all of whose slices were written after all slices of the others, None when there is none."""
    if len(names) < 2:
        return None
    first = {name: min(file.mtime_ns for file in families[name]) for name in names}
    latest = max(names, key=lambda name: (first[name], name))
    others = (file.mtime_ns for name in names - {latest} for file in families[name])
    return latest if max(others) < first[latest] else None


def _ranks_text(files: Sequence[SliceFile]) -> str:
    ranks = sorted({file.rank for file in files})
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {list_some(ranks)} have"


def find_runs(
    files: Iterable[SliceFile],
    older: OlderRuns,
    *,
    newest: bool,
    named: str | None = None,
    lineage: Lineage | None = None,
) -> tuple[Run, ...]:
    """Return the runs that saved the slices of a step, the best candidate first.

    Where a lineage has slices of the step, only the last of its runs that has some counts; where it has none, the run
    that was started last comes first. Otherwise the run that most ranks have comes first; of equals the one that was
    started again most often, by the ``_N`` of its prefix. Prefixes of `older` runs count only where the step has no
    slice of the present one, or where more ranks have them. Ranks that have several slices are settled for the whole
    step by the prefix `named` as that of the last run, then with `newest` by one prefix and one format: that which most
    ranks have first, of equals the one whose slices were modified last.
    """
    saved, names = list(files), older.names
    sound = [file for file in saved if file.problem is None]
    if lineage is not None:
        sound = of_last_run(lineage, sound)
    larger = _larger(older, saved)
    counted = [*older.of_present(sound), *(file for file in sound if names.of(file) in larger)] or sound
    unnamed = not any(file.manifest.run_id for file in counted if file.manifest is not None)
    by_run: dict[Run, list[SliceFile]] = defaultdict(list)
    for file in counted:
        if unnamed or file.manifest is not None:
            run_id, started = identity_of(file.manifest) if not unnamed else (None, None)
            run = Run(run_id=run_id, started=started, base=names.of(file), names=names)
            by_run[run].append(file)
    runs = sorted(by_run, key=lambda run: (run.run_id or "", _start_of(run), run.base or ""))
    runs.sort(key=lambda run: _weight(by_run[run], names, newest=newest), reverse=True)
    if lineage is not None:
        runs.sort(key=_start_of, reverse=True)
    if len(runs) > 1 and unnamed and not larger and not _separate(by_run):
        runs = [Run()]
    if named is not None:
        runs = [_of_prefix(run, sound, named) for run in runs]
    if newest:
        runs = [part for run in runs for part in _settled(run, sound)]
    return tuple(runs) or (Run(),)


def _larger(older: OlderRuns, files: Iterable[SliceFile]) -> set[str]:
    """Return the prefixes that times alone call older, and that more ranks have at a step than the present ones.

    One of which a rank has two slices is not one of them: which of these were taken would be open.
    """
    ranks: dict[str, list[int]] = defaultdict(list)
    for file in files if older.followed else ():
        ranks[older.names.of(file)].append(file.rank)
    most = max((len(set(ranks[base])) for base in older.present & ranks.keys()), default=0)
    return {base for base in older.followed & ranks.keys() if len(ranks[base]) == len(set(ranks[base])) > most > 0}


def _start_of(run: Run) -> int:
    return -1 if run.started is None else run.started


def of_last_run(lineage: Lineage, files: list[SliceFile]) -> list[SliceFile]:
    """Return the slices of a step that the last run of a lineage saved which has any; all of them where none has."""
    placed = [(lineage.order(file), file) for file in files]
    last = max((order for order, _ in placed if order is not None), default=None)
    return [file for order, file in placed if order == last]


def _weight(files: Sequence[SliceFile], names: Experiments, *, newest: bool) -> tuple[int, int, int]:
    latest = max((file.mtime_ns if newest else 0, names.number_of(file)) for file in files)
    return len({file.rank for file in files}), *latest


def _separate(by_run: Mapping[Run, Sequence[SliceFile]]) -> bool:
    """Whether no rank has slices of two prefixes, or one prefix clearly prevails."""
    ranks = [{file.rank for file in files} for files in by_run.values()]
    most, second, *_ = sorted(map(len, ranks), reverse=True)
    return most > 2 * second or len(set().union(*ranks)) == sum(map(len, ranks))


def _of_prefix(run: Run, sound: Iterable[SliceFile], prefix: str) -> Run:
    """Return the part of a run that has a prefix, where ranks have several of its slices and one has the prefix."""
    own = [file for file in sound if run.why_foreign(file) is None]
    several = len({file.rank for file in own}) < len(own)
    return replace(run, prefix=prefix) if several and any(file.prefix == prefix for file in own) else run


def _settled(run: Run, sound: Iterable[SliceFile]) -> list[Run]:
    """Split a run of which ranks have several slices by prefix, then by format.

    The one that most ranks have comes first, of equals the one modified last.
    """
    own = [file for file in sound if run.why_foreign(file) is None]
    if len({file.rank for file in own}) == len(own):
        return [run]
    count = Counter((file.rank, file.prefix) for file in own)
    both = {prefix for (_, prefix), slices in count.items() if slices > 1}
    parts: dict[Run, list[SliceFile]] = defaultdict(list)
    for file in own:
        ending = ending_of(file.path) if file.prefix in both else None
        parts[replace(run, prefix=file.prefix, ending=ending)].append(file)
    return sorted(
        parts,
        key=lambda part: (*_weight(parts[part], run.names, newest=True)[:2], part.prefix or "", part.ending or ""),
        reverse=True,
    )
