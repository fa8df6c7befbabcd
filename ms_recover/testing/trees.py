"""Slices and checkpoint trees as MindSpore writes them, made without MindSpore and the same every time.

The wire layout is that of ``mindspore.save_checkpoint`` (``mindspore/train/serialization.py``): one ``Checkpoint``
message with one ``Value`` for each parameter, one after the other.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.wire import encode_field
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.scanning.scan import scan

SLICE_MODE = 0o400
PARAMETERS = {"embedding": 48, "dense.weight": 96, "moment1.dense.weight": 96, "global_step": 1}
"""Names and numbers of elements of what `make_tree` saves by default."""


def record(name: str, content: bytes, shape: Sequence[int], dtype: str = "Float32") -> bytes:
    """Encode one parameter, or one piece of it, as a ``Checkpoint`` message."""
    dims = b"".join(encode_field(1, size) for size in shape)
    tensor = dims + encode_field(2, dtype.encode()) + encode_field(3, content)
    return encode_field(1, encode_field(1, name.encode()) + encode_field(2, tensor))


def slice_bytes(
    parameters: Mapping[str, int], seed: int, *, crc: bool = False, pieces: Mapping[str, int] | None = None
) -> bytes:
    """Return a slice of named parameters of so many elements each; the same `seed` gives the same contents.

    With `crc` MindSpore's trailer is at the end; `pieces` says into how many records a parameter is split, as MindSpore
    does above 512 MiB.
    """
    source = random.Random(seed)  # noqa: S311
    data = b""
    for name, count in parameters.items():
        content = source.randbytes(4 * count)
        parts = (pieces or {}).get(name, 1)
        edges = [4 * (count * part // parts) for part in range(parts + 1)]
        data += b"".join(record(name, content[start:end], [count]) for start, end in pairwise(edges))
    return data + crc_trailer(data) if crc else data


def crc_trailer(data: bytes) -> bytes:
    """Return the trailer that ``crc_check=True`` appends to `data`."""
    return b"crc_num" + zlib.crc32(data).to_bytes(10, "big")


def make_tree(  # noqa: PLR0913 (the keywords of tests)
    root: Path,
    *,
    data_parallel: int = 2,
    model_parallel: int = 2,
    steps: Iterable[Step] = (Step(1, 8),),
    parameters: Mapping[str, int] | None = None,
    directory: str = "ckpt_dir{rank}",
    name: str = "test-{step}.ckpt",
    crc: bool = False,
    pieces: Mapping[str, int] | None = None,
) -> Path:
    """Write a tree in which ranks that differ only along the data-parallel dimension hold the same slice.

    Rank ``data_index * model_parallel + model_index`` saved each of the steps, as `slice_bytes` makes them, in paths of
    the forms `directory` and `name` with ``{rank}`` and ``{step}``.
    """
    listed = parameters or PARAMETERS
    for rank in range(data_parallel * model_parallel):
        folder = root / directory.format(rank=rank)
        folder.mkdir(parents=True, exist_ok=True)
        part = rank % model_parallel
        write_group_info(folder / "group_info.pb", [part + i * model_parallel for i in range(data_parallel)])
        for step in steps:
            path = folder / name.format(rank=rank, step=step)
            seed = step.epoch * 1_000_003 + step.step * 1009 + part
            path.write_bytes(slice_bytes(listed, seed, crc=crc, pieces=pieces))
            path.chmod(SLICE_MODE)
    return root


def save_manifests(root: Path, run_id: str = "run-1", hosts: Sequence[str] | None = None) -> None:
    """Give every slice of a tree of `make_tree` the manifest that saving it would have given it.

    `hosts` are the hosts on which the ranks ran, by rank.
    """
    inventory = scan(root)
    for file in inventory.slices:
        path = root / file.path
        group = read_group_info(path.parent / "group_info.pb").restore_ranks
        manifest = replace(
            make_manifest(str(path), file.rank, file.step, len(inventory.ranks), tuple(group), run_id), provenance=SAVED
        )
        if hosts is not None:
            manifest = replace(manifest, training=TrainingRecord(started=1, host=hosts[file.rank]))
        write_manifest(str(path), manifest)
