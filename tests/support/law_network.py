"""Random networks on random layouts, of which the bytes of every rank's slice at every step are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from random import Random

import numpy as np

from ms_recover.formats.image import ckpt_image, default_pieces
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from tests.support.cuts import CutTensor, cell_of, cut_layout, fill

SHAPES = (
    (2, 1, 1), (1, 2, 1), (4, 1, 1), (2, 2, 1), (2, 2, 1), (3, 2, 1), (2, 3, 1), (4, 2, 1), (2, 4, 1), (1, 4, 1),
    (2, 1, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 2), (3, 1, 2), (4, 1, 2), (2, 1, 4), (4, 2, 2), (2, 2, 4),
)  # fmt: skip
"""Data-parallel, tensor-parallel and pipeline-parallel sizes."""
STEPS = (Step(1, 8), Step(2, 8), Step(3, 8))
COUNTERS = {"global_step": (1,), "beta1_power": ()}
TIED = "embedding.table"
SPREAD = "spread"
"""A pipeline whose last stage holds the embedding too, and whose strategy file there names its states alone."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A parameter of the network.

    Parameters
    ----------
    name : str
        Its name.
    shape : tuple of int
        Of the whole tensor.
    layout : Layout or None
        How it is cut in truth; None where every rank of its stages has all of it.
    stages : frozenset of int
        The stages that hold it.
    named : frozenset of int
        Those of them whose strategy files have its layout.
    own : bool
        Each rank has values of its own.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout | None
    stages: frozenset[int]
    named: frozenset[int]
    own: bool = False

    @property
    def counter(self) -> bool:
        """Whether all ranks hold the same, and its shape shows it."""
        return self.name in COUNTERS


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training: its network, its layout, and the bytes that each rank saves.

    Parameters
    ----------
    seed : str
        Of all contents.
    data, model, stages : int
        Sizes of the axes.
    tensors : tuple of Tensor
        In the order of the network.
    steps : tuple of Step
        The steps that it saved, the oldest first.
    """

    seed: str
    data: int
    model: int
    stages: int
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    _bytes: dict[tuple[int, Step], bytes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def devices(self) -> int:
        """Ranks of a stage."""
        return self.data * self.model

    @property
    def size(self) -> int:
        """All ranks."""
        return self.devices * self.stages

    def stage(self, rank: int) -> int:
        """Return the stage of a rank."""
        return rank // self.devices

    def of_rank(self, rank: int) -> tuple[Tensor, ...]:
        """Return the parameters that a rank holds."""
        return tuple(one for one in self.tensors if self.stage(rank) in one.stages)

    def region(self, tensor: Tensor, rank: int) -> object:
        """Return what stands for the part of a parameter that a rank holds: equal for ranks that hold the same."""
        if tensor.own:
            return rank
        return None if tensor.layout is None else cell_of(tensor.layout, rank % self.devices).index

    def whole(self, name: str, step: Step, rank: int = -1) -> np.ndarray:
        """Return the contents of a whole tensor at a step; of a rank's own one with its number."""
        shape = next(one.shape for one in self.tensors if one.name == name)
        data = Random(f"{self.seed} {step} {name} {rank}").randbytes(4 * prod(shape))
        return np.frombuffer(data, np.int32).reshape(shape)

    def held(self, tensor: Tensor, rank: int, step: Step) -> np.ndarray:
        """Return the contents of a parameter in a rank's slice."""
        array = self.whole(tensor.name, step, rank if tensor.own else -1)
        return CutTensor("Float32", array, tensor.layout).of(rank % self.devices)

    def contents(self, rank: int, step: Step) -> dict[str, bytes]:
        """Return the contents of a rank's slice by parameter."""
        return {one.name: self.held(one, rank, step).tobytes() for one in self.of_rank(rank)}

    def slice(self, rank: int, step: Step) -> bytes:
        """Return a rank's slice of a step, as MindSpore saves it."""
        if (rank, step) not in self._bytes:
            arrays = {one.name: self.held(one, rank, step) for one in self.of_rank(rank)}
            self._bytes[rank, step] = slice_of_arrays(arrays)
        return self._bytes[rank, step]

    @cached_property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """For each rank the ranks that hold the same slice, its own values apart."""
        alike: dict[object, list[int]] = defaultdict(list)
        for rank in range(self.size):
            parts = tuple(self.region(one, rank) for one in self.of_rank(rank) if not one.own)
            alike[self.stage(rank), parts].append(rank)
        return {rank: tuple(held) for held in alike.values() for rank in held}

    def replicas(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from a rank in the data-parallel axis only."""
        first = self.stage(rank) * self.devices
        return tuple(range(first + rank % self.model, first + self.devices, self.model))

    def strategy(self, stage: int) -> Strategy:
        """Return the strategy file of a stage."""
        named = [one.layout for one in self.tensors if stage in one.named and one.layout is not None]
        return Strategy((stage,), 2, tuple(sorted(named, key=lambda one: one.parameter)))


def slice_of_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """Return a slice of some parameters."""
    listed = tuple((name, array.shape) for name, array in arrays.items())
    return fill(_image(listed), {name: array.tobytes() for name, array in arrays.items()})


@lru_cache(maxsize=256)
def _image(listed: tuple[tuple[str, tuple[int, ...]], ...]):
    parameters = [Parameter(name, "Float32", shape, 4 * prod(shape)) for name, shape in listed]
    return ckpt_image(parameters, [list(default_pieces(one.nbytes)) for one in parameters])


def random_job(source: Random, seed: str) -> Job:
    """Return a job of a random layout."""
    data, model, stages = source.choice(SHAPES)
    steps = STEPS if source.random() < 0.4 else STEPS[1:]
    return Job(
        seed=seed,
        data=data,
        model=model,
        stages=stages,
        tensors=tuple(_tensors(source, data, model, stages)),
        steps=steps,
    )


def _tensors(source: Random, data: int, model: int, stages: int) -> Iterator[Tensor]:
    """Yield the parameters of a network: few of each kind, because kinds are what recoveries mistake."""
    matrix, rows = (data, model), data * model
    shards = source.choice((0, 0, 0, -1, 2 if data % 2 == 0 else 0))
    kind = source.choice((SPREAD, SPREAD, "pipeline", "untied")) if stages > 1 else "pipeline"
    evaluated = source.random() < 0.12  # the strategy file was written by an evaluation: it names no state
    last = stages - 1

    def cut(
        name: str, where: int, *, axis: int | None = 0, unnamed: bool = False, opt: int = 0, more: tuple[int, ...] = ()
    ) -> Tensor:
        layout = cut_layout(name, matrix, () if axis is None else (axis,), (), shards=opt)
        held = frozenset((where, *more))
        named = frozenset() if unnamed else frozenset((where,)) if kind == SPREAD else held
        return Tensor(name=name, shape=(rows, 2), layout=layout, stages=held, named=named)

    def state(name: str, where: int, *, axis: int | None = 0) -> Tensor:
        return cut(name, where, axis=axis, unnamed=evaluated, opt=shards)

    for stage in range(stages):
        yield cut(f"layer{stage}.weight", stage)
        yield state(f"moment1.layer{stage}.weight", stage)
        if source.random() < 0.5:
            yield cut(f"layer{stage}.norm", stage, axis=None)
        if kind == SPREAD and source.random() < 0.5:
            yield cut(f"layer{stage + stages}.weight", stage)
    if source.random() < 0.7 or kind != "pipeline":
        both = (last,) if stages > 1 and kind != "untied" else ()
        yield cut(TIED, 0, more=both)
        for prefix in ("moment1", "accu_grads") if kind == SPREAD else ("moment1",):
            layout = cut_layout(f"{prefix}.{TIED}", matrix, (0,), (), shards=0 if prefix == "accu_grads" else shards)
            held = frozenset((0, *both))
            named = frozenset() if evaluated else held
            yield Tensor(name=f"{prefix}.{TIED}", shape=(rows, 2), layout=layout, stages=held, named=named)
        if kind == "untied":
            yield cut("head.weight", last)
    every = frozenset(range(stages))
    nowhere: frozenset[int] = frozenset()
    if source.random() < 0.25:
        yield Tensor(name="learning_rates", shape=(5,), layout=None, stages=every, named=nowhere)
    if source.random() < 0.15:
        yield Tensor(name="bn.moving_mean", shape=(4,), layout=None, stages=every, named=nowhere, own=True)
    if source.random() < 0.2:
        yield cut("extra.statistics", source.randrange(stages), unnamed=True)
    yield from _counters(every)


def spread_job(seed: str = "spread") -> Job:
    """Return the interleaved pipeline of two stages, each of two data-parallel and two tensor-parallel ranks.

    Both stages hold the embedding, cut in two; the strategy file of the last stage has layouts of its states alone.
    """
    matrix, first, last, both = (2, 2), frozenset({0}), frozenset({1}), frozenset({0, 1})

    def cut(name: str, stages: frozenset[int], named: frozenset[int]) -> Tensor:
        return Tensor(name=name, shape=(8, 2), layout=cut_layout(name, matrix, (0,), ()), stages=stages, named=named)

    return Job(
        seed=seed,
        data=2,
        model=2,
        stages=2,
        tensors=(
            *(cut(f"layer{number}.weight", one, one) for number, one in enumerate((first, last, first, last))),
            cut(TIED, both, first),
            *(cut(f"{state}.{TIED}", both, both) for state in ("moment1", "accu_grads")),
            *_counters(both),
        ),
        steps=STEPS[1:],
    )


def plain_job(data: int, model: int, *, extra: Tensor | None = None, seed: str = "plain") -> Job:
    """Return a job of one stage with five parameters that are cut over its tensor-parallel ranks, and `extra`."""
    only = frozenset({0})
    names = ("dense.weight", "moment1.dense.weight", "moment2.dense.weight", "head.weight", "moment1.head.weight")
    cut = (
        Tensor(
            name=name,
            shape=(data * model * 2, 2),
            layout=cut_layout(name, (data, model), (0,), ()),
            stages=only,
            named=only,
        )
        for name in names
    )
    more = () if extra is None else (extra,)
    return Job(seed=seed, data=data, model=model, stages=1, tensors=(*cut, *more, *_counters(only)), steps=STEPS[1:])


def _counters(stages: frozenset[int]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=name, shape=shape, layout=None, stages=stages, named=frozenset())
        for name, shape in COUNTERS.items()
    )
