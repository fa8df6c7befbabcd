"""Decide which ranks may give a parameter of a slice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ms_recover.model.compose import MissingRegion
from ms_recover.model.slices import Parameter
from ms_recover.model.texts import list_some
from ms_recover.planning.claims.regions import Box, cover, volume
from ms_recover.planning.judging.splits import differing_elsewhere, settle_split
from ms_recover.planning.judging.votes import hold_vote
from ms_recover.planning.supply.expected_parameters import find_own_manifest, stated_contents
from ms_recover.planning.supply.parameters import ParameterIndex, Way
from ms_recover.planning.tree.facts import SliceFacts

_NOT_THESE = "it is not the strategy file of these slices, or they are damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The ranks that may give a region of a parameter.

    Parameters
    ----------
    region : Box or None
        Of the global tensor; None without a layout, when every rank of the stage holds all of it.
    ranks : tuple of int
        Ranks whose slices give it as it is, ascending; at most `MOST_COMPARED`.
    parts : tuple of (Box, Box, tuple of int)
        Where no rank does: parts of it that lie in larger regions, those regions, and the ranks that hold these.
    missing : tuple of MissingRegion
        What nobody gives.
    problem : str or None
        The reason why it cannot be taken from anyone.
    disputed : bool
        It is held, but the sources differ and nothing settles who is right.
    tolerated : bool
        The sources differ, as they may, or their manifests say that each rank has its own.
    """

    region: Box | None
    ranks: tuple[int, ...] = ()
    parts: tuple[tuple[Box, Box, tuple[int, ...]], ...] = ()
    missing: tuple[MissingRegion, ...] = ()
    problem: str | None = None
    disputed: bool = False
    tolerated: bool = False


def why_perhaps_cut(ranks: Sequence[int]) -> str:
    """Return why a parameter without layout is not taken from some ranks: it may be cut between them and others."""
    held = f"rank {ranks[0]} alone has it"
    if len(ranks) > 1:
        held = f"only ranks {list_some(ranks)} are known to have it, which may hold one part"
    return f"no layout states how it is cut, and {held}: it may be a part of their own"


def _nobody(settled: Settled, parameter: Parameter, problem: str, *, disputed: bool = False) -> Settled:
    """Return that nobody gives a region."""
    whole = settled.region or tuple((0, size) for size in parameter.shape)
    gone = MissingRegion(parameter.name, whole, parameter.nbytes, problem)
    return replace(settled, ranks=(), missing=(gone,), problem=problem, disputed=disputed)


class Settlement:
    """Settles, parameter by parameter, which slices of a step are right."""

    def __init__(self, index: ParameterIndex) -> None:
        self.index = index
        self._of_block: dict[tuple[tuple[int, ...], Parameter], Settled] = {}
        self._doubts: dict[tuple[int, str], str | None] = {}
        self._unlike: dict[tuple[int, str], str | None] = {}
        self._named: dict[int, bool] = {}
        self._refuted: dict[int, bool] = {}
        self._elsewhere: dict[tuple[int, int], frozenset[str]] = {}
        self._stated: dict[int, dict[str, str]] = {}
        self._lost: dict[int, Mapping[tuple[int, ...], Sequence[int]]] = {}

    def settle(self, rank: int, parameter: Parameter) -> Settled:
        """Return the ranks that may give what a rank's slice should hold of a parameter, as that slice lists it."""
        block = self.index.block(rank, parameter.name)
        if block is None or rank in self.index.slices:  # what a rank has itself goes before what others have
            return self._settle(rank, parameter)
        key = (block, parameter)
        if key not in self._of_block:
            self._of_block[key] = self._settle(rank, parameter)
        return self._of_block[key]

    def settle_for(self, rank: int, parameter: Parameter) -> Settled:
        """Return the same without the ranks from which the rank's own slice of another step differed there.

        Nor does a rank give what the manifest of the rank's own slice of this step states otherwise.
        """
        settled = self._as_stated(rank, parameter, self.settle(rank, parameter))
        if rank in self.index.slices:
            return settled
        left = tuple(giver for giver in settled.ranks if parameter.name not in self._differing(rank, giver))
        if len(left) == len(settled.ranks) or self.index.may_differ(parameter.name, settled.ranks):
            return settled
        if left:
            return replace(settled, ranks=left)
        problem = f"rank {settled.ranks[0]} holds it, but at another step manifests of both state different contents"
        return _nobody(settled, parameter, problem, disputed=True)

    def _as_stated(self, rank: int, parameter: Parameter, settled: Settled) -> Settled:
        """Return ranks without those whose contents are not those that the manifest of the rank's own slice states."""
        name, ranks = parameter.name, settled.ranks
        stated = self._stated_of(rank).get(name)
        if stated is None or settled.tolerated:
            return settled
        left = tuple(giver for giver in ranks if giver == rank or self.index.digest(giver, name) in (None, stated))
        if len(left) == len(ranks):
            return settled
        if left:
            return replace(settled, ranks=left)
        if self.index.may_differ(name, ranks):
            return replace(settled, tolerated=True)
        problem = f"rank {ranks[0]} holds other contents of it than the manifest of the rank's own slice states"
        return _nobody(settled, parameter, problem)

    def _stated_of(self, rank: int) -> dict[str, str]:
        """Return by parameter the contents that the manifest of a rank's own slice states."""
        if rank not in self._stated:
            index = self.index
            self._stated[rank] = stated_contents(find_own_manifest(index.facts, index.judgement, rank))
        return self._stated[rank]

    def _differing(self, rank: int, source: int) -> frozenset[str]:
        key = (rank, source)
        if key not in self._elsewhere:
            self._elsewhere[key] = differing_elsewhere(self.index.facts, rank, self.index.slices[source])
        return self._elsewhere[key]

    def settle_region(self, rank: int, parameter: Parameter) -> Settled:
        """Return the ranks that may give the region that a rank's slice should hold, that rank one among them.

        Nobody gives it where `contradicted` says so.
        """
        settled = self._settle(rank, parameter, own_first=False)
        against = self.contradicted(rank, parameter, settled.ranks)
        if against is None or against.problem is None:
            return settled
        return _nobody(settled, parameter, against.problem, disputed=against.disputed)

    def contradicted(self, rank: int, parameter: Parameter, ranks: Sequence[int]) -> Settled | None:
        """Return that nobody gives what ranks hold of the region that a rank holds, because lost slices held others.

        Their manifests of this step state other contents, and as many as manifests prove those; or at other steps as
        many lost ranks as there are ranks that hold it differ from these, as `settle_for` says of one of them.
        """
        name = parameter.name
        lost = self._lost_alike(rank, name) if ranks else ()
        if not lost or self.index.may_differ(name, ranks):
            return None
        right = self.index.digest(ranks[0], name)
        stated = [peer for peer in lost if right is not None and self._stated_of(peer).get(name) not in (None, right)]
        if stated and len(stated) >= sum(self.index.slices[peer].proven for peer in ranks):
            theirs = f"the manifest states that the slice of rank {stated[0]} left"
            return Settled(region=None, problem=f"rank {ranks[0]} holds other contents of it than {theirs}")
        gone = (peer for peer in lost if peer not in self.index.slices)
        apart = [peer for peer in gone if all(name in self._differing(peer, other) for other in ranks)]
        if len(apart) >= len(ranks):
            why = f"rank {ranks[0]} holds it, but at another step manifests of rank {apart[0]} state different contents"
            return Settled(region=None, problem=why, disputed=True)
        return None

    def _lost_alike(self, rank: int, name: str) -> Sequence[int]:
        """Return the ranks that hold the part that a rank holds, and whose slices are not sound but left something.

        Without a layout they are of all stages.
        """
        index, facts = self.index, self.index.facts
        stage = index.stages.of(rank)
        way = index.way(stage, name)
        number = way.number if way is not None else -1
        if number not in self._lost:
            by_part: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for peer in index.stages.ranks(stage) if way is not None else range(facts.world.ranks):
                left = self._stated_of(peer) or any(facts.at(step, peer) for step in facts.steps)
                if left and not index.is_sound(peer):
                    by_part[way.cell(peer).index if way is not None else ()].append(peer)
            self._lost[number] = by_part
        return self._lost[number].get(way.cell(rank).index if way is not None else (), ())

    def _settle(self, rank: int, parameter: Parameter, *, own_first: bool = True) -> Settled:
        settled = self._compare(rank, parameter, own_first=own_first)
        if settled.ranks or not parameter.nbytes:
            return settled
        if settled.problem is not None or settled.region is None:
            gone = _nobody(settled, parameter, settled.problem or "no sound slice has it", disputed=settled.disputed)
            return replace(gone, problem=settled.problem)
        boxes = self.index.whole_tensors(rank, parameter)
        parts, uncovered = cover(settled.region, [box for box, _ in boxes])
        item = parameter.item_size
        return replace(
            settled,
            parts=tuple((box, *boxes[number]) for number, box in parts),
            missing=tuple(
                MissingRegion(parameter.name, box, volume(box) * item, "no sound slice has it") for box in uncovered
            ),
        )

    def _compare(self, rank: int, parameter: Parameter, *, own_first: bool) -> Settled:
        """Compare the sources' contents; a majority wins, and so does the only side with a proven manifest."""
        index, name = self.index, parameter.name
        stage, tolerance = index.stages.of(rank), index.facts.tolerance
        local = index.way(stage, name) is None
        ranks = index.sources(rank, parameter)
        if local and name in index.stages.layouts.get(stage, {}):
            return Settled(region=None, problem="its layout in the strategy file does not fit the slices")
        group = index.facts.groups.of(rank)  # a rank list claims more than that ranks are of one stage
        members = tuple(member for member in ranks if index.facts.groups.of(member) == group)
        rank_local = index.is_rank_local(name, members)
        if local and rank not in ranks:
            ranks = members or ranks
            if ranks and not (parameter.is_counter or members or index.is_shown_whole(name, ranks, rank)):
                return Settled(region=None, problem=why_perhaps_cut(ranks))
        region = index.region(rank, parameter)
        if rank in ranks and own_first:  # good in the rank's own damaged slice
            return Settled(region=region, ranks=(rank,))
        sides: dict[str, list[int]] = defaultdict(list)
        for other in ranks if index.are_read else ():
            digest = index.digest(other, name)
            if digest is not None:
                sides[digest].append(other)
        if len(sides) < 2:
            distrusted = self.distrusted(stage, name) if ranks else None
            if distrusted is not None:
                return replace(distrusted, region=region)
            return Settled(region=region, ranks=ranks, tolerated=rank_local)
        shown = parameter.is_counter or bool(members)
        if (rank_local or tolerance.covers(name)) and (not local or shown):
            return Settled(region=region, ranks=ranks, tolerated=True)
        ballots = [index.slices[other] for side in sides.values() for other in side]
        vote = hold_vote(ballots, tolerance, (name,))
        if not (local and members):
            vote = settle_split(index.facts, ballots, vote, (name,))
        if vote.disagreement is None and (not local or (shown and any(ballot.proven for ballot in ballots))):
            winners = tuple(other for other in ranks if index.slices[other].path in vote.winners)
            return Settled(region=region, ranks=winners)
        if local:  # without a layout it is the same everywhere or each rank's own; a majority does not show which
            return Settled(region=region, problem="it differs from rank to rank, and only the rank itself had its own")
        parts = " and ".join(f"rank {side[0]}" for side in list(sides.values())[:2])
        problem = f"{parts} hold different contents, and nothing settles who is right"
        return Settled(region=region, problem=problem, disputed=True)

    def distrusted(self, stage: int, name: str) -> Settled | None:
        """Return that nobody gives a parameter, because contents show that its layout is not that of the slices."""
        if not self.index.are_read:
            return None
        doubt = self._why_doubted(stage, name)
        unlike = self._why_unlike_elsewhere(stage, name) if doubt is None else None
        why = doubt or unlike
        return Settled(region=None, problem=why, disputed=doubt is not None) if why is not None else None

    def _why_doubted(self, stage: int, name: str) -> str | None:
        """Return a reason to distrust the layout of a parameter: usually that ranks it calls replicas differ.

        The strategy file is of another layout then, or slices are damaged; where manifests name it, it is trusted.
        """
        index, key = self.index, (stage, name)
        way = index.way(stage, name)
        if way is None or self._is_named(stage) or index.may_differ(name, index.by_stage.get(stage, ())):
            return None
        if key not in self._doubts:
            unlike, alike = self._compare_cells(way, name)
            tied = len(unlike) == alike
            self._doubts[key] = None
            if unlike and (
                len(unlike) > alike or (tied and (self._is_refuted_by_saved(stage) or self._is_split(way, name)))
            ):
                first, other = unlike[0]
                self._doubts[key] = (
                    f"by the layouts in {index.stages.paths[stage]} ranks {first} and {other} hold the same of it, but "
                    f"their contents differ: {_NOT_THESE}"
                )
        return self._doubts[key]

    def _compare_cells(self, way: Way, name: str) -> tuple[list[tuple[int, int]], int]:
        """Return two ranks of each part of a parameter of which holders differ, and count the parts with equal ones."""
        alike, unlike = 0, []
        for ranks in way.holders.values():
            digests = {rank: self.index.digest(rank, name) for rank in ranks if self.index.find(rank, name) is not None}
            known = [rank for rank, digest in digests.items() if digest is not None]
            odd = next((rank for rank in known if digests[rank] != digests[known[0]]), None)
            if odd is not None:
                unlike.append((known[0], odd))
            elif len(known) > 1:
                alike += 1
        return unlike, alike

    def _is_split(self, way: Way, name: str) -> bool:
        """Whether several slices that training saved hold one thing of a part and several another: damage is of one."""
        for ranks in way.holders.values():
            sure = [rank for rank in ranks if self.index.find(rank, name) is not None and self.index.slices[rank].saved]
            counts = Counter(self.index.digest(rank, name) for rank in sure)
            if sum(count > 1 for count in counts.values()) > 1:
                return True
        return False

    def _is_refuted_by_saved(self, stage: int) -> bool:
        """Whether slices that training saved so differ in several parameters, in as many parts as hold the same.

        Damage before a save strikes one parameter of one slice.
        """
        if stage not in self._refuted:
            index, several = self.index, 0
            for name in index.stages.layouts.get(stage, {}):
                way = index.way(stage, name)
                unlike, alike = self._compare_cells(way, name) if way is not None else ([], 0)
                saved = all(index.slices[rank].saved for pair in unlike for rank in pair)
                several += bool(unlike) and saved and len(unlike) >= alike
            self._refuted[stage] = several > 1
        return self._refuted[stage]

    def _why_unlike_elsewhere(self, stage: int, name: str) -> str | None:
        """Return the same reason where no two slices that give it show it: by disputed ones, or by another step.

        Nothing else of this step is disputed then, but the parameter has no source that is known to hold it.
        """
        index, key = self.index, (stage, name)
        way = index.way(stage, name)
        if way is None or self._is_named(stage) or index.may_differ(name, index.by_stage.get(stage, ())):
            return None
        if key not in self._unlike:
            known = ([rank for rank in ranks if index.digest(rank, name) is not None] for ranks in way.holders.values())
            shown = any(len(known_ranks) > 1 for known_ranks in known)
            self._unlike[key] = None if shown else self._compare_elsewhere(stage, way, name)
        return self._unlike[key]

    def _compare_elsewhere(self, stage: int, way: Way, name: str) -> str | None:
        """Return the reason where more parts differ than agree among slices of the run that are of several rank lists.

        That is at this step or the nearest other one, where there are such.
        """
        facts, step = self.index.facts, self.index.judgement.step
        for other in sorted(facts.steps, key=lambda at: (at <= step, at), reverse=True):
            cells: dict[tuple[int, ...], list[SliceFacts]] = defaultdict(list)
            for rank in facts.stages.ranks(stage):
                slices = (slice_ for slice_ in facts.at(other, rank) if self._is_witness(slice_))
                cells[way.cell(rank).index] += [slice_ for slice_ in slices if slice_.digest_of(name) is not None]
            several = [slices for slices in cells.values() if len({slice_.group for slice_ in slices}) > 1]
            unlike = [slices for slices in several if len({slice_.digest_of(name) for slice_ in slices}) > 1]
            if 2 * len(unlike) > len(several):
                first, *others = unlike[0]
                odd = next(slice_ for slice_ in others if slice_.digest_of(name) != first.digest_of(name))
                return (
                    f"by the layouts in {facts.stages.paths[stage]} ranks {first.rank} and {odd.rank} hold the same of "
                    f"it, but at step {other} their contents differ: {_NOT_THESE}"
                )
            if several:
                return None
        return None

    def _is_witness(self, slice_: SliceFacts) -> bool:
        """Whether a slice shows how a parameter is cut: of this step one that is sound or disputed."""
        judgement, lost = self.index.judgement, self.index.facts.lost
        if slice_.file.step == judgement.step and slice_.rank not in lost:
            return judgement.slices[slice_.path].status in ("sound", "undecided")
        sound = slice_.manifest_problem is None and slice_.content_problem is None and slice_.rank not in lost
        return sound and judgement.run.why_foreign(slice_.file) is None

    def why_outvoted(self, rank: int, wanted: Iterable[tuple[Parameter, Settled]]) -> str | None:
        """Return a reason to distrust the majorities that settled parts of a slice.

        If half of the holders lose some vote, the layouts belong elsewhere. What the manifest of the rank's own slice
        states needs no vote.
        """
        index = self.index
        stage = index.stages.of(rank)
        if self._is_named(stage) or not index.are_read:
            return None
        holders: set[int] = set()
        odd: set[int] = set()
        stated = self._stated_of(rank)
        for parameter, settled in wanted:
            if settled.ranks and settled.region is not None and not settled.tolerated:
                right = index.digest(settled.ranks[0], parameter.name)
                if right is not None and right == stated.get(parameter.name):
                    continue
                others = index.sources(rank, parameter)
                holders.update(others)
                odd.update(giver for giver in others if index.digest(giver, parameter.name) not in (None, right))
        if not odd or 2 * len(odd) < len(holders):
            return None
        return (
            f"of ranks {sorted(holders)}, which hold the same by the layouts in {index.stages.paths[stage]}, each of "
            f"{sorted(odd)} differs somewhere: {_NOT_THESE}"
        )

    def _is_named(self, stage: int) -> bool:
        """Whether training says that it saved slices of a stage under the strategy file that is used."""
        if stage not in self._named:
            files = (self.index.slices[rank].file for rank in self.index.by_stage.get(stage, ()))
            self._named[stage] = any(map(self.index.stages.is_named_by, files))
        return self._named[stage]
