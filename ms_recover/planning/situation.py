"""Everything steps are judged by, put together once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from ms_recover.errors import UsageError
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.steps import Step
from ms_recover.planning.world import find_world_size
from ms_recover.redundancy.contents import Contents
from ms_recover.redundancy.groups import GroupMap, merge_groups
from ms_recover.redundancy.structure import StructureFindings, compare_structure
from ms_recover.redundancy.tolerance import Tolerance


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

    def runs(self, step: Step) -> list[str | None]:
        """Return the runs that saved slices of `step`, the one with most slices first; None when no manifest tells."""
        count: Counter[str] = Counter()
        latest: dict[str, int] = defaultdict(int)
        for rank, files in self.files.get(step, {}).items():
            for file in files if rank not in self.lost else ():
                if file.problem is None and file.manifest is not None and file.manifest.run_id:
                    count[file.manifest.run_id] += 1
                    latest[file.manifest.run_id] = max(latest[file.manifest.run_id], file.mtime_ns)
        return [*sorted(count, key=lambda run: (-count[run], -latest[run], run))] or [None]


def understand(
    inventory: Inventory,
    *,
    lost: Collection[int] = (),
    world_size: int | None = None,
    newest: bool = False,
    contents: Contents | None = None,
    tolerance: Tolerance | None = None,
) -> Situation:
    """Put together what steps are judged by; slices of lost ranks are no evidence.

    Raises
    ------
    UsageError
        When a lost rank is not in the world, or the world size cannot be.
    ContradictionError
        When rank lists contradict each other.
    """
    groups = merge_groups(inventory.group_files, inventory.slices)
    size, size_from = find_world_size(inventory, world_size)
    for rank in sorted(lost):
        if not 0 <= rank < size:
            raise UsageError(
                f"rank {rank} is declared lost, but the ranks are 0 to {size - 1} by {size_from}: "
                "give another rank or --world-size"
            )
    files: dict[Step, dict[int, list[SliceFile]]] = defaultdict(lambda: defaultdict(list))
    for file in inventory.slices:
        files[file.step][file.rank].append(file)
    return Situation(
        world_size=size,
        world_size_from=size_from,
        groups=groups,
        findings=compare_structure([file for file in inventory.slices if file.rank not in lost], groups),
        files={step: dict(ranks) for step, ranks in files.items()},
        ranks=frozenset(inventory.ranks),
        lost=frozenset(lost),
        newest=newest,
        contents=contents or Contents(),
        tolerance=tolerance or Tolerance(),
    )
