"""The loss of a step."""

from __future__ import annotations

from typing import Any

import numpy as np


class StepLoss(float):
    """The mean loss over the rows of a step, a number: sum of the chunks' weighted losses in float32, in chunk order.

    Attributes
    ----------
    rows : int
        Rows that counted.
    total : int
        Rows of the batch; more than `rows` when devices were lost under ``on_failure="skip"``.
    step : int
        Number of the step, from 1.
    """

    rows: int
    total: int
    step: int

    def __new__(cls, value: float, *, rows: int, total: int, step: int) -> StepLoss:
        """Return a loss with these numbers."""
        made = super().__new__(cls, value)
        made.rows, made.total, made.step = rows, total, step
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, int]]:
        return (float(self),), {"rows": self.rows, "total": self.total, "step": self.step}

    def asnumpy(self) -> Any:
        """Return it as a numpy array of float32 without axes, like ``mindspore.Tensor.asnumpy``."""
        return np.asarray(self, np.float32)

    def item(self) -> float:
        """Return it as a plain float."""
        return float(self)
