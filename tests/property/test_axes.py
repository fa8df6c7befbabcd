"""Groups by parallel axes, against the layouts that MindSpore's compiler gives the parameters of such a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.model.axes import DEFAULT_ORDER, Axes
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.axes import same_by_axes
from ms_recover.training.layouts import same_slice
from tests.support.examples import examples

SIZES = st.sampled_from([1, 1, 2, 2, 3, 4])


@dataclass(frozen=True)
class Job:
    """A job of MindSpore: sizes by axis, its optimizer shards, and how those that do not fit are applied."""

    sizes: dict[str, int]
    shards: int
    smaller: bool

    @property
    def stage(self) -> int:
        return prod(size for axis, size in self.sizes.items() if axis != "pp")

    @property
    def ranks(self) -> int:
        return self.stage * self.sizes["pp"]

    def layouts(self) -> list[Layout]:
        """Of a stage's weights: cut over tp, over tp and ep, over ep, and not at all."""
        matrix = tuple(self.sizes[axis] for axis in ("dp", "ep", "cp", "tp"))  # the slowest axis first
        kinds = {"dense": (0,), "expert": (0, 2), "router": (2,), "norm": ()}
        return [self.sharded(Layout(name, matrix, (axes, ()))) for name, axes in kinds.items()]

    def sharded(self, layout: Layout) -> Layout:
        """Shard a layout; where the shards do not fit, MindSpore makes fewer or none, by version."""
        copies = layout.copies
        if self.shards < 2 or copies == 1:
            return replace(layout, opt_shard_size=self.shards if self.shards < 0 and copies > 1 else 0)
        if copies % self.shards == 0:
            return replace(layout, opt_shard_size=self.shards)
        fewer = max(size for size in range(1, copies + 1) if copies % size == 0 and size <= self.shards)
        return replace(layout, opt_shard_size=fewer if self.smaller else 0)


jobs = st.builds(
    Job,
    sizes=st.fixed_dictionaries(dict.fromkeys(DEFAULT_ORDER, SIZES)),
    shards=st.sampled_from([0, 0, 1, 2, 3, 4, 6, 8, -1]),
    smaller=st.booleans(),
).filter(lambda job: job.ranks <= 96)


@settings(max_examples=examples(200))
@given(jobs)
def test_ranks_that_are_called_the_same_are_the_same_by_layouts(job: Job) -> None:
    axes = Axes(tuple(job.sizes.items()))
    groups = same_by_axes(axes, DEFAULT_ORDER, job.shards, job.ranks)
    assert sorted(rank for group in groups for rank in group) == list(range(job.ranks))
    layouts = job.layouts()
    experts, fits = job.sizes["ep"] > 1, job.shards in (0, 1) or (job.sizes["dp"] * job.sizes["cp"]) % job.shards == 0
    for group in groups:
        same = set(same_slice(layouts, group[0], job.ranks))
        assert same.issuperset(group)
        if not experts and fits:
            assert same == set(group)


@settings(max_examples=examples(60))
@given(jobs, st.permutations(DEFAULT_ORDER))
def test_any_order_divides_the_ranks_alike(job: Job, order: list[str]) -> None:
    groups = same_by_axes(Axes(tuple(job.sizes.items())), order, job.shards, job.ranks)
    usual = same_by_axes(Axes(tuple(job.sizes.items())), DEFAULT_ORDER, job.shards, job.ranks)
    assert sorted(rank for group in groups for rank in group) == list(range(job.ranks))
    if job.shards in (0, 1):
        assert sorted(map(len, groups)) == sorted(map(len, usual))
