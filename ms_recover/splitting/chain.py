"""A cell whose ``construct`` is a chain, found by running it once with a value that records its way.

The value stands for a tensor and can do nothing but go into a cell, a primitive, a function or a method, together with
constants; the result is another such value. Whatever else ``construct`` does with it (use it twice, look at its shape,
branch on it, combine it with a parameter) shows that the cell is no chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import mindspore as ms
from mindspore import nn, ops

_OPERATORS = {"add": ops.add, "sub": ops.sub, "mul": ops.mul, "truediv": ops.div, "pow": ops.pow}
_REFUSED = ("bool", "len", "iter", "getitem", "contains", "eq", "ne", "lt", "le", "gt", "ge", "hash", "str", "format")
"""Special methods that every object has, or that Python looks for."""
_CONSTANTS = (type(None), bool, int, float, complex, str, type(ms.float32).__mro__[2])


class NotAChainError(Exception):
    """The reason why a cell is no chain."""


class Applied(nn.Cell):  # type: ignore[misc]
    """A stage that calls a function with the value and constants."""

    def __init__(
        self, function: Any, before: tuple[Any, ...], after: tuple[Any, ...], named: dict[str, Any], text: str
    ) -> None:
        super().__init__()
        self.function = function
        self.before = before
        self.after = after
        self.named = named
        self.text = text

    def construct(self, value: Any) -> Any:
        """Return what the function gives."""
        return self.function(*self.before, value, *self.after, **self.named)


def trace_chain(model: Any) -> list[Any]:
    """Return the cells that a cell's ``construct`` calls one after the other, functions as `Applied`.

    Raises NotAChainError with the reason when that is not all that a call of the cell does.
    """
    if any(getattr(model, hooks, None) for hooks in ("_forward_pre_hook", "_forward_hook", "_shard_fn", "bprop")):
        raise NotAChainError("it has hooks or an own bprop")
    first, second = _trace_once(model), _trace_once(model)
    if [getattr(each, "text", id(each)) for each in first] != [getattr(each, "text", id(each)) for each in second]:
        raise NotAChainError("its construct does not do the same each time")
    return first


def _trace_once(model: Any) -> list[Any]:
    construct = model.construct
    bound = isinstance(construct, MethodType)
    function = construct.__func__ if bound else construct
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise NotAChainError("its construct is decorated")
    code = function.__code__
    several = code.co_kwonlyargcount or code.co_flags & 0x0C  # *args, **kwargs
    if code.co_argcount - bound != 1 or several:
        raise NotAChainError("its construct does not take exactly one argument")
    trace = _Trace()
    first = trace.value
    try:
        result = trace.recording(function)(*([_Self(model, trace), first] if bound else [first]))
    except Exception as error:
        reason = f"its construct cannot be followed ({type(error).__name__}: {error})"
        raise NotAChainError(trace.reason or reason) from error
    if trace.reason:
        raise NotAChainError(trace.reason)
    if result is not trace.value:
        raise NotAChainError("its construct does not return the output of its last call alone")
    return trace.cells


class _Trace:
    """What was called so far, and the value that came out last."""

    def __init__(self) -> None:
        self.cells: list[Any] = []
        self.reason = ""
        self.value = _Value(self, "its argument")

    def refuse(self, reason: str) -> NotAChainError:
        """Record a reason, also for where `construct` catches the error."""
        self.reason = self.reason or f"its construct {reason}"
        return NotAChainError(self.reason)

    def follow(self, value: Any, cell: Any, name: str) -> Any:
        """Record a call with the value; return the value that comes out."""
        if value is not self.value:
            raise self.refuse(f"uses {vars(value)['source']} more than once")
        self.cells.append(cell)
        self.value = _Value(self, f"the output of {name}")
        return self.value

    def apply(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
        """Record the call of a function with the value and constants."""
        places = [place for place, each in enumerate(args) if type(each) is _Value]
        constants = [*(each for each in args if type(each) is not _Value), *kwargs.values()]
        if len(places) != 1 or not all(map(_is_constant, constants)):
            raise self.refuse(f"calls {name} with more than one value and constants")
        if not _is_plain(function):
            raise self.refuse(f"calls {name}, which may depend on more than its argument")
        before, after = tuple(args[: places[0]]), tuple(args[places[0] + 1 :])
        named = [f"{key}={value!r}" for key, value in kwargs.items()]
        text = f"{name}({', '.join([*map(repr, before), '_', *map(repr, after), *named])})"
        return self.follow(args[places[0]], Applied(function, before, after, dict(kwargs), text), name)

    def recording(self, function: FunctionType) -> FunctionType:
        """Return a function whose global names record what is called with the value."""
        known = dict(function.__globals__)
        for name in _names(function.__code__) & known.keys():
            known[name] = self.wrap(known[name], name)
        return FunctionType(function.__code__, known, function.__name__, function.__defaults__, function.__closure__)

    def wrap(self, value: Any, name: str) -> Any:
        """Return what stands for an attribute or a global name."""
        if isinstance(value, nn.Cell):
            return _Called(value, name, self)
        if type(value) in (list, tuple):
            return type(value)(self.wrap(each, f"{name}[{number}]") for number, each in enumerate(value))
        if type(value) is dict:
            return {key: self.wrap(each, f"{name}[{key!r}]") for key, each in value.items()}
        if isinstance(value, ModuleType):
            return _Module(value, name, self)
        if callable(value) and not isinstance(value, ms.Tensor):
            return _Function(value, name, self)
        return value


class _Value:
    """Stands for a tensor on its way."""

    def __init__(self, trace: _Trace, source: str) -> None:
        vars(self).update(trace=trace, source=source)

    def __getattr__(self, name: str) -> Any:
        method = getattr(ms.Tensor, name, None)
        if name.startswith("_") or not callable(method):
            raise self.trace.refuse(f"looks at {name} of {self.source}")
        return lambda *args, **kwargs: self.trace.apply(method, (self, *args), kwargs, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise self.trace.refuse(f"sets {name} of {self.source}")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # of isinstance(value, tuple), whose answer would be a guess
        raise self.trace.refuse(f"looks at the type of {self.source}")

    def __neg__(self) -> Any:
        return self.trace.apply(ops.neg, (self,), {}, "neg")


class _Self:
    """Stands for the model."""

    def __init__(self, model: Any, trace: _Trace) -> None:
        vars(self).update(own_model=model, own_trace=trace)

    def __getattr__(self, name: str) -> Any:
        model, trace = vars(self)["own_model"], vars(self)["own_trace"]
        value = getattr(model, name)
        if isinstance(value, MethodType) and value.__self__ is model and type(value.__func__) is FunctionType:
            if value.__func__.__module__.startswith("mindspore."):
                raise trace.refuse(f"calls the cell's own {name}")
            return MethodType(trace.recording(value.__func__), self)
        return trace.wrap(value, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(_Called(vars(self)["own_model"], "self", vars(self)["own_trace"]))

    def __getitem__(self, key: Any) -> Any:
        return _Called(vars(self)["own_model"], "self", vars(self)["own_trace"])[key]

    def __len__(self) -> int:
        return len(vars(self)["own_model"])

    def __setattr__(self, name: str, value: object) -> None:
        raise vars(self)["own_trace"].refuse(f"sets the cell's attribute {name}")


class _Called:
    """Stands for a cell, also for one that only holds others."""

    def __init__(self, cell: Any, name: str, trace: _Trace) -> None:
        self._cell, self._name, self._trace = cell, name, trace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or type(args[0]) is not _Value:
            raise self._trace.refuse(f"calls {self._name} with something else than one value")
        return self._trace.follow(args[0], self._cell, self._name)

    def __getattr__(self, name: str) -> Any:
        return self._trace.wrap(getattr(self._cell, name), f"{self._name}.{name}")

    def __iter__(self) -> Iterator[Any]:
        return iter([self._trace.wrap(each, f"{self._name}[{number}]") for number, each in enumerate(self._cell)])

    def __getitem__(self, key: Any) -> Any:
        return self._trace.wrap(self._cell[key], f"{self._name}[{key!r}]")

    def __len__(self) -> int:
        return len(self._cell)

    def __bool__(self) -> bool:
        return bool(self._cell)


class _Module:
    """Stands for a module."""

    def __init__(self, module: ModuleType, name: str, trace: _Trace) -> None:
        self._module, self._name, self._trace = module, name, trace

    def __getattr__(self, name: str) -> Any:
        return self._trace.wrap(getattr(self._module, name), name)


class _Function:
    """Stands for a function, a primitive or a class."""

    def __init__(self, function: Any, name: str, trace: _Trace) -> None:
        self._function, self._name, self._trace = function, name, trace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(type(each) is _Value for each in (*args, *kwargs.values())):
            return self._trace.apply(self._function, args, kwargs, self._name)
        home = getattr(self._function, "__module__", None) or ""
        if home not in ("math", "operator", "builtins"):
            raise self._trace.refuse(f"calls {self._name} without the value")
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._trace.wrap(getattr(self._function, name), f"{self._name}.{name}")


def _operation(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    def apply(value: Any, other: Any) -> Any:
        args = (other, value) if swapped else (value, other)
        return value.trace.apply(_OPERATORS[name], args, {}, name)

    return apply


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(value: Any, *_: Any) -> Any:
        raise value.trace.refuse(f"asks for {name} of {value.source}")

    return refuse


for _name in _OPERATORS:
    setattr(_Value, f"__{_name}__", _operation(_name, swapped=False))
    setattr(_Value, f"__r{_name}__", _operation(_name, swapped=True))
for _name in _REFUSED:
    setattr(_Value, f"__{_name}__", _refusal(_name))


def _names(code: CodeType) -> set[str]:
    """Return all names that a function and those within it use."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _is_constant(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS)


def _is_plain(function: Any) -> bool:
    """Whether a function can have no state: nothing in it refers to a cell."""
    if isinstance(function, ops.Primitive):
        return True
    owner = getattr(function, "__objclass__", function)
    if str(getattr(owner, "__module__", "")).startswith("mindspore"):
        return not isinstance(function, type)
    return type(function) is FunctionType and not function.__closure__
