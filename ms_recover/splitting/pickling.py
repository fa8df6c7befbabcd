"""Stages as bytes, for processes of one machine.

The bytes are a pickle, and loading a pickle runs code. They pass through a private file from a process to the workers
that it started, never through a socket; a worker on another host gets the name of a factory instead.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
import mindspore as ms
from mindspore import mint, nn, ops
from mindspore.common.initializer import initializer
from mindspore.experimental import MapParameter

from ms_recover.errors import UsageError
from ms_recover.splitting.stages import Stage, absorb_first_operator_error, made_stages
from ms_recover.worlds import tensors

_INSTEAD = "instead of the model, give the name of a function that returns it, package.module:function"
_COMMON_ATTRIBUTES = frozenset(vars(ops.Primitive("none")))
"""Attributes that the constructor of every primitive fills."""


def dump_stages(stages: Sequence[Stage]) -> bytes:
    """Pickle stages without the weights of their parameters.

    Classes and functions of ``__main__`` and local ones are pickled by value, importable ones by name. Parameters keep
    name, shape, element type, ``requires_grad`` and ``layerwise_parallel``, and a shared one stays shared. Other
    tensors, and parameters that no cell registers, keep their contents. What cannot be pickled raises UsageError, which
    names the attribute.
    """
    without_contents = {id(parameter) for stage in stages for parameter in stage.parameters.values()}
    try:
        return _dump(list(stages), without_contents)
    except Exception as error:
        where = next((found for stage in stages if (found := _find_unpicklable(stage, without_contents))), "the model")
        raise UsageError(f"{where} cannot be taken to another process ({_brief(error)}): {_INSTEAD}") from error


@dataclass(frozen=True)
class Recipe:
    """How a worker makes the stages of a part, none of which exists elsewhere; see `made_stages`."""

    stages: range
    """Of the part."""
    total: int
    """Number of the model's stages."""
    seed: int | None
    factory: str | None
    """Name of a function that returns the functions of all stages."""
    makers: tuple[Callable[[], Any], ...] = ()
    """Without a factory, the functions of the part's stages."""

    def make(self) -> list[Stage]:
        """Make the stages."""
        if self.factory is None:
            return made_stages(dict(zip(self.stages, self.makers, strict=True)), self.seed)
        makers = from_factory(self.factory)
        if not isinstance(makers, tuple) or len(makers) != self.total:
            found = f"{len(makers)} functions" if isinstance(makers, tuple) else "a model"
            raise UsageError(f"factory {self.factory} returned {found} here, in the splitter's process {self.total}")
        seed = ms.get_seed() if self.seed is None else self.seed  # the factory may have set one
        return made_stages({index: makers[index] for index in self.stages}, seed)


def dump_recipe(recipe: Recipe) -> bytes:
    """Pickle a recipe, with its functions by value as in `dump_stages`; raises UsageError when one cannot be."""
    try:
        return _dump(recipe, set())
    except Exception as error:
        raise UsageError(
            f"the functions of stages {recipe.stages.start} to {recipe.stages.stop - 1} cannot be taken to another "
            f"process ({_brief(error)}): give the name of a function that returns them, package.module:function"
        ) from error


def dump_method(method: Any) -> bytes:
    """Pickle how parts are trained: a loss, and a function that makes an optimizer.

    What cannot be pickled raises UsageError.
    """
    try:
        return _dump(method, set())
    except Exception as error:
        raise UsageError(
            f"loss_fn or optimizer cannot be taken to another process ({_brief(error)}): give functions or cells of an "
            "importable module, that hold no open files, locks or threads"
        ) from error


def load_stages(data: bytes) -> list[Stage]:
    """Return the stages that `dump_stages` pickled in a process of this machine; their weights are not set.

    Those of a `Recipe` are made now.

    Raises UsageError when a class or function of the stages cannot be imported here, or does not fit the bytes.
    """
    absorb_first_operator_error()
    try:
        loaded: Recipe | list[Stage] = pickle.loads(data)  # noqa: S301  (from the process that started this one)
    except Exception as error:
        raise UsageError(
            f"the model cannot be unpickled in this process ({_brief(error)}): make its modules importable here "
            f"(sys.path), or {_INSTEAD}"
        ) from error
    stages = loaded.make() if isinstance(loaded, Recipe) else loaded
    for stage in stages:
        for _, cell in stage.cell.cells_and_names():
            # compiled code stays in the process that compiled it
            vars(cell).update(_compile_cache=None, _phase_cache=None, _compiled=False)
            _restore_main_globals(cell)
    return stages


def import_modules(data: bytes) -> None:
    """Import the modules that a pickle of this module refers to, as far as they can be; nothing large is made."""
    absorb_first_operator_error()
    with contextlib.suppress(Exception, SystemExit):  # loading the pickle will say it
        _Importer(io.BytesIO(data)).load()


def from_factory(name: str) -> Any:
    """Return the model that a function without arguments makes, by its name: ``package.module:function``.

    It may return a list of functions instead, one for each stage: then the result is a tuple of them. After the colon
    dots are allowed, such as in ``Class.method``. Raises UsageError when the name is invalid, or the function cannot be
    imported or called, raises, or returns something else.
    """
    module_name, _, path = name.partition(":")
    if not all(word.isidentifier() for word in [*module_name.split("."), *path.split(".")]):
        raise UsageError(f"factory {name!r} is not of the form package.module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(f"module {module_name} of factory {name} cannot be imported: {_brief(error)}") from error
    try:
        factory = attrgetter(path)(module)
    except AttributeError:
        raise UsageError(f"factory {name}: module {module_name} has no {path}") from None
    if not callable(factory):
        raise UsageError(f"factory {name} is {type(factory).__name__}, which cannot be called")
    try:
        model = factory()
    except Exception as error:
        raise UsageError(f"factory {name} raised {_brief(error)}; it is called without arguments") from error
    if are_makers(model):
        return tuple(model)
    if not isinstance(model, nn.Cell):
        raise UsageError(
            f"factory {name} returned {type(model).__name__} instead of a mindspore.nn.Cell or a list of functions"
        )
    return model


def are_makers(model: Any) -> bool:
    """Whether this is a list of functions that each make a stage, instead of a model."""
    return (
        isinstance(model, list | tuple)
        and len(model) > 0
        and all(callable(each) and not isinstance(each, nn.Cell) for each in model)
    )


class _Importer(pickle.Unpickler):  # noqa: S301 (of what this process pickled)
    """Makes parameters and tensors of one element."""

    def find_class(self, module_name: str, name: str) -> Any:
        """Return an object of a module, which is imported."""
        found = super().find_class(module_name, name)
        return _make_stand_in if found in (_make_parameter, _make_tensor) else found


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Keep the name of the file, from which graph mode reads the source; cloudpickle leaves it out since 3.1.3."""
    _, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _make_code, (code.co_filename, arguments)


def _make_code(file: str, arguments: Sequence[Any]) -> CodeType:
    return CodeType(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles also the objects that MindSpore cannot pickle."""

    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: io.BytesIO, without_contents: set[int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._without_contents = without_contents

    def reducer_override(self, obj: Any) -> Any:
        """Return the function that makes an equal object, and its arguments."""
        if isinstance(obj, ops.Primitive):
            return _make_primitive, _primitive_arguments(obj)
        if isinstance(obj, MapParameter):
            raise pickle.PicklingError(f"{obj.name} is a MapParameter, which has no fixed shape")
        if isinstance(obj, ms.Parameter):
            contents = None if id(obj) in self._without_contents else _contents(ms.Tensor(obj))
            settings = (obj.name, tuple(obj.shape), str(obj.dtype).lower(), obj.requires_grad, obj.layerwise_parallel)
            return _make_parameter, (*settings, contents)
        if type(obj) is ms.Tensor:
            return _make_tensor, _contents(obj)
        if isinstance(obj, FunctionType) and obj.__module__.startswith("mindspore.") and "<locals>" in obj.__qualname__:
            # some functions of MindSpore are wrapped and not importable under their own name
            for module in (mint, mint.nn.functional, ops):
                for name, value in vars(module).items():
                    if value is obj:
                        return getattr, (module, name)
        return super().reducer_override(obj)


def _restore_main_globals(cell: Any) -> None:
    """Copy the globals of functions of ``__main__`` into that module, where graph mode looks for them."""
    own = [value for kind in type(cell).__mro__ for value in vars(kind).values()]
    for function in (*own, *vars(cell).values()):
        if isinstance(function, FunctionType) and function.__module__ == "__main__":
            for name, value in function.__globals__.items():
                vars(sys.modules["__main__"]).setdefault(name, value)


def _dump(value: Any, without_contents: set[int]) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, without_contents).dump(value)
    return buffer.getvalue()


def _primitive_arguments(primitive: Any) -> tuple[type, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return a primitive's class, constructor arguments, attributes added since, and other instance variables."""
    kind = type(primitive)
    arguments = dict(primitive.init_attrs)
    if kind is not ops.Primitive and "name" not in inspect.signature(kind).parameters:
        arguments.pop("name", None)  # the constructor passes it on
    try:
        fresh = kind(**arguments)
    except Exception as error:
        raise pickle.PicklingError(
            f"primitive {kind.__name__} does not keep its constructor's arguments: decorate __init__ with "
            f"ops.prim_attr_register ({_brief(error)})"
        ) from error
    known = _COMMON_ATTRIBUTES | primitive.attrs.keys()
    own = {key: value for key, value in vars(primitive).items() if key not in known}
    return kind, arguments, _changed(primitive.attrs, fresh.attrs), _changed(own, vars(fresh))


def _changed(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are not certainly equal to those of the same name in another dict."""

    def equal(value: Any, other: Any) -> bool:
        try:
            return type(value) is type(other) and (value is other or bool(value == other))
        except Exception:  # values may have an own comparison
            return False

    return {key: value for key, value in values.items() if key not in others or not equal(value, others[key])}


def _make_primitive(kind: type, arguments: dict[str, Any], added: dict[str, Any], own: dict[str, Any]) -> Any:
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


def _make_tensor(dtype: str, shape: tuple[int, ...], data: bytes, own: dict[str, Any]) -> Any:
    # the bytes are read-only, a tensor is writable
    tensor = tensors.to_tensor(tensors.copied(tensors.Raw(dtype, shape, memoryview(data))))
    vars(tensor).update(own)
    return tensor


def _make_parameter(
    name: str, shape: tuple[int, ...], dtype: str, requires_grad: bool, layerwise_parallel: bool, contents: Any
) -> Any:
    wide = dtype == "bfloat16"  # numpy lacks it, so that MindSpore makes it only by conversion
    kind = ms.float32 if wide else getattr(ms, "bool_" if dtype == "bool" else dtype)
    empty = initializer("zeros", shape, kind)
    parameter = ms.Parameter(empty, name=name, requires_grad=requires_grad, layerwise_parallel=layerwise_parallel)
    if wide:
        parameter.set_dtype(ms.bfloat16)
    if contents is not None:
        parameter.set_data(_make_tensor(*contents))
    return parameter


def _make_stand_in(name: str, *_: Any) -> Any:
    return ms.Parameter(ms.Tensor(0.0, ms.float32), name=name)


def _find_unpicklable(stage: Stage, without_contents: set[int]) -> str:
    """Return the name of an attribute that cannot be pickled; empty when none is found."""

    def fails(value: Any) -> bool:
        try:
            _dump(value, without_contents)
        except Exception:
            return True
        return False

    for inner, cell in stage.cell.cells_and_names(name_prefix=stage.name):
        for key, value in {**cell._primitives, **vars(cell)}.items():
            if key not in {"_cells", "_params", "_primitives"} and not isinstance(value, nn.Cell) and fails(value):
                place = f"{type(cell).__name__}{inner and ' '}{inner}"
                return f"attribute {key!r} of {place}, of type {type(value).__name__},"
        if fails(type(cell)):
            return f"class {type(cell).__name__} of {inner or 'the model'}"
    return ""


def _brief(error: BaseException) -> str:
    """Return an exception's type and the first line of its message; MindSpore adds call stacks."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
