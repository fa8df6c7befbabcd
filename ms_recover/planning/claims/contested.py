"""Rank lists and layouts that contradict each other without manifests: contents decide, else neither is believed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import prod

from ms_recover.model.contents import Contents
from ms_recover.model.grouped import grouped
from ms_recover.model.groups import ascending
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.steps import Step
from ms_recover.planning.claims.groups import GroupMap
from ms_recover.planning.claims.stages import Stages

Group = tuple[int, ...]

_MOST_STEPS = 2
"""Steps that are read: a slice in the wrong place is of one."""


@dataclass(frozen=True, kw_only=True)
class Contested:
    """Rank lists whose ranks hold different parts by the layouts, and what slices show of who is right."""

    reasons: Mapping[Group, str]
    """The lists, each with the contradiction."""
    stages: Stages
    slices: Sequence[SliceFile]
    contents: Contents

    def split(self, groups: GroupMap) -> GroupMap:
        """Return the groups, in which only ranks that lists and layouts both call the same are together.

        Those of a stage in which slices show that its lists are right stay as they are.
        """
        members, doubted = dict(groups.members), dict(groups.contested)
        for group, why in self.reasons.items():
            if self._shown_right.isdisjoint(self._stages_of(group)):
                for ranks in self._classes(group):
                    members.update(dict.fromkeys(ranks, ranks))
                    doubted.update(dict.fromkeys(ranks, f"{why}, and no slices show which is right"))
        return replace(groups, members=members, contested=doubted)

    @cached_property
    def trials(self) -> tuple[SliceFile, ...]:
        """The slices that show which is right, of the newest steps at which a list has two that can be compared."""
        files: dict[str, SliceFile] = {}
        steps: dict[int, set[Step]] = defaultdict(set)
        for step, group, slices in self._ballots:
            for stage in self._stages_of(group):
                if step in steps[stage] or len(steps[stage]) < _MOST_STEPS:
                    steps[stage].add(step)
                    files.update({file.path: file for file in slices})
        return tuple(files.values())

    @cached_property
    def shows_layouts(self) -> bool:
        """Whether slices show that the layouts are right against each list.

        No ranks of different classes hold the same at a step that was read. Most classes of several ranks do, and these
        are two at least, or one at two steps; or they did when a slice was recovered by layouts alone.
        """
        several: Counter[Group] = Counter()
        broken: Counter[Group] = Counter()
        for _, group, slices in self._read:
            sides = self._sides(group, slices)
            kinds = [{self._class_of(file.rank) for file in side} for side in sides]
            if any(len(kind) > 1 for kind in kinds):
                return False
            parts = Counter(kind for kind_of in kinds for kind in kind_of)
            members = Counter(self._class_of(file.rank) for file in slices)
            several[group] += sum(members[kind] > 1 and count == 1 for kind, count in parts.items())
            broken[group] += sum(count > 1 for count in parts.values())
        return bool(self.reasons) and all(
            several[path] > max(1, broken[path]) or path in self._decided for path in self.reasons
        )

    @cached_property
    def _decided(self) -> frozenset[Group]:
        """The lists that were not believed when a slice of theirs was recovered: its manifest names its rank alone."""
        of = {rank: group for group in self.reasons for rank in group}
        manifests = ((file, file.manifest) for file in self.slices if file.manifest is not None)
        return frozenset(
            of[file.rank]
            for file, manifest in manifests
            if manifest.recovered and manifest.provenance.evidence == "layout" and manifest.group == (file.rank,)
            if file.rank in of
        )

    @cached_property
    def _shown_right(self) -> frozenset[int]:
        """The stages in which more than half of the slices of a list are equal in what the layouts cut between them."""
        shown: dict[Group, list[bool]] = defaultdict(list)
        for _, group, slices in self._read:
            largest = max(self._sides(group, slices), key=len)
            kinds = {self._class_of(file.rank) for file in largest}
            shown[group].append(len(kinds) > 1 and 2 * len(largest) > len(slices))
        return frozenset(stage for group, seen in shown.items() if all(seen) for stage in self._stages_of(group))

    @cached_property
    def _read(self) -> list[tuple[Step, Group, tuple[SliceFile, ...]]]:
        return [
            (step, group, slices)
            for step, group, slices in self._ballots
            if all(self._digests(file) is not None or self.contents.knows(file) for file in slices)
        ]

    def _sides(self, group: Group, slices: Sequence[SliceFile]) -> list[list[SliceFile]]:
        """Return the slices of a list, those that are equal together."""
        sides: list[list[SliceFile]] = []
        for file in slices:
            side = next((side for side in sides if self._is_equal(group, side[0], file)), None)
            if side is None:
                sides.append([file])
            else:
                side.append(file)
        return sides

    def _is_equal(self, group: Group, first: SliceFile, second: SliceFile) -> bool:
        """Whether most bytes are equal of the parameters of which two ranks hold different parts by the layouts."""
        if first.inode is not None and first.inode == second.inode:
            return False
        names = self._cut_between(first.rank, second.rank)
        if self._class_of(first.rank) == self._class_of(second.rank):
            names = frozenset().union(*(self._cut_between(a, b) for a, b in combinations(group, 2)))
        ours, theirs = self._values(first, names), self._values(second, names)
        balance = sum(size if theirs.get(name) == (digest, size) else -size for name, (digest, size) in ours.items())
        return balance > 0

    def _values(self, file: SliceFile, names: frozenset[str]) -> dict[str, tuple[str, int]]:
        digests = self._digests(file)
        if digests is None or len(digests.parameters) != len(file.parameters):  # encrypted, or of other contents
            return {}
        return {
            parameter.name: (digest, parameter.nbytes)
            for parameter, digest in zip(file.parameters, digests.parameters, strict=True)
            if prod(parameter.shape) > 1 and (parameter.name in names or not names)
        }

    def _digests(self, file: SliceFile) -> Digests | None:
        stated = file.manifest.digests if file.manifest is not None else None
        return self.contents.digests.get(file.path) or stated

    @cached_property
    def _ballots(self) -> list[tuple[Step, Group, tuple[SliceFile, ...]]]:
        """The slices of each list that one job saved at a step, if two can be compared, the newest step first."""
        of = {rank: group for group in self.reasons for rank in group}
        ballots: dict[tuple[Step, str, Group], list[SliceFile]] = defaultdict(list)
        for file in self.slices:
            recovered = file.manifest is not None and file.manifest.recovered
            if file.rank in of and file.problem is None and file.encryption is None and not recovered:
                ballots[file.step, file.prefix, of[file.rank]].append(file)
        several = (
            (step, group, tuple(sorted(files, key=lambda file: (file.rank, file.path))))
            for (step, _, group), files in ballots.items()
            if len({self._class_of(file.rank) for file in files}) > 1
        )
        return sorted(several, key=lambda ballot: (ballot[0], ballot[1]), reverse=True)

    def _cut_between(self, one: int, other: int) -> frozenset[str]:
        """Return the parameters of which two ranks of a stage hold different parts; none where all are different."""
        if self.stages.of(one) != self.stages.of(other):
            return frozenset()
        return frozenset().union(*(cut.names for cut in self.stages.cuts_between(one, other)))

    def _stages_of(self, group: Group) -> frozenset[int]:
        return frozenset(self.stages.of(rank) for rank in group)

    def _class_of(self, rank: int) -> tuple[int, Group]:
        return self.stages.of(rank), self.stages.families.get(rank, ())

    def _classes(self, group: Group) -> list[Group]:
        """Return the ranks of a list that are the same by the layouts as well, if these name every parameter."""
        cells = grouped(group, self._class_of)
        return [
            part
            for (stage, _), ranks in cells.items()
            for part in ([tuple(ranks)] if stage in self._complete else [(rank,) for rank in ranks])
        ]

    @cached_property
    def _complete(self) -> frozenset[int]:
        """The stages whose layouts name every parameter but scalars; those without layouts hold nothing against it."""
        stages = {stage for group in self.reasons for stage in self._stages_of(group)}
        return frozenset(
            stage for stage in stages if stage not in self.stages.layouts or self.stages.names_all(stage, self.slices)
        )


def find_contested(
    wrong: Mapping[Group, str],
    stages: Stages,
    slices: Sequence[SliceFile],
    contents: Contents,
    settled: Iterable[int],
) -> Contested:
    """Return the lists that layouts contradict by different parts, without those that something stronger states.

    A manifest that names the same ranks does, and so does the operator, who settles the lists of some ranks.
    """
    stated = {ascending(file.manifest.group) for file in slices if file.manifest is not None}
    alike, known = stages.families, frozenset(settled)
    cut = {
        group: why
        for group, why in wrong.items()
        if group not in stated
        and known.isdisjoint(group)
        and len({(stages.of(rank), alike.get(rank)) for rank in group}) > 1
    }
    return Contested(reasons=cut, stages=stages, slices=slices, contents=contents)
