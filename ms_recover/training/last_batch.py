"""The last batch of a training with ``Model``, for its state file: digested before the step, when a save falls due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore.train import Callback

from ms_recover.training.batches import digest_batch, to_record


class LastBatch(Callback):  # type: ignore[misc]
    """Digests the batch of a step before anything acts on it, if a slice may be saved behind the step.

    Parameters
    ----------
    params : object
        The parameters of the training, as its callbacks are given them when it begins.
    dataset : Dataset
        The dataset of the training, whose iterator is made.
    may_save : callable
        Whether a slice may be saved behind the step that begins, by the parameters.
    """

    def __init__(self, params: Any, dataset: Any, may_save: Callable[[Any], bool]) -> None:
        super().__init__()
        self._may_save = may_save
        self._first = params.cur_step_num
        self._passed_over: int | None = getattr(dataset, "get_init_step", lambda: None)()
        self._step = -1
        self._record: list[Any] = []

    def on_train_step_begin(self, run_context: Any) -> None:
        """Digest the batch."""
        params = run_context.original_args()
        if self._may_save(params):
            self._digest(params)

    def of_step(self, params: Any) -> list[Any]:
        """Return the digests of the batch of the present step; none in sink mode, where no batch is in hand."""
        if self._step != params.cur_step_num:  # of a step that ends the training before its time, or of the first
            self._digest(params)
        return self._record

    def behind(self, params: Any) -> dict[str, Any]:
        """Return what the state behind a step has of its batch; nothing in sink mode, where no batch is in hand."""
        record = self.of_step(params)
        counted = {} if self._passed_over is None else {"drawn": self._passed_over + params.cur_step_num - self._first}
        return {"batch": tuple(record), **counted}

    def _digest(self, params: Any) -> None:
        batch = getattr(params, "train_dataset_element", None)
        self._step = params.cur_step_num
        self._record = [] if batch is None else to_record(digest_batch(batch))
