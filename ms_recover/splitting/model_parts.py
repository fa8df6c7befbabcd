"""The parts of a split model, each to be called by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ms_recover.splitting.batches import Whole


class CallablePart:
    """A part of a split model: a call computes it in the process of a device that holds it.

    Attributes
    ----------
    number : int
    stages : range
        The numbers of its stages.
    """

    def __init__(self, number: int, stages: range, run: Callable[[Whole, range], Any]) -> None:
        self.number = number
        self.stages = stages
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the part's output.

        The first part takes the arguments of the model, each other one the output of the part before. They are not cut
        into chunks. Raises as `ModelSplitter.forward`.
        """
        return self._run(Whole(args, kwargs, single=self.number > 0), range(self.number, self.number + 1))

    def __repr__(self) -> str:
        return f"<part {self.number} of a split model: stages {self.stages.start} to {self.stages[-1]}>"
