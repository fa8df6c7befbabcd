"""The network and the samples of trainings that are killed."""

import mindspore as ms
import numpy as np
from mindspore import nn

WIDTH, CLASSES = 6, 3


class Network(nn.Cell):
    """Two layers, with the same values in every process."""

    def __init__(self, width):
        super().__init__()
        source = np.random.default_rng(3)

        def dense(rows, columns):
            weight = ms.Tensor(source.standard_normal((columns, rows)).astype(np.float32))
            return nn.Dense(rows, columns, weight, "zeros")

        self.first, self.last = dense(WIDTH, width), dense(width, CLASSES)
        self.act = nn.Tanh()

    def construct(self, x):
        return self.last(self.act(self.first(x)))


class Rows:
    """A source with random access."""

    def __init__(self, number, count):
        source = np.random.default_rng(number)
        self.x = source.standard_normal((count, WIDTH)).astype(np.float32)
        self.y = source.standard_normal((count, CLASSES)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]
