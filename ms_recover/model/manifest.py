"""The manifest: what a slice must be, written beside it when it is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ms_recover.model.compose import Runs
from ms_recover.model.provenance import SAVED, Provenance
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.units import Moment

MANIFEST_VERSION = 2
DIGEST = "xxh3_128"
"""Name of the digest; digests are written ``name:hexadecimal``."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of a slice's bytes."""

    file: str
    """Of the whole file."""
    parameters: tuple[str, ...] = ()
    """Of each parameter's contents, all pieces in file order; empty for encrypted slices."""


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run."""

    RECORD = "*step run_id started"

    run_id: str
    """Empty where no manifest names it."""
    step: Step
    started: Moment | None = None
    """When that run began, as in `TrainingRecord`."""


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Facts about the training that saved a slice, from which a resumed one tells whether it is the same."""

    started: int | None
    """When the run began, in milliseconds since 1970 in UTC by the clock of rank 0, and later than the runs that it
    goes on from; the same for all ranks, None where they could not agree on it.
    """
    resumed_from: RunStep | None = None
    """The step that the run was resumed from; None when it began with the first epoch."""
    epoch_steps: int | None = None
    """Steps of an epoch, None where epochs are not counted."""
    batch_size: int | None = None
    """Samples of a step on one rank, None when the dataset does not tell."""
    rank_local: tuple[str, ...] = ()
    """Parameters whose values differed among the ranks of the group when the slice was saved, sorted."""
    state_digest: str | None = None
    """Digest of the state file beside the slice, None when there is none."""
    host: str | None = None
    """Name of the host on which the rank ran, None where it is not known."""
    machine: str | None = None
    """Id of that host's kernel since it was booted, None where it is not known or `host` was chosen by somebody."""
    resharded_from: int | None = None
    """How many ranks saved the slices of `resumed_from`, where these were cut anew for this training."""
    base_prefix: str | None = None
    """The prefix that the program gave, which names its experiment; None in manifests that do not state it."""
    start_number: int | None = None
    """The N of ``_N`` that was appended to it, 0 for none; None where nothing states it."""
    buffers: tuple[tuple[str, str], ...] = ()
    """Name and digest of each buffer in the state file, sorted."""
    own_buffers: tuple[str, ...] = ()
    """Those whose values differed among the ranks of the group when the slice was saved, sorted."""
    states_differ: bool | None = None
    """Whether the states of the ranks of the group (generators, callbacks, what the program gave) differed when the
    slice was saved; None where they were not compared.
    """

    @property
    def names_host_alone(self) -> bool:
        """Whether it states nothing but host and prefix: the training resumes by itself, as MindFormers does."""
        stated = TrainingRecord(None, host=self.host, machine=self.machine)
        return replace(self, base_prefix=None, start_number=None) == stated

    def of_recovered(self) -> TrainingRecord:
        """Return the record for a slice that was recovered from this one; nothing about its state file or host is."""
        return replace(self, state_digest=None, host=None, machine=None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The sidecar of one slice; the slice is committed when it is there."""

    run_id: str
    """One for all ranks of a launch; empty when it is not known."""
    rank: int
    world_size: int
    step: Step
    """Step as the file name has it."""
    cumulative_step: int | None
    """Steps trained since the very first, over all resumes."""
    file: str
    """File name of the slice."""
    size: int
    """Bytes."""
    digests: Digests
    parameters: tuple[Parameter, ...]
    """In file order; empty for encrypted slices."""
    group: tuple[int, ...]
    """Ranks that hold the same slice, `rank` among them."""
    strategy_digest: str | None = None
    """Digest of the strategy file beside the slice."""
    provenance: Provenance = SAVED
    """Where its bytes come from."""
    tool: str = ""
    """Name and version of what wrote it."""
    training: TrainingRecord | None = None
    """None for slices that no process of the training described, or an older version of `ms_recover.training`."""
    ranges: tuple[tuple[int, int, Runs], ...] = ()
    """Of a slice that was cut anew: number of the parameter, number of the source, and the bytes that were taken from
    it. Manifests are written with them and read without: they are for people.
    """
    cast: tuple[tuple[str, str], ...] = ()
    """Of the same: the parameters whose values were rounded to the type they have here, and the source's type. Their
    ranges count bytes in the source's type.
    """

    @property
    def recovered(self) -> bool:
        """Whether its slice was recovered from others, and so is no witness for them."""
        return self.provenance.recovered
