"""Which experiment of a tree is gone on with, where a tree has several: by what manifests state.

Steps of another one are no candidates. Where no manifest states an experiment, runs and prefixes tell slices apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.lineage import Lineage, RunRecord, may_follow, names_experiment, started_last
from ms_recover.planning.tree.prefixes import NO_NAMES, Experiments

_HOW = {"": "", "operator": "chosen", "start": "started last", "time": "written last"}


@dataclass(frozen=True, kw_only=True)
class TakenExperiments:
    """The experiments of which steps are considered; those of all where none is named.

    `by` is what names them: the prefixes that the program gave, the operator's choice, the last start that manifests
    state, or the time at which slices were written.
    """

    taken: tuple[str, ...] = ()
    by: Literal["", "program", "operator", "start", "time"] = ""
    step: Step | None = None
    """The step that experiments had to have to be considered."""
    names: Experiments = NO_NAMES

    def has(self, file: SliceFile) -> bool:
        """Whether a slice is of an experiment that is considered."""
        return not self.taken or self.names.of(file) in self.taken

    def own(self, files: Iterable[SliceFile]) -> list[SliceFile]:
        """Return the slices that are of an experiment that is considered."""
        return [file for file in files if self.has(file)]

    def inventory_of(self, inventory: Inventory) -> Inventory:
        """Return an inventory without the slices of other experiments, and the ranks that have no others.

        The whole one where no slice is left.
        """
        if not self.taken or not (own := self.own(inventory.slices)) or len(own) == len(inventory.slices):
            return inventory
        ranks = {file.rank for file in own}
        gone = {file.rank for file in inventory.slices} - ranks
        return replace(inventory, slices=tuple(own), ranks=tuple(rank for rank in inventory.ranks if rank not in gone))

    def why_other(self, files: Iterable[SliceFile]) -> str:
        """Return the reason why slices of other experiments are passed over, and how to take them."""
        bases = sorted({self.names.of(file) for file in files} - set(self.taken))
        is_of = list_some(map(repr, bases))
        return f"its slices are of the experiment {is_of}, and {self._text}; {advice(bases, self.by)}"

    def text_of(self, others: Mapping[str, Step]) -> str | None:
        """Return the warning that names the other experiments; None where there is none, or one was named."""
        if self.by not in ("start", "time") or not others:
            return None
        names = list_some(f"{base!r} (up to step {step})" for base, step in others.items())
        return (
            f"the slices are of several experiments, and {self._text}: passed over are those of {names}; "
            f"--run takes another one by its prefix, such as --run {next(iter(others))}"
        )

    @property
    def _text(self) -> str:
        names = " or ".join(map(repr, self.taken))
        if self.by == "program":
            return f"the prefix of this program is {names}"
        among = f" of those that have step {self.step}" if self.step is not None else ""
        return f"{names} was {_HOW[self.by]}{among}"


def advice(bases: Sequence[str], by: str = "") -> str:
    """Return how another experiment is taken."""
    if by == "program":
        return f"{' or '.join(f'run={base!r}' for base in bases)} takes it"
    return f"{' or '.join(f'--run {base}' for base in bases)} takes it"


def take_experiments(
    records: Sequence[RunRecord], files: Sequence[SliceFile], names: Experiments, options: PlanOptions
) -> TakenExperiments:
    """Return the experiments to consider: those that the operator or the program names, else the one started last.

    Where manifests state no start, or another program's slices were written behind all slices of the run that was
    started last, it is the one whose slices were written last. Where no manifest states an experiment there is no
    choice to make. Where the options name a step, only experiments that have it count.
    """
    if options.run is not None:
        if not names_experiment(records, options.run):
            return TakenExperiments(names=names)
        return TakenExperiments(taken=(options.run,), by="operator", names=names)
    if options.experiments:
        return TakenExperiments(taken=options.experiments, by="program", names=names)
    if all(record.base_prefix is None for record in records):
        return TakenExperiments(names=names)
    if options.step is not None:
        having = {names.of(file) for file in files if file.step == options.step}
        records = [record for record in records if record.is_of(having)]
        files = [file for file in files if names.of(file) in having]
    last = started_last(records)
    if last is not None:
        later = [record for record in records if may_follow(record, last)]
        if not later or any(record.is_of(last.experiments) for record in later):
            return TakenExperiments(taken=last.experiments, by="start", step=options.step, names=names)
    written = max(files, key=lambda file: (file.mtime_ns, file.path), default=None)
    taken = (names.of(written),) if written is not None else ()
    return TakenExperiments(taken=taken, by="time", step=options.step, names=names)


def other_experiments(taken: TakenExperiments, lineage: Lineage | None, files: Iterable[SliceFile]) -> dict[str, Step]:
    """Return the newest step of each experiment that is passed over, and of which no run has part in the lineage."""
    newest: dict[str, Step] = {}
    line = {base for run in (lineage.last, *lineage.parents) for base in run.experiments} if lineage else set()
    for file in files:
        base = taken.names.of(file)
        if base not in taken.taken and base not in line:
            newest[base] = max(newest.get(base, file.step), file.step)
    return dict(sorted(newest.items()))
