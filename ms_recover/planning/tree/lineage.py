"""Runs by their manifests: the names of runs, the one that is gone on with, and what a tree shows of that one.

Manifests state when a run was started, and the step of another run that it was resumed from. So an abandoned run is not
taken for the present one, however far it came: the lineage is the run that was started last, and the runs that it goes
on from, each up to the step it was resumed from. Slices and rank lists of others than a chosen run do not count for its
world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.grouped import grouped
from ms_recover.model.groups import each_once
from ms_recover.model.inventory import GroupFile, Inventory, SetAside, SliceFile
from ms_recover.model.manifest import Manifest, RunStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.prefixes import NO_NAMES, Experiments, base_of, find_experiments, stated_base

RUN = "MS_RECOVER_RUN"
"""Environment variable by which a training is given the run to resume."""

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Facts about one run, from the manifests of its slices.

    `started` is None for runs whose manifests do not state it. `begun` is the position of its first step where it began
    within the training and no manifest names the run before: it was resumed by hand. `newest` is its newest step in
    place, `aside` the newest of those that were set aside, None without one. `written` is when the last of its slices
    was modified, `newest_written` when that of the newest step was, in nanoseconds since 1970. `prefixes` are those of
    slices that no manifest gives a run's name: each names a run of its own. `base_prefix` is the experiment, which its
    manifests state; `bases` are the others, where savers with several prefixes share the run, and where no manifest
    states one those that the names of slices may stand for.
    """

    run_id: str
    started: int | None = None
    resumed_from: RunStep | None = None
    begun: Step | None = None
    newest: Step | None = None
    aside: Step | None = None
    written: int = 0
    newest_written: int = 0
    prefixes: tuple[str, ...] = ()
    base_prefix: str | None = None
    bases: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, int | None]:
        """Its id and its start: a launcher may give one id to several starts."""
        return self.run_id, self.started

    @property
    def last(self) -> Step | None:
        """Its newest step, in place or set aside."""
        return max((step for step in (self.newest, self.aside) if step is not None), default=None)

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiment that manifests state, or those that names stand for."""
        return self.bases if self.base_prefix is None else (self.base_prefix, *self.bases)

    def is_of(self, experiments: Collection[str]) -> bool:
        """Whether it is of one of some experiments, as far as this is known."""
        return not set(experiments).isdisjoint(self.experiments)

    @property
    def text(self) -> str:
        """The run with the time of its start, for messages."""
        name = f"run {self.run_id}" if self.run_id else "a run without a name"
        return name if self.started is None else f"{name}, started {time_text(self.started)}"


def names_experiment(records: Iterable[RunRecord], name: str) -> bool:
    """Whether a name is that of an experiment of which manifests name runs, and not that of a run."""
    named = [run for run in records if run.run_id]
    return any(run.is_of((name,)) for run in named) and not any(is_called(run, name, named) for run in named)


def choose_run(records: tuple[RunRecord, ...], name: str) -> RunRecord:
    """Return the run of a name; where manifests give none, the prefixes of slices stand for it, with or without ``_N``.

    Raises
    ------
    UsageError
        When there is none, or several.
    """
    meant = [run for run in records if run.run_id and is_called(run, name, records)]
    meant = meant or [run for run in records if not run.run_id and is_called(run, name, records)]
    if len(meant) == 1:
        return meant[0]
    named = sorted((run for run in (meant or records) if run.run_id), key=age_of, reverse=True)
    have = [f"{name_of(run, records)} ({run.text}, up to {run.last})" for run in named]
    nameless = [prefix for run in records for prefix in run.prefixes] if not meant else []
    have += [f"{prefix} (by the prefix of its slices)" for prefix in nameless]
    have += [f"{base} (an experiment)" for base in sorted({run.base_prefix or "" for run in named} - {""})]
    listed = list_some(have, _MOST_NAMED, separator="; ") or "no run that has a name"
    raise UsageError(f"there is {'no' if not meant else 'more than one'} run {name!r} here; there is {listed}")


def is_called(run: RunRecord, name: str, records: Iterable[RunRecord]) -> bool:
    """Whether a run is meant by a name."""
    if not run.run_id:
        return name in run.prefixes or name in map(base_of, run.prefixes)
    return name in (run.run_id, name_of(run, records), f"{run.run_id}@{run.started}")


def name_of(run: RunRecord, runs: Iterable[RunRecord]) -> str:
    """Return the name by which a run is chosen: its id, with its start where another has the same id."""
    same = [other for other in runs if other.run_id == run.run_id]
    return run.run_id if len(same) < 2 or run.started is None else f"{run.run_id}@{run.started}"


def age_of(run: RunRecord) -> tuple[int, str]:
    """Return what orders runs by their start."""
    return -1 if run.started is None else run.started, run.run_id


def time_text(milliseconds: int) -> str:
    """Return a time in milliseconds since 1970 as UTC."""
    return f"{datetime.fromtimestamp(milliseconds // 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Member:
    """The steps of one run that belong to a lineage: up to `until`, or all.

    Without an id those of every other run, of one experiment where its manifests state that.
    """

    run_id: str | None
    started: int | None
    until: Step | None = None
    base: str | None = None

    def has(self, manifest: Manifest | None, step: Step, base: str | None = None) -> bool:
        """Whether a slice with this manifest belongs to it; `base` is its experiment, where that is known."""
        if self.until is not None and step > self.until:
            return False
        if self.run_id is None:
            return self.base in (None, base)
        run_id, started = identity_of(manifest)
        return run_id == self.run_id and (None in (started, self.started) or started == self.started)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A run, and those that it goes on from, the last one first; `others` are the runs that have no part in it.

    It is `chosen` where a person named the run; otherwise `last` is the run that was started last. `parents` are the
    runs of the members after the first, as far as anything is left of them.
    """

    last: RunRecord
    members: tuple[Member, ...]
    parents: tuple[RunRecord, ...]
    others: tuple[RunRecord, ...]
    chosen: bool
    names: Experiments

    def order(self, file: SliceFile) -> tuple[int, Step] | None:
        """Return the place of a slice in the order in which the lineage saved its steps; None when it has no part.

        Steps of a later run come behind all steps of the runs before: it may count them anew.
        """
        return self.order_of(file.manifest, file.step, self.names.of(file))

    def order_of(self, manifest: Manifest | None, step: Step, base: str | None = None) -> tuple[int, Step] | None:
        """Return the same for a slice of a step with this manifest, of the experiment `base` where it states none."""
        stated = stated_base(manifest)
        base = base if stated is None else stated
        for index, member in enumerate(self.members):
            if member.has(manifest, step, base):
                return len(self.members) - index, step
        return None

    def why_outside(self, files: Iterable[SliceFile]) -> str:
        """Return the reason why slices that have no part in the lineage are passed over, and how to take them."""
        ids = {identity_of(file.manifest) for file in files}
        last = f"{self.last.text} was {'chosen' if self.chosen else 'started later'}"
        reasons = [
            f"its slices are of {parent.text}, and were given up when {heir.text}{',' if heir.started else ''} went on "
            f"from step {until}; {self.advice(parent)}"
            for parent, until, heir in self._given_up()
            if parent.identity in ids
        ]
        runs = sorted((run for run in self.others if run.identity in ids), key=age_of, reverse=True)
        if runs:
            reasons.append(
                f"its slices are of {list_some(run.text for run in runs)}, and {last}; {self.advice(runs[0])}"
            )
        return "; ".join(reasons) or f"its slices are of a run that no manifest names, and {last}"

    def _given_up(self) -> Iterator[tuple[RunRecord, Step, RunRecord]]:
        """Yield each run that another one went on from, the step at which, and the other one."""
        for parent, member, heir in zip(self.parents, self.members[1:], (self.last, *self.parents), strict=False):
            if member.until is not None:
                yield parent, member.until, heir

    def advice(self, run: RunRecord) -> str:
        """Return how another run is chosen."""
        names = (self.name(run),) if run.run_id else run.prefixes
        if not names:
            return "--step names one of its steps"
        options = " or ".join(f"--run {name}" for name in names)
        return f"{options} chooses it, or recover_train(run={names[0]!r}), or {RUN}={names[0]} in the environment"

    def name(self, run: RunRecord) -> str:
        """Return the name by which a run is chosen: its id, with its start where another has the same id."""
        return name_of(run, (self.last, *self.parents, *self.others))

    def is_later(self, manifest: Manifest | None) -> bool:
        """Whether a slice is of a run that was started later than the last one of the lineage."""
        started = identity_of(manifest)[1]
        return started is not None and self.last.started is not None and started > self.last.started

    def newer_texts(self, step: Step) -> list[str]:
        """Return a warning for each other run, or given-up part of one, of which slices are newer than a step."""
        left = (run for run, until, _ in self._given_up() if run.newest is not None and run.newest > until)
        newer = (run for run in (*self.others, *left) if run.newest is not None and run.newest > step)
        return [f"step {run.newest} of {run.text} is newer: {self.advice(run)}" for run in newer]

    def set_aside_texts(self, step: Step) -> list[str]:
        """Return a warning for each run of which newer slices than a step were set aside, and that might be wanted.

        Of the chosen run; otherwise of the runs that have no part in the lineage.
        """
        return [
            f"step {run.aside} of {run.text} is newer and was set aside when a later training began; "
            f"{_bringing_back(self.name(run))}"
            for run in ((self.last,) if self.chosen else self.others)
            if run.aside is not None and run.aside > step
        ]


def texts_of_aside(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each run all of whose slices were set aside."""
    return [
        f"the slices of {run.text}, up to step {run.aside}, were set aside when a later training began; "
        f"{_bringing_back(name_of(run, records))}"
        for run in records
        if run.newest is None and run.aside is not None
    ]


def _bringing_back(name: str) -> str:
    return f"recover_train(run={name!r}) brings it back, and so does {RUN}={name} in the environment of the training"


def identity_of(manifest: Manifest | None) -> tuple[str, int | None]:
    """Return the id and the start of the run that saved a slice: an empty id without a manifest."""
    if manifest is None:
        return "", None
    return manifest.run_id, manifest.training.started if manifest.training is not None else None


def find_run_records(
    slices: Iterable[SliceFile], set_aside: Iterable[SetAside] = (), names: Experiments | None = None
) -> tuple[RunRecord, ...]:
    """Return the runs that saved slices, sorted; slices without a manifest are of a run without a name.

    One that training had not committed, when it ended, is of no other run than those of its prefix. `names` are the
    experiments of the slices, where these are known.
    """
    files = list(slices)
    names = find_experiments(files) if names is None else names
    committing = {
        file.prefix for file in files if file.manifest is not None and file.manifest.provenance.kind == "saved"
    }
    # A manifest under another name than its slice's was copied there: it does not say who saved the slice.
    by_run: dict[tuple[str, int | None], list[SliceFile]] = defaultdict(list)
    for file in files:
        manifest = file.manifest
        fits = manifest is None or (manifest.rank, manifest.step) == (file.rank, file.step)
        if fits and (manifest is not None or file.prefix not in committing):
            by_run[identity_of(manifest)].append(file)
    runs = []
    for own in by_run.values():
        newest = max(file.step for file in own)
        record = record_of(own[0].manifest)
        stated = sorted({base for file in own if (base := stated_base(file.manifest)) is not None})
        record = replace(record, base_prefix=stated[0] if stated else None)
        prefixes = {file.prefix for file in own} if not stated else ()
        runs.append(
            replace(
                record,
                newest=newest,
                written=max(file.mtime_ns for file in own),
                newest_written=min(file.mtime_ns for file in own if file.step == newest),
                prefixes=() if record.run_id else tuple(sorted({file.prefix for file in own} - {""})),
                bases=tuple(sorted({*stated[1:], *map(names.of_name, prefixes), *(prefixes if record.run_id else ())})),
            )
        )
    runs += [replace(record_of(file.manifest), aside=file.step) for file in set_aside if file.manifest is not None]
    return merge_run_records(runs)


def merge_run_records(records: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """Join what slices, or ranks, know about runs, each run once.

    A run that began with the first epoch for one of them, but not for another, was resumed by hand.
    """
    by_run = grouped(records, lambda run: run.identity)
    return tuple(sorted(map(_merged, by_run.values()), key=age_of))


def _merged(records: Sequence[RunRecord]) -> RunRecord:
    newest = max((run.newest for run in records if run.newest is not None), default=None)
    stated = sorted({base for run in records if run.base_prefix is not None for base in run.experiments})
    return replace(
        records[0],
        resumed_from=next((run.resumed_from for run in records if run.resumed_from is not None), None),
        begun=max((run.begun for run in records if run.begun is not None), default=None),
        newest=newest,
        aside=max((run.aside for run in records if run.aside is not None), default=None),
        written=max(run.written for run in records),
        newest_written=min((run.newest_written for run in records if run.newest == newest), default=0),
        prefixes=tuple(sorted({prefix for run in records for prefix in run.prefixes})),
        base_prefix=stated[0] if stated else None,
        bases=tuple(stated[1:] if stated else sorted({name for run in records for name in run.bases})),
    )


def find_lineage(
    records: tuple[RunRecord, ...],
    chosen: str | None = None,
    experiments: Collection[str] = (),
    names: Experiments = NO_NAMES,
) -> Lineage | None:
    """Return the lineage of the run that was started last and has slices in place, or of the one that is chosen.

    With `experiments` it is the last one of these, and with an experiment `chosen` the last one of that. A lineage has
    runs of one experiment, and those of another one that they were begun from. `names` has the experiments of slices.

    None where no manifest states a start and no run is chosen, and where the chosen one has no name but its prefix:
    then slices alone must tell runs apart. Runs that state no start are of an older version, and come before those that
    do; but where the newest step of one was written behind all slices of the last run, another program may have gone on
    with the training, and the answer is None as well.

    Raises
    ------
    UsageError
        When there is no run of the chosen name, or several.
    """
    by_run = chosen is not None and not names_experiment(records, chosen)
    if chosen is not None and not by_run:
        experiments = (chosen,)
    own = [run for run in records if run.is_of(experiments)] if experiments and not by_run else records
    last = choose_run(records, chosen) if chosen is not None and by_run else started_last(own)
    if last is None or (by_run and not last.run_id) or (not by_run and any(may_follow(run, last) for run in own)):
        return None
    # From the last run back to the first: a run that is gone ends the line, and so does one that names itself.
    members = [Member(last.run_id, last.started)]
    parents: list[RunRecord] = []
    run = last
    while (before := run.resumed_from) is not None:
        parent = next((other for other in records if other.identity == (before.run_id, before.started)), None)
        if parent == last or parent in parents:
            break
        members.append(Member(before.run_id, before.started, before.step))
        if parent is None:
            break
        parents.append(parent)
        run = parent
    # No manifest names the run before one that was resumed by hand: it may be any.
    if run.resumed_from is None and run.begun is not None:
        members.append(Member(None, None, run.begun, run.base_prefix))
    ids = {(member.run_id, member.started) for member in members}
    others = tuple(other for other in records if other.identity not in ids)
    return Lineage(
        last=last,
        members=tuple(members),
        parents=tuple(parents),
        others=others,
        chosen=chosen is not None,
        names=names,
    )


def follow_choice(records: tuple[RunRecord, ...], name: str) -> str:
    """Return the name of the run that a choice means which stays made when the training is started again.

    That is the last run that goes on from all that the chosen one has; of that one nothing may be left but its name.
    Where none does it is the chosen run. So the training goes on, and not back to the same step at each start.
    """
    run = next((other for other in records if is_called(other, name, records)), None)
    seen: set[RunRecord] = set()
    while True:
        heirs = [other for other in records if other.run_id and other.newest is not None and _goes_on(other, run, name)]
        heir = max(heirs, key=age_of, default=None)
        if heir is None or heir in seen:
            return name
        seen.add(heir)
        run, name = heir, name_of(heir, records)


def _goes_on(heir: RunRecord, run: RunRecord | None, name: str) -> bool:
    """Whether a run was resumed from the last step of another one, of which nothing but the name may be left."""
    before = heir.resumed_from
    if before is None:
        return False
    if run is None:
        return name in (before.run_id, f"{before.run_id}@{before.started}")
    return (before.run_id, before.started) == run.identity and (run.last is None or before.step >= run.last)


def record_of(manifest: Manifest | None) -> RunRecord:
    """Return what the manifest of one slice states about its run."""
    run_id, started = identity_of(manifest)
    training = manifest.training if manifest is not None else None
    if manifest is None or training is None:
        return RunRecord(run_id=run_id)
    return RunRecord(
        run_id=run_id,
        started=started,
        resumed_from=training.resumed_from,
        begun=_begun(manifest, training.epoch_steps),
        base_prefix=training.base_prefix,
    )


def _begun(manifest: Manifest, epoch_steps: int | None) -> Step | None:
    """Return the position at which a run began by the numbers of one of its steps; None for the very beginning."""
    if epoch_steps is None or manifest.cumulative_step is None:
        return None
    before = (manifest.step.epoch - 1) * epoch_steps + manifest.step.step - manifest.cumulative_step
    return Step((before - 1) // epoch_steps + 1, (before - 1) % epoch_steps + 1) if before > 0 else None


def started_last(records: Iterable[RunRecord]) -> RunRecord | None:
    """Return the run that was started last of those that state it and have slices in place."""
    return max((run for run in records if run.started is not None and run.newest is not None), key=age_of, default=None)


def may_follow(run: RunRecord, last: RunRecord) -> bool:
    """Whether a run that states no start may have gone on with the training of another one, by times."""
    return run.started is None and run.newest is not None and run.newest_written > last.written


def inventory_of_run(inventory: Inventory, lineage: Lineage | None) -> Inventory:
    """Return an inventory without the slices that manifests say are of other runs than a chosen one goes on from.

    Ranks that have no others go with them, and beyond the world that the chosen run states. The whole inventory where
    no run was chosen, or nothing of it is in place.
    """
    if lineage is None or not lineage.chosen:
        return inventory
    outside = {file.path for file in inventory.slices if file.manifest is not None and lineage.order(file) is None}
    own = tuple(file for file in inventory.slices if file.path not in outside)
    stated = [file.manifest for file in own if file.manifest is not None]
    if not outside or not stated:
        return inventory
    gone = {file.rank for file in inventory.slices} - {file.rank for file in own}
    size = max(manifest.world_size for manifest in stated)
    ranks = tuple(rank for rank in inventory.ranks if rank not in gone and rank < size)
    return replace(inventory, slices=own, ranks=ranks)


def lists_of_others(inventory: Inventory, lists: Iterable[GroupFile], lineage: Lineage | None) -> dict[str, str]:
    """Return the rank lists that other runs than a chosen one wrote, each path with the reason.

    That is where slices of others lie, and the manifests of the chosen run, as training saved them, name other ranks
    for the rank of the list, and always the same.
    """
    if lineage is None or not lineage.chosen:
        return {}
    named: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    mixed: set[int] = set()
    for file in inventory.slices:
        manifest = file.manifest
        if manifest is not None and lineage.order(file) is None:
            mixed.add(file.rank)
        elif manifest is not None and not manifest.recovered and len(manifest.group) > 1:
            for rank in manifest.group:
                named[rank].add(each_once(manifest.group))
    reasons = {}
    for listing in lists:
        ranks = listing.info.sorted_ranks if listing.info is not None else None
        groups = named.get(listing.rank, set()) if listing.rank is not None else set()
        if listing.rank in mixed and ranks is not None and len(groups) == 1 and ranks not in groups:
            reasons[listing.path] = (
                f"another run wrote it: it names ranks {list(ranks)}, and the manifests of {lineage.last.text} name "
                f"{list(next(iter(groups)))}"
            )
    return reasons


@contextmanager
def naming_sizes(inventory: Inventory) -> Iterator[None]:
    """Where slices of several numbers of ranks lie in a tree, name the runs and their sizes in what is raised."""
    try:
        yield
    except (ContradictionError, UsageError) as error:
        text = text_of_sizes(inventory)
        if text is None:
            raise
        raise type(error)(f"{error}. {text}") from error


def text_of_sizes(inventory: Inventory) -> str | None:
    """Return the runs of a tree with their numbers of ranks; None where all have the same."""
    newest: dict[tuple[int, str, int], tuple[Step, Manifest]] = {}
    manifests = [(file.step, file.manifest) for file in inventory.slices]
    manifests += [(file.step, file.manifest) for file in inventory.set_aside]
    for step, manifest in manifests:
        if manifest is not None:
            key = *age_of(record_of(manifest)), manifest.world_size
            newest[key] = max(newest.get(key, (step, manifest)), (step, manifest), key=lambda entry: entry[0])
    if len({size for *_, size in newest}) < 2:
        return None
    texts = (
        f"{record_of(manifest).text}, of {manifest.world_size} rank(s), up to step {step}"
        for _, (step, manifest) in sorted(newest.items(), key=lambda entry: entry[0], reverse=True)
    )
    return (
        f"Slices of different numbers of ranks lie here: {list_some(texts, separator='; ')}. run= (--run) chooses one "
        "of these runs"
    )
