"""An encoder-decoder transformer: embeddings, encoder, decoder, head and the loss.

Activations are tokens by features, so that every layer is a matrix product; only attention looks at the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from layout import Layout
from mindspore import Parameter, Tensor, nn, ops
from parallel import ColumnLinear, RowLinear, initial, whole

MASKED = -1e9
"""Added to the attention scores of positions that must not be seen."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the network.

    Parameters
    ----------
    batch : int
        Sentence pairs per call of the network.
    src_len, tgt_len : int
        Tokens of a source and of a target sentence.
    vocab : int
        Tokens known of each language.
    hidden, ffn, heads : int
        Features of a token, of the feed-forward layer, and attention heads.
    encoder_layers, decoder_layers : int
        Numbers of layers.
    """

    batch: int
    src_len: int
    tgt_len: int
    vocab: int
    hidden: int
    ffn: int
    heads: int
    encoder_layers: int
    decoder_layers: int


class Embedding(nn.Cell):
    """Word and position embeddings; (batch, length) token numbers to (batch * length, hidden)."""

    def __init__(self, length: int, sizes: Sizes, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        self.words = layout.parameter(initial(rng, sizes.vocab, sizes.hidden), "words")
        self.positions = layout.parameter(initial(rng, length, sizes.hidden), "positions")
        self.all_words, self.all_positions = whole(self.words, layout), whole(self.positions, layout)
        self.gather = layout.sharded(ops.Gather(), (1, 1), (layout.dp, 1))
        self.add = layout.sharded(ops.Add(), (layout.dp, 1, 1), (1, 1))
        self.shape = (sizes.batch * length, sizes.hidden)

    def construct(self, ids: Tensor) -> Tensor:
        """Embed token numbers."""
        words = self.gather(self.all_words(self.words), ids, 0)
        return ops.reshape(self.add(words, self.all_positions(self.positions)), self.shape)


class Norm(nn.Cell):
    """Layer normalization over the features of a token."""

    def __init__(self, hidden: int, layout: Layout) -> None:
        super().__init__()
        self.gamma = layout.parameter(np.ones(hidden, np.float32), "gamma")
        self.beta = layout.parameter(np.zeros(hidden, np.float32), "beta")
        self.whole_gamma, self.whole_beta = whole(self.gamma, layout), whole(self.beta, layout)
        self.norm = layout.sharded(ops.LayerNorm(-1, -1, 1e-5), (layout.dp, 1), (1,), (1,))

    def construct(self, x: Tensor) -> Tensor:
        """Normalize (tokens, hidden)."""
        return self.norm(x, self.whole_gamma(self.gamma), self.whole_beta(self.beta))[0]


class Attention(nn.Cell):
    """Multi-head attention of `queries` tokens to `keys` tokens per sentence, its heads split over the tensor group.

    With `causal` a token sees no later one; otherwise the caller's mask decides.
    """

    def __init__(
        self, queries: int, keys: int, causal: bool, sizes: Sizes, layout: Layout, rng: np.random.Generator
    ) -> None:
        super().__init__()
        dp, mp = layout.dp, layout.mp
        heads, width = sizes.heads // layout.parts, sizes.hidden // sizes.heads
        self.query = ColumnLinear(sizes.hidden, sizes.hidden, layout, rng)
        self.key = ColumnLinear(sizes.hidden, sizes.hidden, layout, rng)
        self.value = ColumnLinear(sizes.hidden, sizes.hidden, layout, rng)
        self.output = RowLinear(sizes.hidden, sizes.hidden, layout, rng)
        self.query_shape = (sizes.batch, queries, heads, width)
        self.key_shape = (sizes.batch, keys, heads, width)
        self.out_shape = (sizes.batch * queries, heads * width)
        self.split_heads = layout.sharded(ops.Transpose(), (dp, 1, mp, 1))
        self.merge_heads = layout.sharded(ops.Transpose(), (dp, mp, 1, 1))
        self.scores = layout.sharded(ops.BatchMatMul(transpose_b=True), (dp, mp, 1, 1), (dp, mp, 1, 1))
        self.scale = layout.sharded(ops.Mul(), (dp, mp, 1, 1), ())
        self.hide = layout.sharded(ops.Add(), (dp, mp, 1, 1), (1 if causal else dp, 1, 1, 1))
        self.softmax = layout.sharded(ops.Softmax(), (dp, mp, 1, 1))
        self.mix = layout.sharded(ops.BatchMatMul(), (dp, mp, 1, 1), (dp, mp, 1, 1))
        self.factor = Tensor(width**-0.5)
        self.causal = Tensor(np.triu(np.full((1, 1, queries, keys), MASKED, np.float32), 1)) if causal else None

    def construct(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Let the tokens `x` look at the tokens `memory`."""
        query = self.split_heads(ops.reshape(self.query(x), self.query_shape), (0, 2, 1, 3))
        key = self.split_heads(ops.reshape(self.key(memory), self.key_shape), (0, 2, 1, 3))
        value = self.split_heads(ops.reshape(self.value(memory), self.key_shape), (0, 2, 1, 3))
        hidden = mask if self.causal is None else self.causal
        weights = self.softmax(self.hide(self.scale(self.scores(query, key), self.factor), hidden))
        seen = self.merge_heads(self.mix(weights, value), (0, 2, 1, 3))
        return self.output(ops.reshape(seen, self.out_shape))


class FeedForward(nn.Cell):
    """Two linear layers with GELU between them, the inner features split over the tensor group."""

    def __init__(self, sizes: Sizes, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        self.inner = ColumnLinear(sizes.hidden, sizes.ffn, layout, rng)
        self.outer = RowLinear(sizes.ffn, sizes.hidden, layout, rng)
        self.gelu = layout.sharded(ops.GeLU(), (layout.dp, layout.mp))

    def construct(self, x: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same shape."""
        return self.outer(self.gelu(self.inner(x)))


class EncoderLayer(nn.Cell):
    """Self-attention and feed-forward, each behind a norm and beside a shortcut."""

    def __init__(self, sizes: Sizes, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        self.attention_norm = Norm(sizes.hidden, layout)
        self.attention = Attention(sizes.src_len, sizes.src_len, False, sizes, layout, rng)
        self.ffn_norm = Norm(sizes.hidden, layout)
        self.ffn = FeedForward(sizes, layout, rng)
        self.add = layout.sharded(ops.Add(), (layout.dp, 1), (layout.dp, 1))

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same shape."""
        normed = self.attention_norm(x)
        x = self.add(x, self.attention(normed, normed, mask))
        return self.add(x, self.ffn(self.ffn_norm(x)))


class DecoderLayer(nn.Cell):
    """Causal self-attention, attention to the encoder's output, and feed-forward."""

    def __init__(self, sizes: Sizes, layout: Layout, rng: np.random.Generator) -> None:
        super().__init__()
        self.self_norm = Norm(sizes.hidden, layout)
        self.self_attention = Attention(sizes.tgt_len, sizes.tgt_len, True, sizes, layout, rng)
        self.cross_norm = Norm(sizes.hidden, layout)
        self.cross_attention = Attention(sizes.tgt_len, sizes.src_len, False, sizes, layout, rng)
        self.ffn_norm = Norm(sizes.hidden, layout)
        self.ffn = FeedForward(sizes, layout, rng)
        self.add = layout.sharded(ops.Add(), (layout.dp, 1), (layout.dp, 1))

    def construct(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same shape; `memory` is the encoder's output."""
        normed = self.self_norm(x)
        x = self.add(x, self.self_attention(normed, normed, mask))
        x = self.add(x, self.cross_attention(self.cross_norm(x), memory, mask))
        return self.add(x, self.ffn(self.ffn_norm(x)))


class Transformer(nn.Cell):
    """The whole network with its loss: the cross entropy per target position, padding counted as zero.

    Dividing by the number of positions, not by the number of words, makes the loss of a batch the plain average of
    the losses of its data-parallel shares, and of its micro batches: MindSpore adds the losses of these up and divides
    their gradients by their number (``_TrainGradAccuStepCell``, ``mindspore/nn/wrap/cell_wrapper.py``).
    """

    def __init__(self, sizes: Sizes, layout: Layout, seed: int) -> None:
        super().__init__()
        dp, rng = layout.dp, np.random.default_rng(seed)
        self.source = Embedding(sizes.src_len, sizes, layout, rng)
        self.encoder = nn.CellList([EncoderLayer(sizes, layout, rng) for _ in range(sizes.encoder_layers)])
        self.encoder_norm = Norm(sizes.hidden, layout)
        self.target = Embedding(sizes.tgt_len, sizes, layout, rng)
        self.decoder = nn.CellList([DecoderLayer(sizes, layout, rng) for _ in range(sizes.decoder_layers)])
        self.decoder_norm = Norm(sizes.hidden, layout)
        self.head = layout.parameter(initial(rng, sizes.vocab, sizes.hidden), "head")
        self.whole_head = whole(self.head, layout)
        self.project = layout.sharded(ops.MatMul(transpose_b=True), (dp, 1), (1, 1))
        self.one_hot = layout.sharded(ops.OneHot(), (dp, 1), (), ())
        self.cross_entropy = layout.sharded(ops.SoftmaxCrossEntropyWithLogits(), (dp, 1), (dp, 1))
        self.weigh = layout.sharded(ops.Mul(), (dp,), (dp,))
        self.sum = layout.sharded(ops.ReduceSum(), (dp,))
        self.positions = (sizes.batch * sizes.tgt_len,)
        self.share = 1.0 / (sizes.batch * sizes.tgt_len)
        self.vocab = sizes.vocab
        self.on, self.off = Tensor(1.0), Tensor(0.0)
        if layout.stages > 1:
            self._assign_stages(layout.stages)

    def construct(self, source: Tensor, mask: Tensor, target: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of a batch of sentence pairs.

        Parameters
        ----------
        source, target, label : Tensor of int32
            Token numbers, (batch, src_len), (batch, tgt_len), (batch, tgt_len); the label is the target moved by one.
        mask : Tensor of float32
            (batch, 1, 1, src_len): 0 for a word of the source, `MASKED` for padding.
        weight : Tensor of float32
            (batch, tgt_len): 1 for a word of the label, 0 for padding.
        """
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory, mask)
        memory = self.encoder_norm(memory)
        x = self.target(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        logits = self.project(self.decoder_norm(x), self.whole_head(self.head))
        labels = self.one_hot(ops.reshape(label, self.positions), self.vocab, self.on, self.off)
        losses = self.weigh(self.cross_entropy(logits, labels)[0], ops.reshape(weight, self.positions))
        return self.sum(losses, 0) * self.share

    def _assign_stages(self, stages: int) -> None:
        """Spread the layers evenly over the pipeline stages, in order."""
        layers = [*self.encoder, *self.decoder]
        for index, layer in enumerate(layers):
            layer.pipeline_stage = index * stages // len(layers)
        self.source.pipeline_stage = layers[0].pipeline_stage
        self.encoder_norm.pipeline_stage = self.encoder[-1].pipeline_stage
        self.target.pipeline_stage = self.decoder[0].pipeline_stage
        self.decoder_norm.pipeline_stage = layers[-1].pipeline_stage


def optimizer_groups(parameters: list[Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Give weight decay to every parameter but norms and biases."""

    def decays(parameter: Parameter) -> bool:
        return not parameter.name.endswith((".bias", ".gamma", ".beta"))

    return [
        {"params": [parameter for parameter in parameters if decays(parameter)], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if not decays(parameter)], "weight_decay": 0.0},
        {"order_params": parameters},
    ]
