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
    trace = _Trace(model)
    first = trace.value
    try:
        result = trace.recording(function)(*([_Named(model, "", trace), first] if bound else [first]))
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

    def __init__(self, model: Any) -> None:
        self.model = model
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
        if type(value) in (list, tuple):
            return type(value)(self.wrap(each, f"{name}[{number}]") for number, each in enumerate(value))
        if type(value) is dict:
            return {key: self.wrap(each, f"{name}[{key!r}]") for key, each in value.items()}
        if isinstance(value, ModuleType):
            return _Named(value, "", self)
        if isinstance(value, nn.Cell) or (callable(value) and not isinstance(value, ms.Tensor)):
            return _Named(value, name, self)
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


class _Named:
    """Stands for what `construct` reaches by a name: the model itself, a cell, a module, a function, or a class.

    The model and modules have no name of their own in messages and texts.
    """

    def __init__(self, thing: Any, name: str, trace: _Trace) -> None:
        vars(self).update(thing=thing, name=name, trace=trace)  # not as attributes of the thing, see `__getattr__`

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        thing, own, trace = _fields(self)
        value = getattr(thing, name)
        function = value.__func__ if isinstance(value, MethodType) and value.__self__ is thing is trace.model else None
        if isinstance(function, FunctionType):
            if function.__module__.startswith("mindspore."):
                raise trace.refuse(f"calls the cell's own {name}")
            return MethodType(trace.recording(function), self)
        return trace.wrap(value, f"{own}.{name}" if own else name)

    def __setattr__(self, name: str, value: object) -> None:
        raise _fields(self)[2].refuse(f"sets the cell's attribute {name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        thing, name, trace = _fields(self)
        if isinstance(thing, nn.Cell):
            if thing is trace.model or len(args) != 1 or kwargs or type(args[0]) is not _Value:
                raise trace.refuse(f"calls {name or 'itself'} with something else than one value")
            return trace.follow(args[0], thing, name)
        if any(type(each) is _Value for each in (*args, *kwargs.values())):
            return trace.apply(thing, args, kwargs, name)
        if (getattr(thing, "__module__", None) or "") not in ("math", "operator", "builtins"):
            raise trace.refuse(f"calls {name} without the value")
        return thing(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        thing, name, trace = _fields(self)
        return iter([trace.wrap(each, f"{name or 'self'}[{number}]") for number, each in enumerate(thing)])

    def __getitem__(self, key: Any) -> Any:
        thing, name, trace = _fields(self)
        return trace.wrap(thing[key], f"{name or 'self'}[{key!r}]")

    def __len__(self) -> int:
        return len(_fields(self)[0])

    def __bool__(self) -> bool:
        return bool(_fields(self)[0])


def _fields(named: _Named) -> tuple[Any, str, _Trace]:
    """Return what stands behind a name, the name, and the trace: every other attribute is one of the thing."""
    own = vars(named)
    return own["thing"], own["name"], own["trace"]


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
