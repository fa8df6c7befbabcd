"""The part of the network that each rank holds, over model parallel x data parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor
from mindspore.communication import create_group

from ms_recover.model import strategy
from ms_recover.training import cut


@dataclass(frozen=True)
class Layout:
    """The part of the network that this rank holds.

    Parameters
    ----------
    rank, world_size : int
        This process and the number of processes.
    mp : int
        Ranks over which one layer's weights are split; they are neighbours.
    stages : int
        Pipeline stages (semi-auto parallel only).
    semi_auto : bool
        True when MindSpore's compiler cuts the network, False when the network is built already cut.
    optimizer_shards : int
        When the network is built already cut: split weights into so many shards over the data-parallel ranks too,
        optimizer states along; it divides `dp`. 0 or 1 for none.
    """

    rank: int
    world_size: int
    mp: int
    stages: int = 1
    semi_auto: bool = False
    optimizer_shards: int = 0
    _made: list[tuple[Parameter, int | None]] = field(default_factory=list, init=False, repr=False)

    @property
    def dp(self) -> int:
        """Number of data-parallel replicas."""
        return self.world_size // (self.mp * self.stages)

    @property
    def parts(self) -> int:
        """Number of parts into which the network's code must cut a split parameter."""
        return 1 if self.semi_auto else self.mp

    @property
    def tensor_ranks(self) -> list[int]:
        """Ranks that hold the other parts of this rank's layers, itself included."""
        first = self.rank - self.rank % self.mp
        return list(range(first, first + self.mp))

    @property
    def data_ranks(self) -> list[int]:
        """Ranks that have the same part of every layer as this one, itself included."""
        return list(range(self.rank % self.mp, self.world_size, self.mp))

    @property
    def tensor_group(self) -> str:
        """Name of the communication group of `tensor_ranks`."""
        return f"tensor-{self.rank // self.mp}"

    @property
    def data_group(self) -> str:
        """Name of the communication group of `data_ranks`."""
        return f"data-{self.rank % self.mp}"

    @property
    def shard(self) -> int:
        """Number of this rank's optimizer shard: neighbours in the data group have different ones."""
        return self.rank // self.mp % max(self.optimizer_shards, 1)

    def create_groups(self) -> None:
        """Create this rank's communication groups; the compiler makes its own under semi-auto parallel."""
        if not self.semi_auto:
            if self.mp > 1:
                create_group(self.tensor_group, self.tensor_ranks)
            if self.dp > 1:
                create_group(self.data_group, self.data_ranks)

    def parameter(self, full: np.ndarray, name: str, axis: int | None = None) -> Parameter:
        """Make the parameter that stores this rank's part of a full array.

        It is split over the tensor group along `axis`, if one is given. With `optimizer_shards` the remaining rows are
        split into so many parts, if they can be divided evenly. Such a parameter has `layerwise_parallel` set, so
        that MindSpore's reducer of gradients skips its gradient.
        """
        local = full if axis is None or self.parts == 1 else np.split(full, self.parts, axis)[self.rank % self.mp]
        split = self.optimizer_shards > 1 and len(local) % self.optimizer_shards == 0
        own = np.split(local, self.optimizer_shards)[self.shard] if split else local
        parameter = Parameter(Tensor(own), name=name, layerwise_parallel=split)
        self._made.append((parameter, axis))
        return parameter

    def layouts(self) -> list[strategy.Layout]:
        """Return the layouts of the parameters made so far, for the strategy file.

        MindSpore calls a parameter optimizer-sharded when it is split over all ranks that hold the same part of it.
        For a parameter that is split over the tensor group these are the data group. For others they are all ranks, so
        that a split over the data group alone is written as a plain split over an axis of that size.
        """
        shards = max(self.optimizer_shards, 1)
        devices = {"dp": self.dp, "mp": self.mp}
        outer = {"dp": self.dp // shards} if shards < self.dp else {}
        shared = {**outer, "shard": shards, "mp": self.mp}
        layouts = []
        for parameter, axis in self._made:
            split, over_replicas = parameter.layerwise_parallel, axis is not None or self.mp == 1
            dimensions = [None if dimension != axis else "mp" for dimension in range(parameter.ndim)]
            if split and not over_replicas:
                layouts.append(cut(parameter.name, shared, "shard", *dimensions[1:]))
            else:
                layouts.append(cut(parameter.name, devices, *dimensions, optimizer_shards=shards if split else 0))
        return layouts

    def sharded(self, operator: Any, *strategy: tuple[int, ...]) -> Any:
        """Give `operator` its shard strategy under semi-auto parallel; return it."""
        return operator.shard(strategy) if self.semi_auto else operator
