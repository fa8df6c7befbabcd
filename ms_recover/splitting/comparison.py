"""The output of a model's parts against that of the model.

Rows on both sides of the first cut are compared: they are neighbours for the model, and in different chunks for the
parts. The first rows of a batch come first in their chunk as well, so that a model that subtracts its first row passes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_recover.errors import UsageError
from ms_recover.splitting import batches, nested
from ms_recover.splitting.events import Rows
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.stages import Stage, absorb_first_operator_error, parameters_of
from ms_recover.tensors.arrays import to_host, to_tensor

_log = logging.getLogger(__name__)
_WINDOW = 16
_TOLERANCES = {"float64": 2.0**-26, "float32": 2.0**-11, "float16": 2.0**-5, "bfloat16": 2.0**-3}
"""Largest difference, relative to the largest value: the root of the type's precision, because operators sum chunks of
other sizes in other orders."""
_FEW = 1e-3
"""Share of whole numbers that may differ: such as the index of one of two equal maxima."""
_OFF = "check=False turns the comparison off"


class Comparison:
    """Compares the outputs of parts with those of the model, once; thread-safe.

    `unchanged` says whether the model still has the weights that the parts have; with others, or without a model,
    nothing can be compared.
    """

    def __init__(self, model: Any, unchanged: Callable[[], bool]) -> None:
        self._model = model
        self._unchanged = unchanged
        self._turn = threading.Lock()

    def compare(self, batch: batches.Batch, output: Any, cuts: Sequence[Rows]) -> None:
        """Compare some rows of an output, which was computed in chunks; they lie on both sides of the first cut.

        A model whose rows depend on each other gives these rows another output when it gets them alone. Raises
        UsageError when the outputs differ, or the model raises; then the next output is compared again.
        """
        if self._model is None or not batch.rows:
            return
        with self._turn:
            if self._model is None:
                return
            start, stop = _window(batch.rows, cuts[0][1])
            self._compare(batch, output, start, stop)
            if batch.rows > 1:  # a single row shows nothing of the others
                self.stop()

    def stop(self) -> None:
        """Compare nothing more, and forget the model."""
        self._model = None
        self._unchanged = lambda: False

    def _compare(self, batch: batches.Batch, output: Any, start: int, stop: int) -> None:
        skeleton, leaves = batch.cut(start, stop)
        args, kwargs = nested.unflatten(skeleton, [to_tensor(leaf) for leaf in leaves])
        where = f"rows {start} to {stop - 1} of this batch"
        try:
            absorb_first_operator_error()
            want = _on_host(self._model(*args, **kwargs), slice(None))
        except Exception as error:
            if not self._unchanged():
                self.stop()
                return
            raise UsageError(
                f"the model raises {type(error).__name__} for {where} ({error}), where its parts give an output: its "
                f"construct is not what its stages are, or the rows of a batch depend on each other; {_OFF}"
            ) from error
        words = difference(want, _on_host(output, slice(start, stop)))
        if not words:
            return
        if not self._unchanged():
            _log.warning("the model has other weights than the splitter, which took those of its start: not compared")
            self.stop()
            return
        raise UsageError(
            f"the parts give another output than the model for {where}: {words}. Its construct does something else "
            "than its stages one after the other, or its rows depend on each other, or its output is random; make the "
            f"stages those of construct, and the model's output for a row independent of the other rows; {_OFF}"
        )


def compare_sample(model: Any, run: Callable[..., Any], sample: Sequence[Any]) -> None:
    """Compare what a model and its stages, which `run` calls, give for a sample, also when they get half of its rows.

    Raises UsageError when they differ.
    """
    batch = batches.Batch(sample, {})
    middle = (batch.rows + 1) // 2
    cuts = [(0, middle), (middle, batch.rows)] if batch.rows > 1 else [(0, batch.rows)]
    outputs = []
    for start, stop in cuts:
        skeleton, leaves = batch.cut(start, stop)
        args, kwargs = nested.unflatten(skeleton, [to_tensor(leaf) for leaf in leaves])
        outputs.append(run(*args, **kwargs))
    whole = batch.join(outputs, [stop - start for start, stop in cuts])
    Comparison(model, lambda: True).compare(batch, whole, cuts)


@dataclass(frozen=True, eq=False)
class Output:
    """An output as `nested.flatten` takes it apart, with numpy arrays; those of bfloat16 are of float32."""

    skeleton: Any
    arrays: list[Any]
    types: list[str]
    """Their element types before."""


def difference(want: Output, got: Output) -> str:
    """Return how two outputs differ; empty when they do not."""
    if repr(want.skeleton) != repr(got.skeleton):
        return f"its structure is {got.skeleton!r:.80}, expected {want.skeleton!r:.80}"
    for index, (right, left) in enumerate(zip(want.arrays, got.arrays, strict=True)):
        name = f"tensor {index}" if len(want.arrays) > 1 else "the output"
        types = want.types[index], got.types[index]
        if right.shape != left.shape:
            return f"{name} has shape {left.shape}, expected {right.shape}"
        if types[0] != types[1]:
            return f"{name} has type {types[1]}, expected {types[0]}"
        words = _values_differ(right, left, types[0])
        if words:
            return f"{name} {words}"
    return ""


def _values_differ(right: Any, left: Any, kind: str) -> str:
    if right.dtype.kind not in "fc":
        wrong = int((right != left).sum())
        return f"differs in {wrong} of {right.size} values" if wrong > _FEW * right.size else ""
    with np.errstate(all="ignore"):
        same = (right == left) | (np.isnan(right) & np.isnan(left))
        off = np.where(same, 0.0, np.abs(right - left))
        largest = float(np.max(np.abs(right), where=np.isfinite(right), initial=0.0))
    most = float(off.max(initial=0.0))
    limit = _TOLERANCES.get(kind, _TOLERANCES["float32"]) * largest
    return "" if most <= limit else f"differs by {most:.3g}, and its largest value is {largest:.3g}"  # NaN differs


def _window(rows: int, cut: int) -> Rows:
    """Return the rows to compare: on both sides of the first cut, or half of those that were not cut."""
    if cut < rows:
        return max(0, cut - _WINDOW), min(rows, cut + _WINDOW)
    return 0, min(max(1, rows // 2), 2 * _WINDOW)


def _on_host(output: Any, rows: slice) -> Output:
    skeleton, leaves = nested.flatten(output)
    types = [str(leaf.dtype).lower() for leaf in leaves]
    arrays = []
    for leaf, kind in zip(leaves, types, strict=True):
        wide = leaf.astype("float32") if kind == "bfloat16" else leaf  # numpy lacks it
        arrays.append(to_host(wide)[rows])
    return Output(skeleton, arrays, types)


def has_weights(store: SliceStore, stages: Sequence[Stage]) -> bool:
    """Whether the model still has the weights with which the splitter was made."""
    return same_weights(parameters_of(stages), store.weights())


def same_weights(parameters: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether parameters have the saved values."""
    return all(
        name in saved and np.array_equal(_bytes(value), _bytes(saved[name])) for name, value in parameters.items()
    )


def _bytes(value: Any) -> Any:
    return np.frombuffer(value.get_bytes(), np.uint8)
