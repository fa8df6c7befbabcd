"""The loss scales of a train network: where they are, and whether a step overflowed one and left its update out.

MindSpore has them as parameters of its train cells (``nn.TrainOneStepWithLossScaleCell``), and as values of
``mindspore.amp.LossScaler``, which programs keep in attributes of their own cells.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor
from mindspore.amp import LossScaler


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
