"""Find the parameters of which each rank of a group has its own values, while slices are saved.

The summary of a rank's values travels in the gather in which the ranks agree on the step that all have committed. Where
summaries of a group differ, a second gather shows the parameters; from then on these are left out of the summary.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ms_recover.execution.manifests import write_manifest
from ms_recover.model.manifest import Manifest, TrainingRecord
from ms_recover.model.rank_local import MOST_NAMED, own_values, share_nothing
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.stores.digest import digest_of
from ms_recover.system_errors import explained
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import Contents

_log = logging.getLogger(__name__)

_PAIR = struct.Struct(">2i")
"""A hash as signed 32-bit numbers, as `TrainingJob.gather` takes them."""

_NO_STEP = Step(0, 0)

_BUFFER = "buffer "
"""In front of the names of buffers, which may be those of parameters too."""

_Pair = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """The value of one parameter."""

    elements: int
    digest: str


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


class RankLocal:
    """The rank-local parameters of a run as one rank knows them.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._compared = False
        self._path = ""
        self._manifest: Manifest | None = None
        self.names: frozenset[str] = frozenset()

    def saved(self, path: str, manifest: Manifest) -> None:
        """Take note of the slice that was committed last."""
        self._path, self._manifest = path, manifest

    def is_due(self, group: tuple[int, ...]) -> bool:
        """Whether the ranks have not compared anything yet, although there are some to compare."""
        return self._job.connected and len(group) > 1 and not self._compared

    def values(
        self,
        group: tuple[int, ...],
        step: Step,
        contents: Contents | None = None,
        buffers: Iterable[tuple[str, str]] = (),
    ) -> RankValues:
        """Return the values of contents that are to be saved as a step, else of the slice that was committed last.

        `buffers` are the names and digests of those that are saved with the contents.
        """
        if contents is not None:  # with the digests that its manifest will state
            pairs = zip(contents.parameters, map(digest_of, contents.values), strict=True)
            present = {parameter.name: Value(prod(parameter.shape), digest) for parameter, digest in pairs}
            return RankValues(group, step, {**present, **_of_buffers(buffers)}, self.names)
        manifest = self._manifest
        if manifest is None or len(group) < 2:
            return RankValues(group, _NO_STEP, {}, self.names)
        pairs = zip(manifest.parameters, manifest.digests.parameters, strict=False)
        values = {parameter.name: Value(prod(parameter.shape), digest) for parameter, digest in pairs}
        if manifest.training is not None:
            values |= _of_buffers(manifest.training.buffers)
        return RankValues(group, manifest.step, values, self.names)

    def learn(self, values: RankValues, summaries: Sequence[Sequence[int]]) -> bool:
        """Compare the values of all ranks; return whether there are new rank-local parameters, and name them.

        All ranks call this function.
        """
        if not self._job.connected:
            return False
        found = find_rank_local(self._job, values, summaries)
        new, first = found - self.names, not self._compared
        self.names, self._compared = found, self._compared or bool(values.values)
        if new:
            text = rank_local_text(new, values, first=first)
            _log.warning("rank %d, step %s: %s", self._job.rank, values.step, text)
        return bool(new)

    def add_to(self, training: TrainingRecord | None) -> TrainingRecord | None:
        """Return the record of a slice that is to be saved, with the rank-local parameters."""
        return None if training is None else self._described(training)

    def _described(self, training: TrainingRecord) -> TrainingRecord:
        own = {name.removeprefix(_BUFFER) for name in self.names if name.startswith(_BUFFER)}
        names = tuple(sorted(name for name in self.names if not name.startswith(_BUFFER)))
        return replace(training, rank_local=names, own_buffers=tuple(sorted(own)))

    def record(self) -> None:
        """Write the manifest of the slice that was committed last again where it lacks rank-local parameters.

        A StorageError says that it cannot be written.
        """
        manifest = self._manifest
        if manifest is None or manifest.training is None or manifest.training == self._described(manifest.training):
            return
        self._manifest = replace(manifest, training=self._described(manifest.training))
        with explained("writing the manifest of", self._path):
            write_manifest(self._path, self._manifest)


def _of_buffers(buffers: Iterable[tuple[str, str]]) -> dict[str, Value]:
    return {f"{_BUFFER}{name}": Value(1, digest) for name, digest in buffers}


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
