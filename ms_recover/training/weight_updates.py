"""Whether a step has updated the weights: by the counters of optimizers, and by loss scales that overflowed.

With gradient accumulation not every training step updates them. MindSpore has loss scales as parameters of its train
cells (``nn.TrainOneStepWithLossScaleCell``), and as values of ``mindspore.amp.LossScaler``, which programs keep in
attributes of their own cells.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor
from mindspore.amp import LossScaler

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


class LossScales:
    """The loss scales of a train network.

    Parameters
    ----------
    network : Cell
        The train network.
    """

    def __init__(self, network: Any) -> None:
        self._scales: list[Any] = []
        for _, cell in network.cells_and_names():
            own = [getattr(cell, "scale_sense", None), *(getattr(one, "scale_value", None) for one in scalers_of(cell))]
            self._scales += [one for one in own if isinstance(one, Tensor)]
        self._before = self._read()

    @property
    def present(self) -> bool:
        """Whether there is any."""
        return bool(self._scales)

    def note(self) -> None:
        """Note the scales before a step."""
        self._before = self._read()

    def overflowed(self, outputs: Any) -> bool:
        """Whether one overflowed since `note`: it has become smaller, or the train network gave it out as MindSpore's.

        These give the loss, whether it overflowed, and the scale.
        """
        if not self.present:
            return False
        if any(now < before for now, before in zip(self._read(), self._before, strict=True)):
            return True
        flag = outputs[1] if isinstance(outputs, (tuple, list)) and len(outputs) == 3 else None
        return isinstance(flag, Tensor) and str(flag.dtype) == "Bool" and flag.size == 1 and bool(flag.asnumpy().all())

    def _read(self) -> list[float]:
        return [float(one.asnumpy().reshape(-1)[0]) for one in self._scales]


def scalers_of(cell: Any) -> list[Any]:
    """Return the loss scalers in the attributes of a cell."""
    return [value for value in vars(cell).values() if isinstance(value, LossScaler)]
