"""The state of a training that is in no parameter: generators, callbacks, and the values that a program adds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

StateKind = Literal["tensor", "array", "scalar"]
"""A tensor of MindSpore's, an array or a scalar of numpy's."""

StateValue = Any
"""None, bool, int, float, str, bytes, `StateTensor`, or a list, tuple, set or dict of such."""


@dataclass(frozen=True, slots=True)
class SliceClaim:
    """Whose a slice is, by its state file: what a kill leaves without a manifest belongs to nobody else."""

    base_prefix: str
    """The experiment, as in `ms_recover.model.manifest.TrainingRecord`."""
    prefix: str
    """Start of the slice's name."""
    run_id: str
    started: int | None
    """When the run began."""

    @property
    def values(self) -> dict[str, StateValue]:
        """The claim as a state file holds it."""
        return asdict(self)

    @classmethod
    def of(cls, values: StateValue) -> SliceClaim | None:
        """Return the claim that a state file holds, None where that is none."""
        if not isinstance(values, dict):
            return None
        base, prefix, run_id = (values.get(name) for name in ("base_prefix", "prefix", "run_id"))
        started = values.get("started")
        if not (isinstance(base, str) and isinstance(prefix, str) and isinstance(run_id, str)):
            return None
        return cls(base, prefix, run_id, started) if started is None or type(started) is int else None


@dataclass(frozen=True, slots=True)
class StateTensor:
    """The values of a tensor, apart from the library that computes with it."""

    kind: StateKind
    dtype: str
    """Type of the elements, by MindSpore's name."""
    shape: tuple[int, ...]
    data: bytes
    """Little-endian, in C order."""
