"""The training job: the rank of this process, and exchanges among all ranks."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import mindspore as ms
import numpy as np
from mindspore import ops
from mindspore.communication import get_group_size, get_rank
from mindspore.mint.distributed import is_initialized

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.model.texts import list_some

_T = TypeVar("_T")


@dataclass(frozen=True)
class TrainingJob:
    """The ranks of a training job, as the process of one rank sees them.

    Without `connected` MindSpore's communication is down, and ranks cannot exchange numbers.
    """

    rank: int
    size: int
    connected: bool

    def gather(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """Send numbers to every rank, and return those of each rank, index = rank.

        Blocks until all ranks have called it with as many numbers, at least one, each within 32 bits: the widest type
        that AllGather takes on every device. Raises UsageError when there are other ranks but no communication, and
        MsRecoverError when another rank is gone, which MindSpore notices by itself.
        """
        if self.size == 1:
            return [tuple(numbers)]
        if not self.connected:
            raise UsageError(
                f"rank {self.rank} is one of {self.size}, but cannot communicate with the others: "
                "call mindspore.communication.init() first"
            )
        try:
            gathered = ops.AllGather()(ms.Tensor(np.array(numbers, np.int32))).asnumpy()
        except RuntimeError as error:
            raise MsRecoverError(f"rank {self.rank}: another rank is gone; its log says why ({error})") from error
        return [tuple(row) for row in gathered.reshape(self.size, -1).tolist()]

    def holds_everywhere(self, fact: bool) -> bool:
        """Whether a fact holds on every rank; all ranks call this. A rank without communication goes by its own."""
        return all(held for (held,) in self.gather([fact])) if self.connected else fact

    def gather_text(self, text: str) -> list[str]:
        """Send a text to every rank, and return that of each rank, index = rank; as `gather`."""
        data = text.encode()
        sizes = [size for (size,) in self.gather([len(data)])]
        padded = data.ljust(-(-max(sizes) // 4) * 4 + 4, b"\0")
        rows = self.gather(struct.unpack(f"<{len(padded) // 4}i", padded))
        return [struct.pack(f"<{len(row)}i", *row)[:size].decode() for row, size in zip(rows, sizes, strict=True)]

    def run_together(self, what: str, work: Callable[[], _T]) -> _T:
        """Run `work`, which messages call `what`, on every rank; if it fails on one, it fails on all.

        Where it fails, its own error is raised; on the ranks where it succeeded, MsRecoverError.
        """
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failure = error
        failed = [rank for rank, (flag,) in enumerate(self.gather([failure is not None])) if flag]
        if failure is not None:
            raise failure
        if failed:
            raise MsRecoverError(
                f"rank {self.rank} stops because {what} failed on rank(s) {list_some(failed)}; see their logs"
            )
        return result


def current_job(environ: Mapping[str, str] = os.environ) -> TrainingJob:
    """Return the job of this process: by MindSpore's communication, else RANK_ID and RANK_SIZE, else a single rank.

    Raises UsageError when RANK_ID and RANK_SIZE are no numbers or contradict each other.
    """
    if is_initialized():
        return TrainingJob(get_rank(), get_group_size(), True)
    rank_text, size_text = environ.get("RANK_ID") or "0", environ.get("RANK_SIZE") or ""
    try:
        rank = int(rank_text)
        size = int(size_text) if size_text else rank + 1
    except ValueError:
        raise UsageError(f"RANK_ID is {rank_text!r} and RANK_SIZE is {size_text!r}: they must be numbers") from None
    if not 0 <= rank < size:
        raise UsageError(f"RANK_ID is {rank}, which is not between 0 and RANK_SIZE - 1 = {size - 1}")
    return TrainingJob(rank, size, False)


def device_target() -> str:
    """Return MindSpore's device: ``"CPU"``, ``"Ascend"`` or ``"GPU"``."""
    return str(ms.get_context("device_target"))
