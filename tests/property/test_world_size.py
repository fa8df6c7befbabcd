"""A number of ranks that is stated is the true one, whatever of the tree is lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ms_recover.model.groups import GroupInfo, RankGroup
from ms_recover.model.inventory import GroupFile, Inventory, RankPath, StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.tree.world_size import find_world_size
from tests.support.examples import examples
from tests.support.inventories import slice_file

WHOLE, NO_LIST, BARE_LIST, NO_STRATEGY, EMPTY, GONE = "whole", "no list", "bare list", "no strategy", "empty", "gone"
"""A directory as saved; without its rank list; with one that a recovery wrote; without its strategy file; without any
file; no directory."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A layout as MindSpore's compiler writes it down, with ``lazy_inline`` or not."""

    stages: int
    data: int
    model: int
    lazy: bool
    accumulates: bool
    trains: bool
    whole_stage: bool

    @property
    def devices(self) -> int:
        return self.data * self.model

    @property
    def ranks(self) -> int:
        return self.stages * self.devices

    @property
    def names_stages(self) -> bool:
        """Whether lists name one rank of each stage; a group of all ranks is no entry."""
        return self.lazy and self.stages > 1 and self.devices > 1

    def strategy(self, rank: int) -> StrategyFile:
        words = ("", "moment1.", "accu_grads.") if self.stages > 1 or self.accumulates else ("", "moment1.")
        named = words if self.trains else words[:1]
        layouts = tuple(Layout(f"{word}w", (self.data, self.model), ((0,),)) for word in named)
        return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // self.devices,), 2, layouts))

    def list(self, rank: int, *, bare: bool = False) -> GroupFile:
        first = rank - rank % self.devices
        column = tuple(range(rank % self.devices, self.ranks, self.devices))
        replicas = tuple(range(first + rank % self.model, first + self.devices, self.model))
        groups = [replicas] if self.data > 1 and len(replicas) < self.ranks else []
        groups += [column] if self.names_stages else []
        groups += [tuple(range(first, first + self.devices))] if self.whole_stage and self.stages > 1 else []
        named = () if bare else tuple(RankGroup(f"{len(one)}-{one[0]}", one) for one in groups)
        place = RankPath(("ckpt_dir", "/group_info.pb"))
        return GroupFile(rank, place.of(rank), place, GroupInfo(replicas, named))

    def tree(self, fates: dict[int, str]) -> Inventory:
        """Return what is left of the tree, each rank by its fate."""
        there = [rank for rank in range(self.ranks) if fates[rank] != GONE]
        full = [rank for rank in there if fates[rank] != EMPTY]
        lists = [self.list(rank, bare=fates[rank] == BARE_LIST) for rank in full if fates[rank] != NO_LIST]
        strategies = [self.strategy(rank) for rank in full if fates[rank] != NO_STRATEGY]
        slices = tuple(slice_file(rank) for rank in full)
        return Inventory("/tree", tuple(there), slices, tuple(lists), tuple(strategies))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    return Job(
        stages=draw(st.integers(1, 4)),
        data=draw(st.integers(1, 4)),
        model=draw(st.integers(1, 3)),
        lazy=draw(st.booleans()),
        accumulates=draw(st.booleans()),
        trains=draw(st.integers(0, 4)) > 0,
        whole_stage=draw(st.booleans()),
    )


@st.composite
def losses(draw: st.DrawFn) -> tuple[Job, dict[int, str]]:
    """A job, and what each directory lost: a few, and perhaps whole stages."""
    job = draw(jobs())
    fate = st.sampled_from((WHOLE,) * 12 + (NO_LIST, BARE_LIST, NO_STRATEGY, EMPTY, GONE))
    fates = {rank: draw(fate) for rank in range(job.ranks)}
    for stage in draw(st.sets(st.integers(0, job.stages - 1), max_size=2)):
        fates |= dict.fromkeys(range(stage * job.devices, (stage + 1) * job.devices), GONE)
    return job, fates


@settings(max_examples=examples(400))
@given(losses())
def test_a_number_of_ranks_that_is_stated_is_the_true_one(loss: tuple[Job, dict[int, str]]) -> None:
    job, fates = loss
    world = find_world_size(job.tree(fates))
    event(f"guessed {world.guessed}, stages {job.stages}")
    assert world.guessed or world.ranks == job.ranks
    last = {fates[rank] for rank in range(job.ranks - job.devices, job.ranks)}
    if job.stages > 1 and last == {GONE}:
        assert world.guessed


@settings(max_examples=examples(200))
@given(jobs())
def test_the_number_of_ranks_of_a_whole_tree_is_stated_where_the_last_stage_is_known(job: Job) -> None:
    world = find_world_size(job.tree(dict.fromkeys(range(job.ranks), WHOLE)))
    known = job.names_stages or (job.stages == 1 and job.trains and not job.accumulates)
    assert (world.ranks, world.guessed) == (job.ranks, not known)
    assert world.guessed or world.source == "the strategy files and the rank lists"
