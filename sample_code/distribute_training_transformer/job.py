"""What both training scripts share: from the options to a model, a dataset and callbacks."""

from __future__ import annotations

import argparse
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from dataset import SentencePairs, create_dataset
from layout import Layout
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback, Model
from model import Sizes, Transformer, optimizer_groups
from options import world_size
from parallel import ExplicitTrainStep
from rank_table import device_of

from ms_recover.training import SliceCheckpoint


@dataclass(frozen=True)
class Job:
    """Everything that a training run of one rank needs."""

    model: Model
    dataset: ds.Dataset
    callbacks: list[Callback]
    sink_mode: bool


class LossLog(Callback):
    """Print the loss of every step, and append it to a file to the last bit.

    Each line of the file is an object with ``epoch``, ``step``, ``loss`` (float.hex of the float32) and ``process``;
    a resumed run appends lines with another process id.

    Parameters
    ----------
    path : Path
        File to append to.
    micro : int
        Micro batches of a pipeline, whose losses MindSpore adds up.
    """

    def __init__(self, path: Path, micro: int) -> None:
        super().__init__()
        self._path, self._micro = path, micro

    def on_train_step_end(self, run_context: Any) -> None:
        """Record the loss of the step that just ended; in sink mode, of the last step of the sink."""
        params = run_context.original_args()
        outputs = params.net_outputs
        loss = float(outputs.asnumpy() if isinstance(outputs, ms.Tensor) else outputs) / self._micro
        step = (params.cur_step_num - 1) % params.batch_num + 1
        print(f"epoch: {params.cur_epoch_num} step: {step}, loss is {loss:.6f}", flush=True)
        record = {"epoch": params.cur_epoch_num, "step": step, "loss": loss.hex(), "process": os.getpid()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def prepare(options: argparse.Namespace) -> Job:
    """Join the other ranks and build this rank's network, optimizer, dataset and callbacks.

    Under semi-auto parallel every rank reads the whole batch and the compiler cuts it; with explicit collectives each
    data-parallel rank reads its share. The rows of a step are the same in both.
    """
    logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(message)s")
    semi_auto = options.device_target == "Ascend"
    ms.set_context(mode=ms.GRAPH_MODE)
    table = os.environ.get("RANK_TABLE_FILE")
    if semi_auto and table:
        ms.set_device(options.device_target, device_of(table, int(os.environ.get("RANK_ID") or 0)))
    else:
        ms.set_device(options.device_target)
    ms.set_seed(options.seed)
    distributed = world_size() > 1
    if distributed:
        init()
    rank, ranks = (get_rank(), get_group_size()) if distributed else (0, 1)
    directory = Path(options.output_dir).resolve()
    strategy = str(directory / f"ckpt_dir{rank}" / "strategy.ckpt")
    shard_optimizer, sharding = bool(options.enable_parallel_optimizer), {"parallel_optimizer_threshold": 0}
    if options.optimizer_shards:
        sharding["optimizer_weight_shard_size"] = options.optimizer_shards
    shards = options.optimizer_shards or ranks // options.mp if shard_optimizer and not semi_auto else 0
    layout = Layout(rank, ranks, options.mp, options.pipeline_stage, semi_auto, shards)
    if semi_auto and distributed:
        ms.set_auto_parallel_context(
            parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL,
            full_batch=True,
            gradients_mean=False,
            pipeline_stages=options.pipeline_stage,
            enable_parallel_optimizer=shard_optimizer,
            parallel_optimizer_config=sharding,
            strategy_ckpt_config={"save_file": strategy, "only_trainable_params": False},
        )
    if distributed:
        layout.create_groups()

    shards, shard = (1, 0) if semi_auto else (layout.dp, rank // options.mp)
    micro = options.micro_batch_num or options.pipeline_stage
    sizes = Sizes(
        batch=options.batch_size // shards // micro,
        src_len=options.src_len,
        tgt_len=options.tgt_len,
        vocab=options.vocab_size,
        hidden=options.hidden_size,
        ffn=options.ffn_size,
        heads=options.heads,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
    )
    pairs = SentencePairs(options.file_path, options.src_len, options.tgt_len, options.vocab_size)
    network = Transformer(sizes, layout, options.seed)
    groups = optimizer_groups(network.trainable_params(), options.weight_decay)
    optimizer = nn.AdamWeightDecay(groups, learning_rate=options.lr)
    if semi_auto:
        if options.pipeline_stage > 1:
            network = nn.PipelineCell(network, micro)
        model = Model(network, optimizer=optimizer)
    else:
        model = Model(ExplicitTrainStep(network, optimizer, layout, micro))

    checkpoint = SliceCheckpoint(
        directory=f"{directory}/ckpt_dir{{rank}}",
        prefix="test",
        save_steps=options.save_steps,
        keep=options.keep,
        async_save=options.async_save,
        layouts=None if semi_auto else layout.layouts(),
        format=options.format,
    )
    loss_log = LossLog(directory / f"ckpt_dir{rank}" / f"loss{rank}.jsonl", micro if semi_auto else 1)
    dataset = create_dataset(pairs, options.batch_size, shards, shard, options.seed)
    print(f"rank {rank} of {ranks}: mp {layout.mp}, dp {layout.dp}, {options.device_target}", flush=True)
    return Job(model, dataset, [loss_log, checkpoint], sink_mode=semi_auto)
