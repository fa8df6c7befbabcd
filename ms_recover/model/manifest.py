"""The manifest: what a slice must be, written beside it when it is complete."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.provenance import SAVED, Provenance
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step

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

    @property
    def recovered(self) -> bool:
        """Whether its slice was recovered from others, and so is no witness for them."""
        return self.provenance.recovered
