"""The slice of this rank: where it is, what it must be, and what one is written from."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step


@dataclass(frozen=True)
class OwnSlice:
    """The slice that a rank resumes from, by its absolute path; named in every message about it."""

    rank: int
    step: Step
    path: str

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.step}, {self.path}"


@dataclass(frozen=True)
class Contents:
    """What a slice is written from."""

    parameters: tuple[Parameter, ...]
    """In the order in which MindSpore saves them."""
    values: tuple[memoryview, ...]
    """The bytes of each."""


def digests_by_name(manifest: Manifest | None) -> dict[str, str]:
    """Return the digest of each parameter that a manifest lists; empty without one."""
    if manifest is None:
        return {}
    names = (parameter.name for parameter in manifest.parameters)
    return dict(zip(names, manifest.digests.parameters, strict=True))
