"""A small network that MindSpore's compiler cuts over tensor-parallel and data-parallel ranks, and over two stages."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank
from mindspore.train import Metric, Model

MP = 4
WIDTH, ROWS, STEPS, MICRO, VOCABULARY = 16, 32, 4, 2, 64

SHARED_OUT = {"enable_parallel_optimizer": True, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}
IN_TWO = {"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": 2}
IN_TURN = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
LAYOUTS = {
    "mp4": {},
    "mp4-optimizer": SHARED_OUT,
    "mp4-optimizer-in-2": {"enable_parallel_optimizer": True, "parallel_optimizer_config": IN_TWO},
    "2-stages": {"pipeline_stages": 2},
    "2-stages-optimizer": {"pipeline_stages": 2, **SHARED_OUT},
    "interleaved": {
        "pipeline_stages": 2,
        "pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"},
    },
    "mp2": {},
    "mp2-optimizer": SHARED_OUT,
}
"""The parallel context of each layout, beside semi-auto parallel."""


class Block(nn.Cell):
    """Two matrix products: the first weight is split by rows, the second one by columns."""

    def __init__(self, name, dp, mp=MP):
        super().__init__()
        self.up = Parameter(Tensor(np.ones((2 * WIDTH, WIDTH), np.float32)), name=f"{name}.up")
        self.down = Parameter(Tensor(np.ones((WIDTH, 2 * WIDTH), np.float32)), name=f"{name}.down")
        self.bias = Parameter(Tensor(np.ones(WIDTH, np.float32)), name=f"{name}.bias")
        self.first = ops.MatMul(transpose_b=True).shard(((dp, 1), (mp, 1)))
        self.relu = ops.ReLU().shard(((dp, mp),))
        self.second = ops.MatMul(transpose_b=True).shard(((dp, mp), (1, mp)))
        self.add = ops.Add().shard(((dp, 1), (1,)))

    def construct(self, x):
        return self.add(self.second(self.relu(self.first(x, self.up)), self.down), self.bias)


class Network(nn.Cell):
    """Two blocks, on two stages where there are two, and a sum as the loss."""

    def __init__(self, dp, stages=1, mp=MP):
        super().__init__()
        self.front, self.back = Block("front", dp, mp), Block("back", dp, mp)
        self.total = ops.ReduceSum().shard(((dp, 1),))
        if stages > 1:
            self.front.pipeline_stage, self.back.pipeline_stage = 0, 1

    def construct(self, x):
        return self.total(self.back(self.front(x)))


class Interleaved(nn.Cell):
    """An embedding, which no stage is given, four blocks that two stages hold in turn, and a sum as the loss."""

    @ms.lazy_inline  # without it MindSpore interleaves nothing
    def __init__(self, dp, mp):
        super().__init__()
        self.table = Parameter(Tensor(np.ones((VOCABULARY, WIDTH), np.float32)), name="embedding.table")
        self.gather = ops.Gather().shard(((mp, 1), (dp,)))
        self.cast = ops.Cast()
        self.narrow = ops.ReduceSum().shard(((dp, 1),))
        self.blocks = nn.CellList([Block(f"layer{number}", dp, mp) for number in range(4)])
        self.total = ops.ReduceSum().shard(((dp, 1),))
        for number, block in enumerate(self.blocks):
            block.pipeline_stage, block.pipeline_segment = number % 2, number // 2

    def construct(self, x):
        out = self.gather(self.table, self.cast(self.narrow(x, 1), ms.int32), 0)
        for block in self.blocks:
            out = block(out)
        return self.total(out)


class Evaluated(nn.Cell):
    """What an evaluation looks at: loss, output and label, which are one here."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        loss = self.network(x)
        return loss, loss, loss


class Nothing(Metric):
    """A metric that looks at nothing, because no graph has run."""

    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.calls = 0

    def update(self, *outputs):
        self.calls += 1

    def eval(self):
        return self.calls


def rows(count=ROWS * STEPS):
    return ds.GeneratorDataset([(np.full(WIDTH, i, np.float32),) for i in range(count)], ["x"]).batch(ROWS)


def make_model(layout, strategy):
    """Set the parallel context of a layout and make its model."""
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL,
        full_batch=True,
        strategy_ckpt_config={"save_file": strategy, "only_trainable_params": False},
        **LAYOUTS[layout],
    )
    stages = LAYOUTS[layout].get("pipeline_stages", 1)
    mp = 2 if layout.startswith(("mp2", "interleaved")) else MP
    dp = get_group_size() // mp // stages
    network = Interleaved(dp, mp) if layout == "interleaved" else Network(dp, stages, mp)
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    trained = nn.PipelineCell(network, MICRO) if stages > 1 else network
    return Model(
        trained,
        optimizer=optimizer,
        eval_network=Evaluated(network),
        eval_indexes=[0, 1, 2],
        metrics={"nothing": Nothing()},
    )


def whole_value(parameter, shape):
    """Return known values for a whole parameter."""
    numbers = np.random.default_rng(sum(parameter.name.encode())).integers(0, 1 << 20, shape)
    return numbers.astype(ms.dtype_to_nptype(parameter.dtype))


def known_values(network):
    """Return known values for the parameters of a compiled network: this rank's part of a whole tensor, by name.

    MindSpore cuts the whole tensor, by the layouts that its compiler gave to the network. A weight that has none is cut
    like its state: a later stage of an interleaved pipeline holds an embedding so.
    """
    from mindspore.parallel._tensor import _load_tensor_by_layout

    values = {}
    for parameter in network.get_parameters():
        layouts = network.parameter_layout_dict
        layout = layouts.get(parameter.name) or layouts.get(f"moment1.{parameter.name}")
        shape = tuple(layout[6]) if layout and len(layout) > 6 and layout[6] else tuple(parameter.shape)
        whole = Tensor(whole_value(parameter, shape))
        part = _load_tensor_by_layout(whole, layout, get_rank()) if layout else whole
        values[parameter.name] = Tensor(part.asnumpy().copy())
    return values
