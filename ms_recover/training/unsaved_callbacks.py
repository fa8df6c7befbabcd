"""Callbacks whose state is not saved: all but those that save it, say that they have none, or are known to have none.

What ``vars()`` shows decides nothing: a callback may count in its class, in its module or in the network.
"""

from __future__ import annotations

import builtins
import dis
import logging
import sys
from collections.abc import Hashable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from mindspore.train import LambdaCallback, LearningRateScheduler

from ms_recover.model.texts import list_some
from ms_recover.training.callback_states import keeps_its_state

_log = logging.getLogger(__name__)

STATELESS = "stateless"
"""Class attribute: where it is True, an object of the class remembers nothing that a resumed training needs."""

_WITHOUT_STATE = frozenset(
    {
        "BackupAndRestore",
        "CallbackManager",
        "ClusterMonitor",
        "DynamicProfilerMonitor",
        "DynamicProfilerMonitorBase",
        "FlopsUtilizationCollector",
        "LossMonitor",
        "ModelCheckpoint",
        "OnRequestExit",
        "SummaryCollector",
        "TimeMonitor",
        "TrainFaultTolerance",
        "_FrameworkProfilerCallback",
        "_StepSync",
    }
)
"""MindSpore's callbacks that remember nothing that a training depends on (2.10); classes made from them may."""

_MOST_NAMED = 16
_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None))
_CHANGES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF"})
_MODULES = sys.stdlib_module_names | {"mindspore", "numpy"}


def warn_of_unsaved(callbacks: Iterable[Any], said: set[Hashable], step: int) -> None:
    """Name the callbacks whose state is not saved, at the first save of a run, while something can be done about it.

    `said` is what the savers of the run have said: of several one names them.
    """
    names = tuple(unsaved_callbacks(callbacks))
    if not names or names in said:
        return
    said.add(names)
    _log.warning(
        "step %d: what these callbacks remember is not saved, and a resumed training begins them anew: %s; give them "
        "state_dict() and load_state_dict(), or `%s = True` in the class where it remembers nothing",
        step,
        list_some(names, _MOST_NAMED),
        STATELESS,
    )


def unsaved_callbacks(callbacks: Iterable[Any]) -> list[str]:
    """Return the classes of the callbacks that may have a state that is not saved, each once."""
    return list(dict.fromkeys(_name(one) for one in callbacks if not _is_known(one)))


def _is_known(callback: Any) -> bool:
    kind = type(callback)
    if _says_stateless(callback) or keeps_its_state(callback) or kind.__module__.startswith("ms_recover."):
        return True
    if not kind.__module__.startswith("mindspore."):
        return False
    if kind in (LambdaCallback, LearningRateScheduler):
        return all(_says_stateless(one) or is_plain(one) for one in _calls(callback))
    return kind.__qualname__ in _WITHOUT_STATE


def _says_stateless(value: Any) -> bool:
    return getattr(type(value), STATELESS, False) is True


def _calls(callback: Any) -> Iterator[Any]:
    """Return what a callback of MindSpore calls for the program."""
    return (value for value in vars(callback).values() if callable(value))


def _name(callback: Any) -> str:
    name = type(callback).__qualname__
    if not isinstance(callback, (LambdaCallback, LearningRateScheduler)):
        return name
    odd = [one for one in _calls(callback) if not _says_stateless(one) and not is_plain(one)]
    whose = (one.__qualname__ if isinstance(one, FunctionType) else type(one).__qualname__ for one in odd)
    return f"{name} ({', '.join(dict.fromkeys(whose))})" if odd else name


def is_plain(value: Any, known: frozenset[int] = frozenset()) -> bool:
    """Whether a value is a function that remembers nothing from call to call, as far as its code shows.

    It sets nothing outside, and reaches values that do not change, plain functions, and modules of Python, numpy and
    MindSpore.
    """
    if isinstance(value, BuiltinFunctionType):
        return isinstance(value.__self__, (ModuleType, type(None))) and value is not setattr
    if not isinstance(value, FunctionType):
        return False
    if id(value) in known or value.__module__.partition(".")[0] in _MODULES:
        return True
    known |= {id(value)}
    reached = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
    reached += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    codes = list(_codes(value.__code__))
    for name in {name for code in codes for name in _globals(code)}:
        found = value.__globals__.get(name, getattr(builtins, name, None))
        reached.append(found)
    return not any(_changes(code) for code in codes) and all(_is_harmless(one, known) for one in reached)


def _is_harmless(value: Any, known: frozenset[int]) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(_is_harmless(one, known) for one in value)
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in _MODULES
    if isinstance(value, type):
        return value.__module__.partition(".")[0] in _MODULES
    return isinstance(value, _IMMUTABLE) or is_plain(value, known)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Return a code object and those within it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _globals(code: CodeType) -> Iterator[str]:
    return (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _changes(code: CodeType) -> bool:
    return any(step.opname in _CHANGES for step in dis.get_instructions(code))


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # not set yet
        return False
