"""Optimizer steps: with gradient accumulation not every training step updates the weights."""

from __future__ import annotations

from typing import Any

from ms_recover.training.cells import OPTIMIZERS

_COUNTERS = ("global_step", "state_step")


class OptimizerSteps:
    """Whether the optimizer has updated the weights, by the counters that MindSpore's optimizers keep.

    The counter of an optimizer of another origin may stand still for ever; it counts when it has moved once.

    Parameters
    ----------
    network : Cell
        The train network.
    """

    def __init__(self, network: Any) -> None:
        found: dict[int, Any] = {}
        self._trusted = False
        for _, cell in network.cells_and_names():
            if isinstance(cell, OPTIMIZERS):
                counters = [getattr(cell, name, None) for name in _COUNTERS]
                found |= {id(counter): counter for counter in counters if counter is not None}
                self._trusted |= any(counter is not None for counter in counters) and _counts(cell)
        self._counters = list(found.values())
        self._first = self._before = self._read()

    def note(self) -> None:
        """Note the counters before a step."""
        self._before = self._read()

    @property
    def known(self) -> bool:
        """Whether the counters show updates."""
        if not self._trusted and self._counters:
            self._trusted = self._read() != self._first
        return self._trusted

    @property
    def updated(self) -> int:
        """The updates since `note`, summed over the optimizers."""
        return sum(self._read()) - sum(self._before)

    def _read(self) -> list[int]:
        return [int(counter.asnumpy().reshape(-1)[0]) for counter in self._counters]


def _counts(optimizer: Any) -> bool:
    """Whether an optimizer is MindSpore's own or made from one, so that its counter moves with each update."""
    kinds = [kind for kind in type(optimizer).__mro__ if issubclass(kind, OPTIMIZERS) and kind not in OPTIMIZERS]
    return any(kind.__module__.startswith("mindspore.") for kind in kinds)
