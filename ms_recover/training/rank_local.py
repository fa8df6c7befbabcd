"""Find the parameters of which each rank of a group has its own values, while slices are saved.

The summary of a rank's values travels in the gather in which the ranks agree on the step that all have committed. Where
summaries of a group differ, a second gather shows the parameters; from then on these are left out of the summary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from ms_recover.execution.manifests import write_manifest
from ms_recover.model.manifest import Manifest, TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_of
from ms_recover.system_errors import explained
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import Contents
from ms_recover.training.deciding.rank_values import (
    BUFFER,
    RankValues,
    Value,
    find_rank_local,
    rank_local_text,
    values_of_buffers,
)
from ms_recover.training.deciding.rotation import NO_STEP

_log = logging.getLogger(__name__)


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
            return RankValues(group, step, {**present, **values_of_buffers(buffers)}, self.names)
        manifest = self._manifest
        if manifest is None or len(group) < 2:
            return RankValues(group, NO_STEP, {}, self.names)
        pairs = zip(manifest.parameters, manifest.digests.parameters, strict=False)
        values = {parameter.name: Value(prod(parameter.shape), digest) for parameter, digest in pairs}
        if manifest.training is not None:
            values |= values_of_buffers(manifest.training.buffers)
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
        own = {name.removeprefix(BUFFER) for name in self.names if name.startswith(BUFFER)}
        names = tuple(sorted(name for name in self.names if not name.startswith(BUFFER)))
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
