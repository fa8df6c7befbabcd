"""Command line of both training scripts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

ASCEND_DRIVER = Path("/dev/davinci_manager")


def world_size() -> int:
    """Return the number of processes the launcher started, 1 without a launcher."""
    return int(os.environ.get("RANK_SIZE") or os.environ.get("MS_WORKER_NUM") or 1)


def parse_options(description: str, arguments: list[str] | None = None, *, resumes: bool = False) -> argparse.Namespace:
    """Read and check the command line; ends the process with 2 and a message when it makes no sense.

    The script that `resumes` has an option more: the slice to resume from.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--file_path", required=True, help="tab-separated two-language text file (make_dataset.py writes one)")
    add("--output_dir", default=".", help="where ckpt_dir{rank}/ with slices and group_info.pb lie")
    add(
        "--device_target",
        choices=("CPU", "Ascend"),
        default="Ascend" if ASCEND_DRIVER.exists() else "CPU",
        help="what to train on",
    )
    add("--mp", type=int, default=1, help="ranks over which each layer's weights are split")
    add(
        "--enable_parallel_optimizer",
        type=int,
        choices=(0, 1),
        nargs="?",
        const=1,
        default=0,
        help="split weights and optimizer states over the data-parallel ranks",
    )
    add(
        "--optimizer_shards",
        type=int,
        default=0,
        help="with --enable_parallel_optimizer 1: shards, a divisor of the data-parallel ranks; 0: one for each",
    )
    add("--pipeline_stage", type=int, default=1, help="pipeline stages (more than 1: Ascend only)")
    add(
        "--micro_batch_num",
        type=int,
        default=0,
        help="micro batches of the pipeline; 0: one per stage; on CPU parts of a rank's batch, trained in turn",
    )
    add(
        "--epochs",
        type=int,
        default=None,
        help="epochs in total, those before a resume included; None: 4, and 2 more when a training is resumed",
    )
    add("--batch_size", type=int, default=32, help="sentence pairs per step over all ranks")
    add("--lr", type=float, default=1e-3, help="learning rate")
    add("--weight_decay", type=float, default=1e-2, help="weight decay of all but norms and biases")
    add("--src_len", type=int, default=10, help="tokens of a source sentence")
    add("--tgt_len", type=int, default=10, help="tokens of a target sentence")
    add("--vocab_size", type=int, default=1024, help="tokens of each language")
    add("--hidden_size", type=int, default=128, help="features of a token")
    add("--ffn_size", type=int, default=512, help="features of the feed-forward layer")
    add("--heads", type=int, default=8, help="attention heads")
    add("--encoder_layers", type=int, default=1, help="encoder layers")
    add("--decoder_layers", type=int, default=1, help="decoder layers")
    add("--save_steps", type=int, default=None, help="steps between two slices; None: once per epoch")
    add("--keep", type=int, default=4, help="slices kept per rank")
    add("--format", choices=("ckpt", "safetensors"), default="ckpt", help="format of the slices")
    add("--async_save", action="store_true", help="go on training while slices are written")
    add("--seed", type=int, default=1, help="seed of the initial weights and of the shuffling")
    if resumes:
        add(
            "--ckpt_file",
            default=None,
            help="slice to resume from, of any rank, such as ckpt_dir0/test-2_77.ckpt, relative to where the job was "
            "launched or to --output_dir; None: the newest that all ranks have",
        )
        add(
            "--reshard",
            action="store_true",
            help="resume on another number of ranks, or with another --mp or optimizer sharding: slices are cut anew",
        )
        add(
            "--from",
            dest="sources",
            metavar="SOURCE",
            action="append",
            default=[],
            help="with --reshard: another tree with slices of the training, HOST:PORT of recover-ckpt serve, a URL or "
            "an absolute path; repeatable",
        )
    options = parser.parse_args(arguments)
    if resumes and options.ckpt_file:
        options.ckpt_file = _found(options.ckpt_file, os.environ.get("LAUNCHED_FROM") or ".", options.output_dir)
    problem = _problem(options, world_size())
    if resumes and options.sources and not options.reshard:
        problem = "--from is for --reshard, which cuts slices anew"
    if problem:
        parser.error(problem)
    return options


def _found(path: str, *folders: str) -> str:
    """Return a path below the first of some folders where it is there, the last one where it is nowhere."""
    places = [Path(folder) / path for folder in folders]
    return str(next((place for place in places if place.exists()), places[-1]).absolute())


def _problem(options: argparse.Namespace, ranks: int) -> str | None:
    """Say what is wrong with the options on a world of `ranks` processes."""
    sizes = ("mp", "pipeline_stage", "batch_size", "src_len", "tgt_len", "hidden_size", "ffn_size", "heads",
             "encoder_layers", "decoder_layers")  # fmt: skip
    if options.epochs is not None and options.epochs < 1:
        return f"--epochs must be at least 1, not {options.epochs}"
    for name in sizes:
        if getattr(options, name) < 1:
            return f"--{name} must be at least 1, not {getattr(options, name)}"
    if options.device_target == "CPU" and options.pipeline_stage > 1:
        return "--pipeline_stage above 1 needs MindSpore's parallel compiler, which runs on Ascend only; use 1 on CPU"
    layers = options.encoder_layers + options.decoder_layers
    if options.pipeline_stage > layers:
        return (
            f"--pipeline_stage {options.pipeline_stage} is more than the {layers} layers of encoder and decoder, so "
            "that a stage would have none"
        )
    if ranks % (options.mp * options.pipeline_stage):
        return (
            f"{ranks} rank(s) cannot be divided into --pipeline_stage {options.pipeline_stage} x --mp {options.mp}; "
            "set RANK_SIZE to a multiple"
        )
    dp = ranks // (options.mp * options.pipeline_stage)
    if options.optimizer_shards and not options.enable_parallel_optimizer:
        return "--optimizer_shards needs --enable_parallel_optimizer 1"
    if options.optimizer_shards < 0 or (options.optimizer_shards and dp % options.optimizer_shards):
        return f"--optimizer_shards {options.optimizer_shards} does not divide {dp} data-parallel rank(s)"
    micro = options.micro_batch_num or options.pipeline_stage
    if micro > 1 and options.pipeline_stage == 1 and options.device_target != "CPU":
        return f"--micro_batch_num {micro} needs --pipeline_stage above 1: micro batches are those of a pipeline"
    if micro < options.pipeline_stage:
        return f"--micro_batch_num {micro} is smaller than --pipeline_stage {options.pipeline_stage}"
    if options.batch_size % (dp * micro):
        return (
            f"--batch_size {options.batch_size} cannot be divided among {dp} data-parallel rank(s) "
            f"x {micro} micro batch(es)"
        )
    for name in ("heads", "hidden_size", "ffn_size"):
        if getattr(options, name) % options.mp:
            return f"--{name} {getattr(options, name)} cannot be divided among --mp {options.mp} ranks"
    if options.hidden_size % options.heads:
        return f"--hidden_size {options.hidden_size} cannot be divided among --heads {options.heads}"
    if options.vocab_size < 5:
        return f"--vocab_size {options.vocab_size} leaves no room for words: four are special tokens"
    if not Path(options.file_path).is_file():
        return f"--file_path {options.file_path} is not a file; make_dataset.py writes one"
    return None
