"""Who holds what at one step: the blocks that recovery takes bytes from, and the losses that leave one without holder.

It follows the rules of `ms_recover.planning.supply`: a lost slice is copied from its group, else composed by layouts.
So a loss is fatal for a rank when it takes the rest of its group, or what says who that is, and besides every holder of
some block of it, or the strategy files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import comb

from ms_recover.model.plan import RejectedStep, StepAssessment
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.planning.audit.blocks import (
    NOTHING_TIED,
    BlockKind,
    HeldBlock,
    Ranks,
    StepHolders,
    block_text,
    join_parts,
    some_ranks,
)
from ms_recover.planning.audit.doubts import Doubts
from ms_recover.planning.audit.evidence import Evidence, find_evidence
from ms_recover.planning.audit.families import minimal
from ms_recover.planning.choice import Assess, AssessedPart, assess_candidate, candidates_of, judge_each
from ms_recover.planning.judging.compare_blocks import compare_blocks
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.supply.compose import find_composable
from ms_recover.planning.supply.expected_parameters import NotComposableError
from ms_recover.planning.supply.parameters import Way
from ms_recover.planning.supply.supply import Supply
from ms_recover.planning.tree.candidates import Candidate
from ms_recover.planning.tree.facts import Facts, SliceFacts

_MOST_TIES = 2000


def find_holders(supply: Supply, evidence: Evidence, ties: Mapping[Ranks, str] = NOTHING_TIED) -> StepHolders:
    """Return who holds what at a step, as the slices of one run, where every rank can be recovered as it is.

    `evidence` is that of the supply's facts; `ties` are losses that end the search for a step before it comes to this
    one, each with the reason.
    """
    return _Finding(supply, evidence).found(ties)


class _Finding:
    def __init__(self, supply: Supply, evidence: Evidence) -> None:
        self.supply, self.facts, self.judgement = supply, supply.facts, supply.judgement
        self.index, self.sound, self.kept = supply.index, supply.sound, supply.kept
        self.copies = supply.copies
        self.idle = self.facts.idle(self.judgement.step)
        self.evidence = evidence
        self.doubts = Doubts(self.index, evidence)
        having = {*self.sound, *self.kept}
        self.missing = frozenset(rank for rank in range(self.facts.world.ranks) if rank not in having) - self.idle
        self._no_copies: dict[int, tuple[Ranks, Ranks | None]] = {}
        self._assumed = False

    def found(self, ties: Mapping[Ranks, str]) -> StepHolders:
        """Return what was found."""
        by_rank: dict[int, list[HeldBlock]] = defaultdict(list)
        claimed: list[tuple[HeldBlock, Sequence[int]]] = []
        whole: list[int] = []
        # A slice that can be composed needs blocks; one that can only be copied is a block by itself.
        for stage, ranks in self._by_stage().items():
            if self._is_whole(stage, ranks[0]):
                whole += ranks
                continue
            for block, needing in self._blocks_of_stage(stage, ranks):
                claimed.append((block, needing))
                for rank in needing:
                    by_rank[rank].append(block)
        sizes = self._sizes()
        claimed += self._whole_slices(whole, sizes)
        lost = dict(self._dealt_lists())
        for loss, text in self._fatal(whole, by_rank):
            lost.setdefault(loss, text)
        # Who is right may be undecided after a loss: no older step is tried then, whatever holders are left.
        tied = {**ties, **find_ties(self.supply, [(block.holders, ranks) for block, ranks in claimed])}
        why = {**lost, **tied}
        family = minimal(why)
        return StepHolders(
            step=self.judgement.step,
            ranks=self.facts.world.ranks,
            blocks=tuple(block for block, _ in claimed),
            groups={rank: group for rank in range(self.facts.world.ranks) if (group := self.copies(rank))},
            sizes=sizes,
            parts=by_rank,
            missing=self.missing,
            family=family,
            sure=minimal(lost) if tied else family,
            why={loss: why[loss] for loss in family},
            ties=tied,
            assumed=self._assumed,
        )

    def _by_stage(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for rank in range(self.facts.world.ranks):
            if rank not in self.idle:
                found[self.facts.stages.of(rank)].append(rank)
        return found

    def _is_whole(self, stage: int, rank: int) -> bool:
        """Whether slices of a stage, such as that of a rank, can only be copied whole."""
        try:
            find_composable(self.supply, rank)
        except NotComposableError:
            return True
        return stage not in self.index.kinds

    def _sizes(self) -> dict[int, int]:
        sizes = {rank: slice_.file.size for rank, slice_ in {**self.kept, **self.sound}.items()}
        usual = {self.facts.stages.of(rank): size for rank, size in reversed(sizes.items())}
        for rank in self.missing:
            like = next(iter(self.copies(rank)), None)
            sizes[rank] = sizes[like] if like is not None else usual.get(self.facts.stages.of(rank), 0)
        return sizes

    def _whole_slices(
        self, ranks: Iterable[int], sizes: Mapping[int, int]
    ) -> Iterator[tuple[HeldBlock, Sequence[int]]]:
        """Yield whole slices that are copied, each with the ranks of its group."""
        done: set[tuple[int, ...]] = set()
        for rank in ranks:
            group = self.copies(rank) or ((rank,) if rank in self.sound else ())
            if group and group not in done:
                done.add(group)
                source = self.facts.groups.sources.get(rank, "nothing says who else holds it")
                kind = BlockKind(stage=self.facts.stages.of(rank), names=(), cut="", source=source)
                yield HeldBlock(kind=kind, holders=group, bytes=sizes[rank]), self.facts.groups.of(rank)

    def _blocks_of_stage(self, stage: int, ranks: Sequence[int]) -> Iterator[tuple[HeldBlock, Sequence[int]]]:
        """Yield the blocks of a stage, each with the ranks that need it."""
        index, source = self.index, self.facts.stages.paths[stage]
        kinds = index.kinds[stage]
        alike: dict[tuple[int | None, tuple[Parameter | None, ...]], list[str]] = defaultdict(list)
        names = dict.fromkeys(name for kind in kinds for name in index.slices[kind[0]].listed.index)
        anonymous: dict[tuple[Parameter | None, ...], tuple[Parameter | None, ...]] = {}
        for name in names:
            way = index.way(stage, name)
            shapes = tuple(_shape(index.find(kind[0], name)) for kind in kinds)
            same = anonymous.setdefault(shapes, shapes) if len(set(shapes) - {None}) > 1 else _listed(shapes)
            alike[way.number if way is not None else None, same].append(name)
        rank_kind = {rank: number for number, kind in enumerate(kinds) for rank in kind}
        for alike_names in alike.values():
            way = index.way(stage, alike_names[0])
            if way is None:
                for name in alike_names:
                    yield from self._uncut(stage, name, ranks)
                continue
            kind = BlockKind(stage=stage, names=tuple(sorted(alike_names)), cut=_cut_text(way), source=source)
            listed = {number: index.find(held_by[0], alike_names[0]) for number, held_by in enumerate(kinds)}
            total = {
                n: sum(p.nbytes for name in alike_names if (p := index.find(k[0], name))) for n, k in enumerate(kinds)
            }
            yield from self._cut(way, kind, rank_kind, listed, total, ranks)

    def _cut(
        self,
        way: Way,
        kind: BlockKind,
        rank_kind: Mapping[int, int],
        listed: Mapping[int, Parameter | None],
        total: Mapping[int, int],
        ranks: Sequence[int],
    ) -> Iterator[tuple[HeldBlock, Sequence[int]]]:
        """Yield the blocks of parameters that a layout cuts."""
        needing: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in ranks:
            needing[way.cell(rank).index].append(rank)
        simple = len(set(listed.values())) == 1
        for cell, cell_ranks in needing.items():
            needy, holders = cell_ranks, way.holders.get(cell, ())
            expected = listed[0]
            if not simple:
                having = Counter(listed[rank_kind[rank]] for rank in holders if listed[rank_kind[rank]] is not None)
                expected = max(having, key=lambda parameter: having[parameter], default=None)
                holders = [rank for rank in holders if listed[rank_kind[rank]] == expected]
                name, slices = kind.names[0], self.index.slices  # one that lists it and does not give it needs it
                needy = [rank for rank in needy if rank not in slices or name in slices[rank].listed.index]
                if expected is None or not needy:
                    continue
                whole = self.index.whole_tensors(needy[0], expected)
                holders = sorted({*holders, *(rank for _, having_whole in whole for rank in having_whole)})
            size = total[rank_kind[holders[0]]] if holders else None
            if len(needing) > 1 and holders:
                self.doubts.divided.add(kind.stage)
            yield HeldBlock(kind=kind, holders=tuple(holders), bytes=size), needy

    def _uncut(self, stage: int, name: str, ranks: Sequence[int]) -> Iterator[tuple[HeldBlock, Sequence[int]]]:
        """Yield the blocks of a parameter without layout: every rank of the stage holds it, or each its own."""
        index = self.index
        listing = [rank for rank in index.by_stage[stage] if index.find(rank, name) is not None]
        parameter = index.find(listing[0], name) if listing else None
        size = parameter.nbytes if parameter is not None else 0
        kind = BlockKind(stage=stage, names=(name,), cut="none", source=self.facts.stages.paths[stage])
        having = frozenset(listing)
        needing = [rank for rank in ranks if rank in having or rank in self.missing]
        if name in self.facts.stages.layouts[stage]:  # a layout that does not fit: it is taken from nobody
            for rank in needing:
                own = (rank,) if rank in self.sound else ()
                yield HeldBlock(kind=kind, holders=own, bytes=size), (rank,)
            return
        digests = {index.digest(rank, name) for rank in listing}
        contents = digests - {None}
        counter = parameter is not None and index.is_counter(parameter)
        known = len(contents) == 1 or counter or not self.facts.options.quick
        if (len(contents) < 2 and known) or (counter and index.may_differ(name, listing)):
            one_group = len({self.facts.groups.of(rank) for rank in needing}) < 2
            self._assumed |= None in digests and not (counter or one_group)
            everyone = [rank for rank in index.slices if index.find(rank, name) == parameter] if counter else listing
            yield HeldBlock(kind=kind, holders=tuple(sorted(everyone)), bytes=size), needing
            return
        for rank in needing:
            group = self.facts.groups.of(rank)
            peers = tuple(peer for peer in listing if peer in group)
            block = HeldBlock(kind=kind, holders=peers, bytes=size)
            self.doubts.own.add(block)
            yield block, (rank,)

    def _dealt_lists(self) -> Iterator[tuple[Ranks, str]]:
        """Yield the losses of what remove_redundancy=True dealt to a rank: nothing else may state its list."""
        dealt = self.judgement.step in self.judgement.structure.deduplicated
        for rank in range(self.facts.world.ranks) if dealt else ():
            yield frozenset((rank,)), f"the list of the parameters that remove_redundancy=True dealt to rank {rank}"

    def _fatal(self, whole: Sequence[int], by_rank: Mapping[int, Sequence[HeldBlock]]) -> Iterator[tuple[Ranks, str]]:
        """Yield losses that are fatal, each with what is lost."""
        for rank in whole:
            yield from self._no_copy(rank)
        done: dict[tuple[int, int], tuple[Ranks, Ranks]] = {}
        strategies = {stage: self._strategies(stage) for stage in self.facts.stages.layouts}
        for rank, blocks in by_rank.items():
            strategy = strategies[self.facts.stages.of(rank)]
            alone = frozenset((rank,)) - self.missing
            no_copy = list(self._no_copy(rank))
            for block in blocks:
                lost = block.members
                if len(no_copy) == 1 and alone <= lost:
                    # As for its peers: of 10,240 ranks it would take 10 seconds. Sets that are kept keep their ids.
                    pair = lost, no_copy[0][0]
                    if done.setdefault((id(pair[0]), id(pair[1])), pair) is not pair:
                        continue
                for copied, _ in no_copy:
                    yield (lost if copied <= lost and alone <= lost else lost | copied | alone), block_text(block)
            others = [(strategy, f"the strategy file of rank {rank}'s stage")] if strategy is not None else []
            for loss, text in (*others, *self.doubts.losses(rank, blocks)):
                for copied, _ in no_copy:
                    yield loss | copied | alone, text

    def _strategies(self, stage: int) -> Ranks | None:
        """Return the ranks with a strategy file of a stage, where losing them leaves others that need it."""
        having = self.evidence.strategies(stage)
        return having if having is not None and not having.issuperset(self.facts.stages.ranks(stage)) else None

    def _no_copy(self, rank: int) -> Iterator[tuple[Ranks, str]]:
        """Yield losses after which the slice of a rank cannot be copied."""
        copies = self.copies(rank)
        alone = frozenset((rank,)) - self.missing
        if not copies:
            yield alone, f"the slice of rank {rank}, of which no other rank has a copy"
            return
        group = self.facts.groups.of(rank)
        if group[0] not in self._no_copies:
            members, lists = frozenset(copies), self.evidence.lists(group)
            self._no_copies[group[0]] = members, lists if lists is not None and not members <= lists else None
        members, lists = self._no_copies[group[0]]
        yield (members if alone <= members else members | alone), f"the slice of rank(s) {some_ranks(copies)}"
        if lists is not None:
            yield lists | alone, f"the rank list that names rank {rank}"


def _shape(listed: Parameter | None) -> Parameter | None:
    return None if listed is None else Parameter("", listed.dtype, listed.shape, listed.nbytes)


def _listed(shapes: Sequence[Parameter | None]) -> tuple[Parameter | None, ...]:
    """Return which kinds list a parameter, where all that do list it alike: shapes then do not matter."""
    mark = Parameter("", "", (), 0)
    return tuple(None if one is None else mark for one in shapes)


def _cut_text(way: Way) -> str:
    layout = way.layout
    return f"{list(layout.device_matrix)} {layout.tensor_map} {layout.opt_shard_size}"


def find_ties(supply: Supply, claimed: Iterable[tuple[Sequence[int], Sequence[int]]]) -> dict[Ranks, str]:
    """Return the smallest losses of holders that leave a vote over their block undecided, each with the reason.

    The vote is held again among those that are left and the slices that differ, which are not lost; `claimed` has the
    holders of each block, and the ranks that should hold it. Where there are too many such losses to list, those of all
    but one holder stand for them.
    """
    facts, sound, judged = supply.facts, supply.sound, supply.judgement.slices
    counted = facts.counted_at(supply.judgement.step)
    suspects = {
        slice_.rank: slice_
        for slice_ in counted
        if slice_.rank not in sound and judged[slice_.path].status == "suspect"
    }
    groups = ((supply.copies(rank), facts.groups.of(rank)) for rank in suspects)
    ties: dict[Ranks, str] = {}
    for holders, ranks in (*claimed, *groups) if suspects else ():
        odd = [suspects[rank] for rank in ranks if rank in suspects and rank not in holders]
        holding = sorted((sound[rank] for rank in holders if rank in sound), key=lambda slice_: not slice_.proven)
        spare = _count_spare(facts, holding, odd) if odd else None
        if spare is None:
            continue
        names = some_ranks([slice_.rank for slice_ in odd])
        text = f"the majority of rank(s) {some_ranks(holders)} over rank(s) {names}, which differ"
        if comb(len(holders), spare) > _MOST_TIES:
            spare = len(holders) - 1
        for lost in combinations(holders, spare):
            ties.setdefault(frozenset(lost), text)
    return ties


def _count_spare(facts: Facts, held: Sequence[SliceFacts], odd: Sequence[SliceFacts]) -> int | None:
    """Return how many of some slices must be lost, the first ones first, until it is undecided who is right."""
    for lost in range(1, len(held)):
        if compare_blocks(facts, [*held[lost:], *odd]).disagreements:
            return lost
    return None


def steps_of_tree(tree: Parts, assess: Assess | None = None) -> Iterator[StepHolders]:
    """Yield the steps that a plan may be for, newest first; one at which replicas differ is the last that is tried.

    Older steps at which no slice is sound that is not at a newer one are passed over: each loss that is fatal there is
    fatal here. `assess` is `assess_candidate` of the tree, or what remembers its answers.
    """
    known: list[AssessedPart] = []
    evidence: dict[int, Evidence] = {}  # by the id of facts, which the tree keeps: one look at all files for all steps
    ties = NOTHING_TIED

    def worth_judging() -> Iterator[Candidate | RejectedStep]:
        for candidate in candidates_of(tree.facts):
            if isinstance(candidate, Candidate) and not any(_adds_nothing(newer, candidate.step) for newer in known):
                yield candidate

    for judged in judge_each(worth_judging(), assess or partial(assess_candidate, tree)):
        if isinstance(judged, RejectedStep) or judged.why is not None:
            continue
        parts = judged.value.parts
        known += [
            part for part in parts if part.compared.facts.kind is None and _is_whole(part.compared, part.assessment)
        ]
        for facts in (part.compared.facts for part in parts):
            if id(facts) not in evidence:
                evidence[id(facts)] = find_evidence(facts)
        holders = join_parts([find_holders(part.supply, evidence[id(part.compared.facts)], ties) for part in parts])
        ties = holders.ties
        yield holders


def _is_whole(compared: Comparison, assessed: StepAssessment) -> bool:
    """Whether every rank keeps its one slice of a step, and all of them are replicas as their groups say."""
    step, structure = assessed.step, compared.structure
    by_rank = compared.facts.steps[step]
    return (
        len(by_rank) == compared.facts.world.ranks
        and all(rank.verdict == "keep" for rank in assessed.ranks)
        and all(len(slices) == 1 and slices[0].file.problem is None for slices in by_rank.values())
        and step not in structure.deduplicated
        and not any(at == step for _, at in structure.conflicts)
    )


def _adds_nothing(newer: AssessedPart, step: Step) -> bool:
    """Whether each rank lists at a whole newer step what it lists at a step."""
    steps = newer.compared.facts.steps
    here, there = steps.get(step, {}), steps[newer.assessment.step]
    return all(one.listed == there[rank][0].listed for rank, slices in here.items() for one in slices)
