"""Cells to bytes and back, for processes of one machine.

Bytes made here are a pickle: loading it runs what it says. They go through a pipe or a private file between a process
and the workers it started, never through a socket; a worker elsewhere gets the name of a factory instead.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import mindspore as ms
from mindspore import mint, nn, ops
from mindspore.common.initializer import initializer
from mindspore.experimental import MapParameter

from ms_recover.errors import UsageError
from ms_recover.splitting.stages import Stage, absorb_first_operator_error
from ms_recover.worlds import tensors

_INSTEAD = "give a factory, the name package.module:function of what makes the model, instead of the model"
_OF_PRIMITIVES = frozenset(vars(ops.Primitive("none")))
"""What every primitive has of its own; the constructor fills it."""


def dump_stages(stages: Sequence[Stage]) -> bytes:
    """Turn stages into bytes, without the weights of the stages' parameters.

    Classes and functions of ``__main__`` and of functions' insides travel with the bytes, importable ones by name.
    Parameters keep name, shape, element type, ``requires_grad`` and ``layerwise_parallel``, and one that is used twice
    stays one; other tensors, and parameters that no cell registers, go with their contents.

    Raises
    ------
    UsageError
        When something in a stage cannot be taken to another process; the text names it.
    """
    bare = {id(parameter) for stage in stages for parameter in stage.parameters.values()}
    try:
        return _dump(list(stages), bare)
    except Exception as error:
        where = next((found for stage in stages if (found := _culprit(stage, bare))), "the model")
        raise UsageError(f"{where} cannot be taken to another process ({_brief(error)}): {_INSTEAD}") from error


def load_stages(data: bytes) -> list[Stage]:
    """Make stages of the bytes that `dump_stages` of a process on this machine returned.

    The weights of parameters are not set: load them next.

    Raises
    ------
    UsageError
        When a class or function that the stages name cannot be imported here, or does not fit the bytes.
    """
    absorb_first_operator_error()
    try:
        stages: list[Stage] = pickle.loads(data)  # noqa: S301  (from the process that started this one)
    except Exception as error:
        raise UsageError(
            f"the model cannot be made in this process ({_brief(error)}): its modules have to be importable here as "
            f"there (sys.path), or {_INSTEAD}"
        ) from error
    for stage in stages:
        for _, cell in stage.cell.cells_and_names():
            # what another process has compiled is not here
            vars(cell).update(_compile_cache=None, _phase_cache=None, _compiled=False)
            _settle(cell)
    return stages


def from_factory(name: str) -> Any:
    """Make a model by the name of a function that takes no arguments.

    Parameters
    ----------
    name : str
        ``package.module:function``; attributes of attributes are allowed behind the colon.

    Returns
    -------
    mindspore.nn.Cell

    Raises
    ------
    UsageError
        When it is no such name, cannot be imported or called, raises, or returns something else.
    """
    module_name, colon, path = name.partition(":")
    words = [*module_name.split("."), *path.split(".")]
    if not colon or not all(word.isidentifier() for word in words):
        raise UsageError(f"factory {name!r} is not of the form package.module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(f"module {module_name} of factory {name} cannot be imported: {_brief(error)}") from error
    for word in path.split("."):
        try:
            found = getattr(found, word)
        except AttributeError:
            raise UsageError(f"module {module_name} has no {path}, which factory {name} names") from None
    if not callable(found):
        raise UsageError(f"factory {name} is {type(found).__name__}, which cannot be called")
    try:
        model = found()
    except Exception as error:
        raise UsageError(f"factory {name} raised {_brief(error)}; it is called without arguments") from error
    if not isinstance(model, nn.Cell):
        raise UsageError(f"factory {name} returned {type(model).__name__} instead of a mindspore.nn.Cell")
    return model


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Knows how to make what MindSpore does not pickle."""

    def __init__(self, file: io.BytesIO, bare: set[int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._bare = bare

    def reducer_override(self, obj: Any) -> Any:
        """Return how to make an object again."""
        if isinstance(obj, ops.Primitive):
            return _primitive, _recipe(obj)
        if isinstance(obj, MapParameter):
            raise pickle.PicklingError(f"{obj.name} is a MapParameter, which has no fixed shape")
        if isinstance(obj, ms.Parameter):
            contents = None if id(obj) in self._bare else _contents(ms.Tensor(obj))
            about = (obj.name, tuple(obj.shape), str(obj.dtype).lower(), obj.requires_grad, obj.layerwise_parallel)
            return _parameter, (*about, contents)
        if type(obj) is ms.Tensor:
            return _tensor, _contents(obj)
        if isinstance(obj, FunctionType) and obj.__module__.startswith("mindspore.") and "<locals>" in obj.__qualname__:
            # some functions of MindSpore are wrapped so that they are not found under their own name
            for module in (mint, mint.nn.functional, ops):
                for name, value in vars(module).items():
                    if value is obj:
                        return getattr, (module, name)
        return super().reducer_override(obj)


def _settle(cell: Any) -> None:
    """Let graph mode find what functions of ``__main__`` use: it looks into the module instead of their globals."""
    own = [value for kind in type(cell).__mro__ for value in vars(kind).values()]
    for function in (*own, *vars(cell).values()):
        if isinstance(function, FunctionType) and function.__module__ == "__main__":
            for name, value in function.__globals__.items():
                vars(sys.modules["__main__"]).setdefault(name, value)


def _dump(value: Any, bare: set[int]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, bare).dump(value)
    return buffer.getvalue()


def _recipe(primitive: Any) -> tuple[type, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what makes a primitive anew: its class, the constructor's arguments, attributes added since, the rest."""
    kind = type(primitive)
    arguments = dict(primitive.init_attrs)
    if kind is not ops.Primitive and "name" not in inspect.signature(kind).parameters:
        arguments.pop("name", None)  # of a class whose constructor passes it on
    try:
        fresh = kind(**arguments)
    except Exception as error:
        raise pickle.PicklingError(
            f"primitive {kind.__name__} does not keep its constructor's arguments: decorate __init__ with "
            f"ops.prim_attr_register ({_brief(error)})"
        ) from error
    added = {key: value for key, value in primitive.attrs.items() if not _equal(fresh.attrs, key, value)}
    own = {
        key: value
        for key, value in vars(primitive).items()
        if key not in _OF_PRIMITIVES and key not in primitive.attrs and not _equal(vars(fresh), key, value)
    }
    return kind, arguments, added, own


def _equal(others: dict[str, Any], key: str, value: Any) -> bool:
    """Whether a value surely is the same there; what cannot be compared is taken along."""
    if key not in others or type(others[key]) is not type(value):
        return False
    try:
        return others[key] is value or bool(others[key] == value)
    except Exception:  # comparing is up to the values' classes
        return False


def _primitive(kind: type, arguments: dict[str, Any], added: dict[str, Any], own: dict[str, Any]) -> Any:
    primitive: Any = kind(**arguments)
    for key, value in added.items():
        primitive.add_prim_attr(key, value)
    vars(primitive).update(own)
    if "instance_name" in own:
        primitive.set_prim_instance_name(own["instance_name"])
    return primitive


def _contents(tensor: Any) -> tuple[str, tuple[int, ...], bytes, dict[str, Any]]:
    if tensor.has_init:
        tensor.init_data()
    raw = tensors.raw(tensor)
    return raw.dtype, raw.shape, bytes(raw.data), vars(tensor)


def _tensor(dtype: str, shape: tuple[int, ...], data: bytes, own: dict[str, Any]) -> Any:
    # the bytes are read-only, tensors are not
    tensor = tensors.to_tensor(tensors.copied(tensors.Raw(dtype, shape, memoryview(data))))
    vars(tensor).update(own)
    return tensor


def _parameter(
    name: str, shape: tuple[int, ...], dtype: str, requires_grad: bool, layerwise_parallel: bool, contents: Any
) -> Any:
    wide = dtype == "bfloat16"  # which MindSpore makes only by conversion where numpy has not the type
    kind = ms.float32 if wide else getattr(ms, "bool_" if dtype == "bool" else dtype)
    empty = initializer("zeros", shape, kind)
    parameter = ms.Parameter(empty, name=name, requires_grad=requires_grad, layerwise_parallel=layerwise_parallel)
    if wide:
        parameter.set_dtype(ms.bfloat16)
    if contents is not None:
        parameter.set_data(_tensor(*contents))
    return parameter


def _culprit(stage: Stage, bare: set[int]) -> str:
    """Return which attribute of which cell cannot be pickled, or nothing when it is not found."""
    for inner, cell in stage.cell.cells_and_names(name_prefix=stage.name):
        own = {key: value for key, value in vars(cell).items() if key not in {"_cells", "_params", "_primitives"}}
        for key, value in {**cell._primitives, **own}.items():
            if isinstance(value, nn.Cell):
                continue
            try:
                _dump(value, bare)
            except Exception:
                place = f"{type(cell).__name__}{inner and ' '}{inner}"
                return f"attribute {key!r} of {place}, of type {type(value).__name__},"
        try:
            _dump(type(cell), bare)
        except Exception:
            return f"class {type(cell).__name__} of {inner or 'the model'}"
    return ""


def _brief(error: BaseException) -> str:
    """Return an exception's kind and the first line of its text; MindSpore adds call stacks."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
