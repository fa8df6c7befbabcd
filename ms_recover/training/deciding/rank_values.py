"""The parameters of which each rank of a group has its own values: what the summaries of all ranks show."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ms_recover.model.rank_local import MOST_NAMED, own_values, share_nothing
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob

_PAIR = struct.Struct(">2i")
"""A hash as signed 32-bit numbers, as `TrainingJob.gather` takes them."""

BUFFER = "buffer "
"""In front of the names of buffers, which may be those of parameters too."""

_Pair = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """The value of one parameter."""

    elements: int
    digest: str


def values_of_buffers(buffers: Iterable[tuple[str, str]]) -> dict[str, Value]:
    """Return the values of buffers by name, as `RankValues` has them."""
    return {f"{BUFFER}{name}": Value(1, digest) for name, digest in buffers}


@dataclass(frozen=True)
class RankValues:
    """The values that one rank of a group holds.

    `values` are by parameter, those of a `step`, empty where nothing is known; the `known` parameters are known to be
    rank-local.
    """

    group: tuple[int, ...]
    step: Step
    values: Mapping[str, Value] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    @property
    def hashes(self) -> dict[str, _Pair]:
        """A 64-bit hash of name and digest, for each parameter that is not known to be rank-local."""
        return {name: _pair(f"{name}\0{value.digest}") for name, value in self.values.items() if name not in self.known}

    def summary(self) -> tuple[int, ...]:
        """Return numbers for a gather: the group, the number of parameters that are compared, the step, and a hash."""
        hashes = self.hashes if len(self.group) > 1 else {}
        joined = b"".join(_PAIR.pack(*pair) for pair in sorted(hashes.values()))
        return (*_pair(repr(sorted(self.group))), len(hashes), self.step.epoch, self.step.step, *_pair(joined))


def find_rank_local(job: TrainingJob, values: RankValues, summaries: Sequence[Sequence[int]]) -> frozenset[str]:
    """Return the parameters of this rank that are rank-local: those that were known, and those that differ now.

    `summaries` are those of each rank, index = rank. All ranks call this function; they exchange the hashes of single
    parameters only where some group differs.
    """
    groups: dict[_Pair, list[int]] = {}
    for rank, (first, second, count, *_) in enumerate(summaries):
        if count:
            groups.setdefault((first, second), []).append(rank)
    one_step = [ranks for ranks in groups.values() if len({tuple(summaries[rank][3:5]) for rank in ranks}) == 1]
    differing = [ranks for ranks in one_step if len({tuple(summaries[rank]) for rank in ranks}) > 1]
    if not differing:
        return values.known
    width = max(summaries[rank][2] for ranks in differing for rank in ranks)
    concerned = any(job.rank in ranks for ranks in differing)
    hashes = values.hashes if concerned else {}
    flat = [number for pair in hashes.values() for number in pair]
    rows = job.gather([*flat, *[0] * (2 * width - len(flat))], "comparing the values of ranks")
    held = [
        {(row[place], row[place + 1]) for place in range(0, 2 * summaries[rank][2], 2)}
        for ranks in differing
        if job.rank in ranks
        for rank, row in ((rank, rows[rank]) for rank in ranks)
    ]
    return values.known.union(name for name, pair in hashes.items() if not all(pair in pairs for pairs in held))


def rank_local_text(new: Collection[str], values: RankValues, *, first: bool) -> str:
    """Return a sentence that names parameters which were found to be rank-local, at the first save or a later one."""
    ranks = f"ranks {list_some(values.group)}"
    if share_nothing({name: value.elements for name, value in values.values.items()}, new):
        return (
            f"{ranks} should hold the same, but differ in every parameter, so that none can replace another after a "
            "loss; check the group or layouts, and that gradients are averaged over these ranks"
        )
    own = own_values(new)
    statistics = sorted(set(new).difference(own))
    texts = []
    if own:
        since = "" if first else " since this save, which were equal before"
        texts.append(
            f"{ranks} differ in {list_some(own, MOST_NAMED)}{since}: recorded as rank-local; a lost rank's values "
            "cannot come back, see rank_local of recover_train"
            + ("" if first else "; if they are no rank's own, a device or its memory is faulty")
        )
    if statistics:
        texts.append(
            f"batch statistics of {ranks} differ, as they may: {list_some(statistics, MOST_NAMED)}; a lost rank gets "
            "those of another"
        )
    return "; ".join(texts)


def _pair(value: str | bytes) -> _Pair:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    first, second = _PAIR.unpack(hashlib.blake2b(data, digest_size=_PAIR.size).digest())
    return first, second
