"""Everything steps are judged by, put together once."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from ms_recover.errors import UsageError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, SliceFile, StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.redundancy.contents import check_manifest
from ms_recover.planning.redundancy.groups import GroupMap, merge_groups
from ms_recover.planning.redundancy.stages import Stages, find_stages
from ms_recover.planning.redundancy.structure import StructureFindings, compare_structure
from ms_recover.planning.redundancy.tolerance import Tolerance
from ms_recover.planning.strangers import Origins
from ms_recover.planning.world import find_world_size

_RERUN = re.compile(r"_(\d{1,9})\Z", re.ASCII)


@dataclass(frozen=True)
class Situation:
    """What is known about a tree.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    world_size_from : str
        What the world size rests on.
    groups : GroupMap
        Who holds the same slice.
    findings : StructureFindings
        What comparing the slices' headers with each other showed.
    files : dict of Step to dict of int to list of SliceFile
        The slices by step and rank.
    ranks : frozenset of int
        Ranks that have a directory or a file.
    lost : frozenset of int
        Ranks declared lost.
    newest : bool
        Of two sound slices of one rank and step take the one modified last.
    contents : Contents
        What reading slices gave, as far as they were read.
    tolerance : Tolerance
        Which parameters may differ between peers.
    committing : frozenset of str
        Prefixes of which slices were saved with manifests, so that one without is not committed.
    strategy_files : tuple of StrategyFile
        How parameters are cut.
    """

    world_size: int
    world_size_from: str
    groups: GroupMap
    findings: StructureFindings
    files: dict[Step, dict[int, list[SliceFile]]]
    ranks: frozenset[int]
    lost: frozenset[int]
    newest: bool
    contents: Contents
    tolerance: Tolerance
    committing: frozenset[str] = frozenset()
    strategy_files: tuple[StrategyFile, ...] = ()

    def digests_of(self, file: SliceFile) -> Digests | None:
        """Return what a slice contains: as it was read, or as its manifest says; None when that is not known."""
        if file.encryption is not None:
            return None  # every encryption draws its own initial value, so equal contents differ
        return self.contents.digests.get(file.path) or (file.manifest.digests if file.manifest is not None else None)

    @cached_property
    def stages(self) -> Stages:
        """Pipeline stages and how their parameters are cut."""
        held = (file for ranks in self.files.values() for files in ranks.values() for file in files)
        told = {
            file.manifest.strategy_digest
            for file in held
            if file.manifest is not None and file.problem is None and not file.manifest.recovered
        }
        return find_stages(self.strategy_files, self.groups, self.world_size, {name for name in told if name})

    @cached_property
    def origins(self) -> Origins:
        """What holds the bytes of what, among the slices that count."""
        held = (files for ranks in self.files.values() for rank, files in ranks.items() if rank not in self.lost)
        slices = (file for files in held for file in files)
        return Origins(slices, self.groups, self.digests_of, self._are_alike)

    def _are_alike(self, one: int, other: int) -> bool:
        return self.stages.alike(one, other)  # strategy files are put together only where this is asked

    def runs(self, step: Step) -> list[str | None]:
        """Return the runs that saved slices of `step`, the one with most slices first; None when no manifest tells.

        Manifests that name no run are of a run of their own where others name one. Of equals the run that was started
        again most often comes first, by the ``_N`` that MindSpore puts behind the prefix; with `newest` the one whose
        slices were modified last.
        """
        count: Counter[str] = Counter()
        latest: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for rank, files in self.files.get(step, {}).items():
            for file in files if rank not in self.lost else ():
                if file.problem is None and file.manifest is not None:
                    run, again = file.manifest.run_id, _RERUN.search(file.prefix)
                    count[run] += 1
                    age = (file.mtime_ns if self.newest else 0, int(again[1]) if again else 0)
                    latest[run] = max(latest[run], age)
        if set(count) <= {""}:
            return [None]
        return [*sorted(sorted(count), key=lambda run: (count[run], latest[run]), reverse=True)]


def check_rank(rank: int, world_size: int, world_size_from: str) -> None:
    """Refuse a rank that is not in the world.

    Raises
    ------
    UsageError
        It says which are.
    """
    if not 0 <= rank < world_size:
        raise UsageError(
            f"there is no rank {rank}: the ranks are 0 to {world_size - 1} by {world_size_from}; "
            "give another rank or --world-size"
        )


def understand(
    inventory: Inventory, options: PlanOptions = DEFAULT_PLAN, contents: Contents = NOTHING_READ
) -> Situation:
    """Put together what steps are judged by; slices of lost ranks are no evidence.

    Raises
    ------
    UsageError
        When a lost rank is not in the world, or the world size cannot be.
    ContradictionError
        When rank lists contradict each other.
    """
    lost = options.lost
    groups = merge_groups(inventory.group_files, inventory.slices)
    size, size_from = find_world_size(inventory, options.world_size)
    for rank in sorted(lost):
        if not 0 <= rank < size:
            raise UsageError(
                f"rank {rank} is declared lost, but the ranks are 0 to {size - 1} by {size_from}: "
                "give another rank or --world-size"
            )
    files: dict[Step, dict[int, list[SliceFile]]] = defaultdict(lambda: defaultdict(list))
    slices = sorted(inventory.slices, key=lambda file: (file.rank, file.step, file.path))
    for file in slices:
        files[file.step][file.rank].append(file)
    count = [file for file in slices if file.rank not in lost]
    telling = [file for file in count if check_manifest(file, size, groups.of(file.rank)) is None]
    return Situation(
        world_size=size,
        world_size_from=size_from,
        groups=groups,
        findings=compare_structure(telling, groups),
        files={step: dict(ranks) for step, ranks in files.items()},
        ranks=frozenset(inventory.ranks),
        lost=frozenset(lost),
        newest=options.newest,
        contents=contents,
        tolerance=Tolerance.with_more(options.tolerate),
        strategy_files=tuple(sorted(inventory.strategy_files, key=lambda file: file.path)),
        committing=frozenset(
            file.prefix for file in count if file.manifest and file.manifest.provenance.kind == "saved"
        ),
    )
