"""A part of a model in training, in a worker: its chunks, gradients and optimizer."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ms_recover.errors import UsageError
from ms_recover.splitting.shared_memory import Mapped, places_of, put, take
from ms_recover.splitting.stages import ModelPart, parameters_of
from ms_recover.splitting.training import clipping
from ms_recover.splitting.training.method import Method
from ms_recover.splitting.training.own_weights import own_weights
from ms_recover.splitting.training.part_state import PartState
from ms_recover.splitting.training.seeds import RandomState
from ms_recover.splitting.training.tape import Jitted, Recorded
from ms_recover.tensors.arrays import to_host
from ms_recover.tensors.memory import byte_copies, host_bytes, set_bytes
from ms_recover.worlds.tensors import raw


@dataclass(frozen=True, slots=True)
class GivenValues:
    """The arguments of a part: their structure, and the tensors in it."""

    skeleton: Any
    leaves: Sequence[Any]
    wanted: int
    """So many of the first tensors get gradients, which go back."""


class TrainedPart:
    """Carries out a step's operations for one part; the values are those of its `ModelPart`.

    The optimizer is made from the part's trainable parameters in the order of its stages; gradients have the order of
    ``optimizer.parameters``, which differs from that where the optimizer groups parameters.
    """

    def __init__(self, part: ModelPart, method: Method, *, graph: bool) -> None:
        self._cells = [stage.cell for stage in part.stages]
        self._graph = graph
        self._method = method
        self._again = method.recompute
        parameters = list(parameters_of(part.stages).values())
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        self._optimizer = method.optimizer(trainable) if trainable else None
        self._weights = own_weights(self._optimizer, trainable, method.optimizer) if trainable else []
        learning = {id(parameter): place for place, parameter in enumerate(self._weights)}
        self._in_order = [learning[id(parameter)] for parameter in trainable if id(parameter) in learning]
        self._others = [parameter for parameter in parameters if id(parameter) not in learning]
        self.state = PartState(part, self._optimizer)
        self._random = RandomState(part.stages)
        self._chain = _Chain(self._cells)
        self._functions: dict[int, Any] = {}
        self._open: dict[int, Recorded] = {}
        self._sums: list[Any] = []
        self._added = 0
        self._found: list[Any] | None = None
        self._attempt: tuple[int, int] | None = None
        self._before: list[Any] | None = None
        self._checked = False

    def load(self, path: str, digest: str) -> None:
        """Take all values from a snapshot."""
        self.state.load(path, digest)
        self._before = None
        self._forget()

    def infer(self, mode: int) -> None:
        """Prepare for inference in this mode of MindSpore."""
        self._set_mode(mode, train=False)

    def begin(self, step: int, attempt: int) -> None:
        """Prepare for an operation of a step; a new attempt forgets the one before, with what it changed."""
        self._set_mode(ms.PYNATIVE_MODE, train=True)
        if (step, attempt) == self._attempt:
            return
        self._forget()
        self._attempt = step, attempt
        if self._before is not None:
            set_bytes(self._others, self._before)
        self._before = byte_copies(self._others)

    def forward(self, step: int, chunk: int, given: GivenValues) -> Recorded:
        """Go forward over a chunk and keep it for the way back; return it with its outputs."""
        self._open[chunk] = self._record(step, chunk, self._function(0), given, again=self._again)
        return self._open[chunk]

    def backward(self, step: int, chunk: int, sens: Sequence[Any]) -> list[Any]:
        """Go back over a chunk; return the gradients of its inputs, and keep those of the weights."""
        self.add_found()
        self._random.seed(step, chunk)
        others = byte_copies(self._others) if self._again else None
        inputs, self._found = self._open.pop(chunk).backward(sens)
        if others is not None:
            set_bytes(self._others, others)  # statistics count once
        return inputs

    def both(self, step: int, chunk: int, given: GivenValues, weight: float, *, inputs: int) -> tuple[float, list[Any]]:
        """Go forward and back over a chunk in the last part; return its weighted loss and the gradients of its inputs.

        The first `inputs` arguments are the part's, the others go to the loss behind the output.
        """
        self.add_found()
        recorded = self._record(step, chunk, self._function(inputs), given, again=False)
        loss = recorded.outputs[0] if len(recorded.outputs) == 1 else None
        if loss is None or int(np.prod(loss.shape)) != 1 or recorded.skeleton != ["tensor", 0]:
            raise UsageError("loss_fn has to return one number, the mean over the rows of its arguments")
        value = to_host(loss.astype(ms.float32)).reshape(())
        sens = ms.Tensor(np.full(tuple(loss.shape), weight, np.float32)).astype(loss.dtype)
        gradients, self._found = recorded.backward([sens])
        return float(np.float32(weight) * value), gradients

    def add_found(self) -> None:
        """Add the gradients of the last chunk behind those before: once its neighbours have what they wait for."""
        found, self._found = self._found, None
        if found is None:
            return
        self._make_sums()
        for array, gradient in zip(self._arrays(), found, strict=True):
            if self._added:
                np.add(array, gradient.asnumpy(), out=array)
            else:
                np.copyto(array, gradient.asnumpy())
        self._added += 1  # `check_complete` finds a chunk that raised on the way

    def hand_over(self, path: str) -> None:
        """Copy the gradients of the chunk that was computed last to shared memory, and forget them."""
        self.add_found()
        places, size = self._places()
        with Mapped(path, size) as memory:
            for place, array in zip(places, self._arrays(), strict=True):
                np.copyto(memory.array[place], array.reshape(-1).view(np.uint8))
        self._added = 0

    def collect(self, paths: Sequence[str], factor: float) -> None:
        """Set the gradients to the sum of those in shared memory, in this order, times a factor."""
        self._make_sums()
        for index, path in enumerate(paths):
            with Mapped(path) as memory:
                for place, array in zip(self._places()[0], self._arrays(), strict=True):
                    other = memory.array[place].view(array.dtype).reshape(array.shape)
                    if index:
                        np.add(array, other, out=array)
                    else:
                        np.copyto(array, other)
        if factor != 1.0:
            for array in self._arrays():
                np.multiply(array, array.dtype.type(factor), out=array)

    def check_complete(self, chunks: int) -> None:
        """Refuse to step without the gradients of all chunks."""
        self.add_found()
        if self._added != chunks:
            raise UsageError(f"the gradients of {self._added} chunks are there, expected {chunks}")

    def square_sums(self) -> list[float]:
        """Return the sums of the squares of the gradients, in the order of the part's stages."""
        return clipping.square_sums(self._sums[place] for place in self._in_order)

    def clip(self, sums: Sequence[float]) -> None:
        """Clip the gradients, if they are to be, by the sums of the squares of all parts; none: of this one."""
        if self._method.clip_norm is not None:
            clipping.clip(self._sums, self._method.clip_norm, sums or self.square_sums())

    def update(self) -> bool:
        """Let the optimizer step; return whether a parameter that it does not train has changed in this step."""
        changed = any(
            not np.array_equal(host_bytes(parameter), values)
            for parameter, values in zip(self._others, self._before or (), strict=False)
        )
        if self._optimizer is not None:
            self._optimizer(tuple(self._sums))
            ms.runtime.synchronize()
        self._before = None
        self._forget()
        return changed

    def gradients(self) -> dict[str, Any]:
        """Return the sums of the gradients, by the names of their parameters."""
        self.add_found()
        return {weight.name: total for weight, total in zip(self._weights, self._sums, strict=True)}

    def _set_mode(self, mode: int, *, train: bool) -> None:
        if ms.get_context("mode") != mode:
            ms.set_context(mode=mode)
        for cell in self._cells:
            if cell.training != train:
                cell.set_train(train)

    def _forget(self) -> None:
        self._open.clear()
        self._added = 0
        self._found = None
        self._attempt = None

    def _record(self, step: int, chunk: int, function: Any, given: GivenValues, *, again: bool) -> Recorded:
        def record() -> Recorded:
            self._random.seed(step, chunk)
            skeleton, leaves, wanted = given.skeleton, given.leaves, given.wanted
            return Recorded(function, self._weights, skeleton, leaves, wanted=wanted, recompute=again)

        found = record()
        if not self._checked:
            before = [bytes(raw(leaf).data) for leaf in found.outputs]
            others = byte_copies(self._others)
            found = record()
            set_bytes(self._others, others)  # statistics count once
            if [bytes(raw(leaf).data) for leaf in found.outputs] != before:
                raise UsageError(
                    "a stage gives another output each time it runs with the same input: it has a random operator that "
                    "cannot be set back, so that a step could not be repeated; use nn.Dropout, or draw the random "
                    "numbers with the data"
                )
            self._checked = True
        return found

    def _function(self, inputs: int) -> Any:
        """Return the part as a function; with a number of inputs, the loss of its output and the further arguments."""
        if inputs not in self._functions:
            made = _Loss(self._chain, self._method.loss_fn, inputs) if inputs else self._chain
            made.set_train(True)
            self._functions[inputs] = Jitted(made).set_train(True) if self._graph else made
        return self._functions[inputs]

    def _make_sums(self) -> None:
        if not self._sums:
            self._sums = [ms.Tensor.from_numpy(np.zeros_like(weight.asnumpy())) for weight in self._weights]

    def _arrays(self) -> list[Any]:
        return [total.asnumpy() for total in self._sums]

    def _places(self) -> tuple[list[slice], int]:
        """Return where the gradients lie in shared memory, and how much that is."""
        return places_of(array.nbytes for array in self._arrays())


class _Chain(nn.Cell):  # type: ignore[misc]
    """Stages one after the other."""

    def __init__(self, cells: Sequence[Any]) -> None:
        super().__init__(auto_prefix=False)
        self.front = cells[0]
        self.others = nn.CellList(list(cells[1:]), auto_prefix=False)

    def construct(self, *args: Any) -> Any:
        """Return the output of the last stage."""
        value = self.front(*args)
        for cell in self.others:
            value = cell(value)
        return value


class _Loss(nn.Cell):  # type: ignore[misc]
    """The loss of a chain's output: the first arguments are the chain's, the others the loss's."""

    def __init__(self, chain: Any, loss_fn: Any, inputs: int) -> None:
        super().__init__(auto_prefix=False)
        self.chain = chain
        self.loss_fn = loss_fn
        self.inputs = inputs

    def construct(self, *args: Any) -> Any:
        """Return the loss."""
        output = self.chain(*args[: self.inputs])
        return self.loss_fn(output, *args[self.inputs :])


def load_method(data: bytes) -> Method:
    """Return what `ms_recover.splitting.pickling.dump_method` pickled, in a process of this machine."""
    method: Method = pickle.loads(data)  # noqa: S301  (from the process that started this one)
    return method


def answer(part: TrainedPart, fields: Mapping[str, Any], tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Carry out a message for a part; return the fields and tensors of the answer."""
    action = fields["action"]
    if action == "load":
        part.load(fields["path"], fields["digest"])
        return {}, []
    if action == "save":
        return {"digest": part.state.save(fields["path"]), "layout": part.state.layout}, []
    step = fields["step"]
    part.begin(step, fields["attempt"])
    if fields.get("given"):
        tensors = [*take(*fields["given"]), *tensors]
    if action == "forward":
        recorded = part.forward(step, fields["chunk"], GivenValues(fields["skeleton"], tensors, fields["wanted"]))
        return {"skeleton": recorded.skeleton, "layout": put(fields["into"], recorded.outputs)}, []
    if action == "backward":
        gradients = part.backward(step, fields["chunk"], tensors)
        return {"layout": put(fields["into"], gradients) if fields["into"] else []}, []
    if action == "both":
        given = GivenValues(fields["skeleton"], tensors, fields["wanted"])
        loss, gradients = part.both(step, fields["chunk"], given, fields["weight"], inputs=fields["inputs"])
        if fields["path"]:
            part.hand_over(fields["path"])
        return {"loss": loss, "layout": put(fields["into"], gradients) if fields["into"] else []}, []
    if action == "norm":
        part.check_complete(fields["chunks"])
        return {"sums": part.square_sums()}, []
    if action == "update":
        if fields["paths"]:
            part.collect(fields["paths"], fields["factor"])
        else:
            part.check_complete(fields["chunks"])
        part.clip(fields["sums"])
        return {"changed": part.update()}, []
    raise UsageError(f"invalid action {action!r:.40}")
