"""The process of this rank: its job, and its device, as MindSpore says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import ops
from mindspore.communication import get_group_size, get_rank
from mindspore.mint.distributed import is_initialized

from ms_recover.errors import UsageError
from ms_recover.training.deciding.job import TrainingJob


def current_job(environ: Mapping[str, str] = os.environ) -> TrainingJob:
    """Return the job of this process: by MindSpore's communication, else RANK_ID and RANK_SIZE, else a single rank.

    Raises UsageError when RANK_ID and RANK_SIZE are no numbers or contradict each other.
    """
    if is_initialized():
        return TrainingJob(get_rank(), get_group_size(), _all_gather)
    rank_text, size_text = environ.get("RANK_ID") or "0", environ.get("RANK_SIZE") or ""
    try:
        rank = int(rank_text)
        size = int(size_text) if size_text else rank + 1
    except ValueError:
        raise UsageError(f"RANK_ID is {rank_text!r} and RANK_SIZE is {size_text!r}: they must be numbers") from None
    if not 0 <= rank < size:
        raise UsageError(f"RANK_ID is {rank}, which is not between 0 and RANK_SIZE - 1 = {size - 1}")
    return TrainingJob(rank, size)


def device_target() -> str:
    """Return MindSpore's device: ``"CPU"``, ``"Ascend"`` or ``"GPU"``."""
    return str(ms.get_context("device_target"))


def _all_gather(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    gathered = ops.AllGather()(ms.Tensor(np.array(numbers, np.int32))).asnumpy()
    return [tuple(row) for row in gathered.reshape(get_group_size(), -1).tolist()]
