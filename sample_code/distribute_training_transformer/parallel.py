"""How the transformer is cut over the ranks: by MindSpore's compiler, or by explicit collectives.

The network is written once. On Ascend its operators get shard strategies and the semi-auto-parallel compiler cuts
parameters and inserts communication. On CPU, where that compiler does not run, each rank builds its own part of every
split parameter, and two small cells carry the communication of tensor parallelism: `CopyIn` before a layer that is
split by output, `ReduceOut` behind a layer that is split by input (Shoeybi et al., Megatron-LM, 2019, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import create_group


@dataclass(frozen=True)
class Layout:
    """Who holds what.

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
    """

    rank: int
    world_size: int
    mp: int
    stages: int = 1
    semi_auto: bool = False

    @property
    def dp(self) -> int:
        """Number of data-parallel replicas."""
        return self.world_size // (self.mp * self.stages)

    @property
    def parts(self) -> int:
        """Into how many parts the network's code must cut a split parameter."""
        return 1 if self.semi_auto else self.mp

    @property
    def tensor_ranks(self) -> list[int]:
        """Ranks that hold the other parts of this rank's layers, itself included."""
        first = self.rank - self.rank % self.mp
        return list(range(first, first + self.mp))

    @property
    def data_ranks(self) -> list[int]:
        """Ranks that hold the same slice as this one, itself included."""
        return list(range(self.rank % self.mp, self.world_size, self.mp))

    @property
    def tensor_group(self) -> str:
        """Name of the communication group of `tensor_ranks`."""
        return f"tensor-{self.rank // self.mp}"

    @property
    def data_group(self) -> str:
        """Name of the communication group of `data_ranks`."""
        return f"data-{self.rank % self.mp}"

    def create_groups(self) -> None:
        """Create this rank's communication groups; the compiler makes its own under semi-auto parallel."""
        if not self.semi_auto:
            if self.mp > 1:
                create_group(self.tensor_group, self.tensor_ranks)
            if self.dp > 1:
                create_group(self.data_group, self.data_ranks)

    def part(self, full: np.ndarray, axis: int) -> np.ndarray:
        """Return this rank's part of a full array that is split along `axis`."""
        return full if self.parts == 1 else np.split(full, self.parts, axis)[self.rank % self.mp]

    def sharded(self, operator: Any, *strategy: tuple[int, ...]) -> Any:
        """Give `operator` its shard strategy under semi-auto parallel; return it."""
        return operator.shard(strategy) if self.semi_auto else operator


class CopyIn(nn.Cell):
    """Identity forward, sum over the tensor group backward: in front of a layer that is split by output."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.reduce = ops.AllReduce(group=layout.tensor_group)

    def construct(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        """Sum the gradients that the parts of the layer sent back."""
        return (self.reduce(dout),)


class ReduceOut(nn.Cell):
    """Sum over the tensor group forward, identity backward: behind a layer that is split by input.

    The AllReduce operator's own gradient would sum once more.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.reduce = ops.AllReduce(group=layout.tensor_group)

    def construct(self, x: Tensor) -> Tensor:
        """Return the sum of all parts."""
        return self.reduce(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        """Every part has the full gradient already."""
        return (dout,)


class ColumnLinear(nn.Cell):
    """``x W^T + b`` on tokens, W of shape (outputs, inputs) split by output.

    Parameters
    ----------
    inputs, outputs : int
        Full sizes.
    layout : Layout
        Who holds what.
    rng : numpy.random.Generator
        Every rank draws the full weight from it and keeps its part, so that the start does not depend on the layout.
    """

    def __init__(self, inputs: int, outputs: int, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        dp, mp = layout.dp, layout.mp
        self.weight = Parameter(Tensor(layout.part(initial(rng, outputs, inputs), 0)), name="weight")
        self.bias = Parameter(Tensor(layout.part(np.zeros(outputs, np.float32), 0)), name="bias")
        self.matmul = layout.sharded(ops.MatMul(transpose_b=True), (dp, 1), (mp, 1))
        self.add = layout.sharded(ops.Add(), (dp, mp), (mp,))
        self.copy_in = CopyIn(layout) if layout.parts > 1 else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        """Map (tokens, inputs) to this rank's part of (tokens, outputs)."""
        return self.add(self.matmul(self.copy_in(x), self.weight), self.bias)


class RowLinear(nn.Cell):
    """``x W^T + b`` on tokens, W of shape (outputs, inputs) split by input; parameters as `ColumnLinear`."""

    def __init__(self, inputs: int, outputs: int, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        dp, mp = layout.dp, layout.mp
        self.weight = Parameter(Tensor(layout.part(initial(rng, outputs, inputs), 1)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(outputs, np.float32)), name="bias")
        self.matmul = layout.sharded(ops.MatMul(transpose_b=True), (dp, mp), (1, mp))
        self.add = layout.sharded(ops.Add(), (dp, 1), (1,))
        self.reduce_out = ReduceOut(layout) if layout.parts > 1 else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        """Map this rank's part of (tokens, inputs) to (tokens, outputs)."""
        return self.add(self.reduce_out(self.matmul(x, self.weight)), self.bias)


class ExplicitTrainStep(nn.TrainOneStepCell):
    """One training step of a network that is built already cut.

    Gradients are averaged over the ranks that hold the same slice; the parallel mode stays stand-alone, because
    data-parallel mode would average over all ranks and mix the slices. The loss returned is the average over the
    replicas too: the loss of the whole batch.
    """

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer, layout: Layout) -> None:
        super().__init__(network, optimizer)
        self.share = 1.0 / layout.dp
        self.replicated = layout.dp > 1
        if self.replicated:
            self.grad_reducer = nn.DistributedGradReducer(self.weights, True, layout.dp, group=layout.data_group)
            self.reduce_loss = ops.AllReduce(group=layout.data_group)

    def construct(self, *inputs: Tensor) -> Tensor:
        """Update the parameters with one batch and return its loss."""
        loss = self.network(*inputs)
        grads = self.grad_reducer(self.grad_no_sens(self.network, self.weights)(*inputs))
        loss = ops.depend(loss, self.optimizer(grads))
        return self.reduce_loss(loss) * self.share if self.replicated else loss


def initial(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw a weight from a normal distribution of standard deviation 0.02."""
    return (rng.standard_normal(shape) * 0.02).astype(np.float32)
