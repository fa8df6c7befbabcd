"""How the transformer is cut over the ranks: by MindSpore's compiler, or by explicit collectives.

The network is written once. On Ascend its operators get shard strategies and the semi-auto-parallel compiler cuts
parameters and inserts communication. On CPU, where that compiler does not run, each rank builds its own part of every
split parameter, and two small cells carry the communication of tensor parallelism: `CopyIn` before a layer that is
split by output, `ReduceOut` behind a layer that is split by input (Shoeybi et al., Megatron-LM, 2019, section 3). A
third, `GatherRows`, carries that of the parallel optimizer: each data-parallel rank stores and updates only its own
rows of a weight, as MindSpore's compiler does it (Rajbhandari et al., ZeRO, 2020).
"""

from __future__ import annotations

import numpy as np
from layout import Layout
from mindspore import Parameter, Tensor, nn, ops


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


class GatherRows(nn.Cell):
    """From this rank's rows of a weight to all rows, over the data group; backward to its rows of the mean gradient.

    On CPU MindSpore has no ReduceScatter, and its AllGather knows no group but all ranks. Hence zeros stand in for the
    rows of others and all ranks' are added up; of the gradient, averaged over the data group, other rows are dropped.
    Where fewer shards than ranks are there, several hold the same rows, and the first of them gives these.

    Parameters
    ----------
    layout : Layout
        The part of the network that this rank holds.
    shape : tuple of int
        Shape of this rank's rows.
    """

    def __init__(self, layout: Layout, shape: tuple[int, ...]) -> None:
        super().__init__()
        (rows, *rest), place = shape, layout.shard
        before, behind = place * rows, (layout.optimizer_shards - 1 - place) * rows
        self.pad = ops.Pad(((before, behind), *((0, 0) for _ in rest)))
        self.given = float(layout.rank // layout.mp < layout.optimizer_shards)
        self.reduce = ops.AllReduce(group=layout.data_group)
        self.begin, self.size = (before, *(0 for _ in rest)), tuple(shape)
        self.share = 1.0 / layout.dp

    def construct(self, own: Tensor) -> Tensor:
        """Return all rows."""
        return self.reduce(self.pad(own) * self.given)

    def bprop(self, own: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        """Return this rank's rows of the gradient, averaged over the data group."""
        return (ops.slice(self.reduce(dout) * self.share, self.begin, self.size),)


def whole(parameter: Parameter, layout: Layout) -> nn.Cell:
    """Return the cell that makes the whole weight of a layer from this rank's part."""
    return GatherRows(layout, parameter.shape) if parameter.layerwise_parallel else nn.Identity()


class ColumnLinear(nn.Cell):
    """``x W^T + b`` on tokens, W of shape (outputs, inputs) split by output.

    Parameters
    ----------
    inputs, outputs : int
        Full sizes.
    layout : Layout
        The part of the network that this rank holds.
    rng : numpy.random.Generator
        Every rank draws the full weight from it and keeps its part, so that the start does not depend on the layout.
    """

    def __init__(self, inputs: int, outputs: int, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        dp, mp = layout.dp, layout.mp
        self.weight = layout.parameter(initial(rng, outputs, inputs), "weight", 0)
        self.bias = layout.parameter(np.zeros(outputs, np.float32), "bias", 0)
        self.whole_weight, self.whole_bias = whole(self.weight, layout), whole(self.bias, layout)
        self.matmul = layout.sharded(ops.MatMul(transpose_b=True), (dp, 1), (mp, 1))
        self.add = layout.sharded(ops.Add(), (dp, mp), (mp,))
        self.copy_in = CopyIn(layout) if layout.parts > 1 else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        """Map (tokens, inputs) to this rank's part of (tokens, outputs)."""
        return self.add(self.matmul(self.copy_in(x), self.whole_weight(self.weight)), self.whole_bias(self.bias))


class RowLinear(nn.Cell):
    """``x W^T + b`` on tokens, W of shape (outputs, inputs) split by input; parameters as `ColumnLinear`."""

    def __init__(self, inputs: int, outputs: int, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        dp, mp = layout.dp, layout.mp
        self.weight = layout.parameter(initial(rng, outputs, inputs), "weight", 1)
        self.bias = layout.parameter(np.zeros(outputs, np.float32), "bias")
        self.whole_weight, self.whole_bias = whole(self.weight, layout), whole(self.bias, layout)
        self.matmul = layout.sharded(ops.MatMul(transpose_b=True), (dp, mp), (1, mp))
        self.add = layout.sharded(ops.Add(), (dp, 1), (1,))
        self.reduce_out = ReduceOut(layout) if layout.parts > 1 else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        """Map this rank's part of (tokens, inputs) to (tokens, outputs)."""
        return self.add(self.reduce_out(self.matmul(x, self.whole_weight(self.weight))), self.whole_bias(self.bias))


class ExplicitTrainStep(nn.TrainOneStepCell):
    """One training step of a network that is built already cut.

    Gradients are averaged over the data group, unless `GatherRows` did it already; the parallel mode stays
    stand-alone, because data-parallel mode would average over all ranks and mix the slices. The loss returned is the
    average over the data group too: the loss of the whole batch.

    With `micro` batches a step goes through so many parts of its rows, one behind the other, and adds their gradients
    up before the update, so that a rank can make up for others that are gone. Part j has the rows j, j + micro, and so
    on, which are those that data-parallel rank j of `micro` would have read.
    """

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer, layout: Layout, micro: int = 1) -> None:
        super().__init__(network, optimizer)
        self.micro = micro
        self.share = 1.0 / layout.dp
        self.replicated = layout.dp > 1
        if self.replicated:
            self.grad_reducer = nn.DistributedGradReducer(self.weights, True, layout.dp, group=layout.data_group)
            self.reduce_loss = ops.AllReduce(group=layout.data_group)

    def construct(self, *inputs: Tensor) -> Tensor:
        """Update the parameters with one batch and return its loss."""
        rows = self.rows(inputs, 0)
        loss = self.network(*rows)
        grads = self.grad_no_sens(self.network, self.weights)(*rows)
        for part in range(1, self.micro):
            rows = self.rows(inputs, part)
            loss = loss + self.network(*rows)
            grads = self.add(grads, self.grad_no_sens(self.network, self.weights)(*rows))
        if self.micro > 1:
            loss, grads = loss * (1.0 / self.micro), self.scale(grads)
        grads = self.grad_reducer(grads)
        loss = ops.depend(loss, self.optimizer(grads))
        return self.reduce_loss(loss) * self.share if self.replicated else loss

    def rows(self, inputs: tuple[Tensor, ...], part: int) -> tuple[Tensor, ...]:
        """Return one part of the rows of a batch."""
        if self.micro == 1:
            return inputs
        found = ()
        for one in inputs:
            found = (*found, one[part :: self.micro])
        return found

    def add(self, grads: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the sums of gradients."""
        found = ()
        for index in range(len(grads)):
            found = (*found, grads[index] + more[index])
        return found

    def scale(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the means of gradients over the micro-batches."""
        found = ()
        for one in grads:
            found = (*found, one * (1.0 / self.micro))
        return found


def initial(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw a weight from a normal distribution of standard deviation 0.02."""
    return (rng.standard_normal(shape) * 0.02).astype(np.float32)
