"""Where MindSpore is reached into: everything that it has under names which it does not document is taken here.

`REACHES` has each of them with what breaks without it; a test looks each one up in the installed MindSpore, and says
that. All were checked on `CHECKED`; where older versions have them elsewhere, the function says so. Where MindSpore
documents a way, that is taken elsewhere, such as ``mindspore.set_auto_parallel_context`` for the paths of the files
that its compiler writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, Protocol

from mindspore.train import Model
from mindspore.train.callback import _CallbackManager

try:
    from mindspore.graph.api import _no_grad, _pynative_executor
except ImportError:  # before 2.8
    from mindspore.common.api import _no_grad, _pynative_executor
try:
    from mindspore.graph.api import _cell_graph_executor
except ImportError:  # before 2.10
    from mindspore.common.api import _cell_graph_executor

CHECKED = "2.10.0"

REACHES: Mapping[str, str] = {
    "train.callback._CallbackManager._callbacks": (
        "a SliceCheckpoint does not act behind the callbacks that stand behind it, and batches are digested late"
    ),
    "graph.api._cell_graph_executor.compile": (
        "an evaluation overwrites the rank list and the strategy file of the training"
    ),
    "graph.api._no_grad": "nothing is loaded into trained parameters in place",
    "graph.api._pynative_executor.grad_flag and clear_res": (
        "behind an error that came out of a network, a retry in the same process runs the network twice a step"
    ),
    "graph.api.function_phases": "operators that @jit has compiled are taken for some that go on exactly",
    "common.seed._GLOBAL_SEED and _KERNEL_SEED": "the seeds of operators are not as they were",
    "parallel._utils._init_auto_parallel_context and _clear_auto_parallel_context": (
        "a network in AutoParallel is not compiled before its slice is loaded"
    ),
    "parallel.auto_parallel.AutoParallel._save_strategy_file_path and _only_trainable_params": (
        "the strategy of a resume on other ranks goes into the file of the training before"
    ),
    "train._utils.get_parameter_redundancy": "the ranks that hold the same are not known where the compiler cuts",
    "nn.Cell._params, _cells, _buffers and _non_persistent_buffers_set": (
        "buffers, and what cells keep beside parameters, are neither saved nor restored"
    ),
    "nn.WithLossCell._loss_fn": "a resume does not name that the loss is another one",
    "train.Model._network": "a network in AutoParallel is not compiled before its slice is loaded",
    "train.Model._parameter_broadcast": "parameters that are broadcast are loaded before they are compiled",
    "train.Model._amp_level": "a resume does not name that the amp level is another one",
    "train.Model._metric_fns": "a validation without metrics is refused by MindSpore, behind the resume",
    "dataset.Dataset._global_step": "a dataset that is used once more does not begin where it stood",
    "train.LossMonitor._per_print_times and _last_print_time": "losses are printed at other steps than before",
    "train.ModelCheckpoint._config, _directory, _last_triggered_step, _append_step_num and _exception_prefix": (
        "the manifests of MindSpore's own slices lack step and experiment, and their folder is not found"
    ),
}
"""By name below ``mindspore``: what breaks where it is gone."""


def why_gone(name: str, version: str) -> str:
    """Return a sentence for a version of MindSpore that has something no more."""
    return f"MindSpore {version} has no {name}, as {CHECKED} has: {REACHES[name]}"


def calling_manager() -> Any | None:
    """Return the manager by which a callback is called just now; None when something else calls it.

    ``Model`` calls the callbacks in the order of a list, through a manager that no callback is given
    (``train/callback/_callback.py``).
    """
    return _calling(_CallbackManager)


def calling_model() -> Any | None:
    """Return the ``Model`` that trains just now; None when something else does."""
    return _calling(Model)


def _calling(kind: type) -> Any | None:
    """Return the object of a class, one of whose methods is running; nothing hands it over."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, kind):
            return caller
        frame = frame.f_back
    return None


def listed_callbacks(callbacks: Any) -> Any:
    """Return the callbacks of a manager; what is none is one callback."""
    return getattr(callbacks, "_callbacks", [callbacks])


def act_first(manager: Any, callback: Any) -> None:
    """Have one more callback act before all others from the next call on."""
    manager._callbacks = [callback, *manager._callbacks]


def act_last(manager: Any, kind: type) -> None:
    """Have the callbacks of a class act behind all others from the next call on."""
    manager._callbacks = sorted(manager._callbacks, key=lambda one: isinstance(one, kind))


def around_first(manager: Any, event: str, action: Callable[[Any, Callable[[], None]], None]) -> None:
    """Have the first call of an event, such as ``on_train_epoch_begin``, go through an action, once.

    The action is given the context of the run, and a function that lets the callbacks act.
    """
    inner = getattr(manager, event)

    def first(run_context: Any) -> None:
        setattr(manager, event, inner)
        action(run_context, lambda: inner(run_context))

    setattr(manager, event, first)


_PASSES = "ms_recover_passes"
"""Attribute of the executor whose method is wrapped: what compiles pass by."""


class CompilesCells(Protocol):
    """What all compiles of cells pass by."""

    def compile(self, cell: Any, compile_it: Callable[[], Any]) -> Any:
        """Compile a cell by calling a function, whose result is returned."""


def have_compiles_pass(passes: CompilesCells | None) -> None:
    """Have all compiles of cells of the process pass by here; MindSpore has no hook around a compile."""
    executor = _cell_graph_executor
    is_wrapped = hasattr(executor, _PASSES)
    setattr(executor, _PASSES, passes)
    if is_wrapped:
        return
    original = executor.compile

    def compile_cell(cell: Any, *args: Any, **options: Any) -> Any:
        passes: CompilesCells | None = getattr(executor, _PASSES)
        if passes is None:
            return original(cell, *args, **options)
        return passes.compile(cell, lambda: original(cell, *args, **options))

    executor.compile = compile_cell


def is_recording() -> bool:
    """Whether a gradient is being recorded in PyNative mode."""
    return bool(_pynative_executor.grad_flag())


def clear_recording() -> None:
    """End the recording of a gradient, as MindSpore does where it fails to compile."""
    _pynative_executor.clear_res()


def without_gradient() -> AbstractContextManager[None]:
    """Return a context in which trained parameters may be written."""
    return _no_grad()  # type: ignore[no-any-return]


def compiled_functions() -> list[str]:
    """Return the names under which MindSpore counts what ``@jit`` has compiled; before 2.9 ``common/api.py`` does."""
    found = sys.modules.get("mindspore.graph.api") or sys.modules.get("mindspore.common.api")
    return list(map(str, getattr(found, "function_phases", ())))


def operator_counts() -> dict[str, Any]:
    """Return how often each seed was given to an operator."""
    return dict(_seeds()._KERNEL_SEED)


def restore_operator_seeds(seed: int | None, counts: Mapping[str, Any]) -> None:
    """Restore the global seed and the counts; ``mindspore.set_seed`` would begin the counts anew."""
    seeds = _seeds()
    seeds._GLOBAL_SEED = seed
    seeds._KERNEL_SEED.clear()
    seeds._KERNEL_SEED.update(counts)


def _seeds() -> Any:
    return import_module("mindspore.common.seed")  # a function has the same name in `mindspore.common`


def wrapped_network(model: Any) -> Any:
    """Return the network that a ``Model`` was given, which may be an ``AutoParallel``."""
    return getattr(model, "_network", None)


@contextmanager
def parallel_context_of(network: Any) -> Iterator[None]:
    """Have the parallel context be that of an ``AutoParallel``, as ``Model`` does around a training; else nothing."""
    from mindspore.parallel._utils import _clear_auto_parallel_context, _init_auto_parallel_context

    _init_auto_parallel_context(network)
    try:
        yield
    finally:
        _clear_auto_parallel_context(network)


STRATEGY, TRAINABLE_ONLY = "_save_strategy_file_path", "_only_trainable_params"
"""Of an ``AutoParallel``, which sets the parallel context by itself where no ``Model`` does."""


def strategy_of(network: Any) -> str:
    """Return the strategy file that an ``AutoParallel`` asks for; empty where it asks for none, or is none."""
    return str(getattr(network, STRATEGY, ""))


@contextmanager
def strategy_set(network: Any, **values: Any) -> Iterator[None]:
    """Have an ``AutoParallel`` ask for another strategy file, by the names that it has; else nothing."""
    before = {name: getattr(network, name) for name in values if hasattr(network, name)}
    for name in before:
        setattr(network, name, values[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(network, name, value)


def broadcasts_parameters(model: Any) -> bool:
    """Whether a ``Model`` broadcasts parameters from one rank when it compiles."""
    return bool(getattr(model, "_parameter_broadcast", False))


def ranks_alike(layouts: Mapping[str, Any], first: int) -> Any:
    """Return by parameter which ranks hold the same of it, by the layouts of the compiler (``train/_utils.py``)."""
    from mindspore.train._utils import get_parameter_redundancy

    return get_parameter_redundancy(layouts, first)


def parameters_of_cell(cell: Any) -> Mapping[str, Any]:
    """Return a cell's own parameters by attribute, None for those that are set to None."""
    return cell._params  # type: ignore[no-any-return]


def buffers_of_cell(cell: Any) -> Mapping[str, Any]:
    """Return a cell's own buffers by name; none of a version that knows none."""
    return getattr(cell, "_buffers", None) or {}


def transient_buffers(cell: Any) -> set[str]:
    """Return the names of a cell's buffers that no state holds."""
    return cell._non_persistent_buffers_set  # type: ignore[no-any-return]


def loss_of(cell: Any) -> Any:
    """Return the loss of an ``nn.WithLossCell``."""
    return vars(cell).get("_loss_fn") or cell._cells.get("_loss_fn")


def amp_level_of(model: Any) -> Any:
    """Return the level of a ``Model``; None of what is none."""
    return getattr(model, "_amp_level", None)


def has_metrics(model: Any) -> bool:
    """Whether a ``Model`` has metrics; yes where that is not known."""
    return bool(getattr(model, "_metric_fns", True))


def init_step_of(dataset: Any) -> int | None:
    """Return the step that ``set_init_step`` has set; ``get_init_step`` answers for the sources as well."""
    return getattr(dataset, "_global_step", 0)


def print_interval(monitor: Any) -> int:
    """Return every how many steps a ``LossMonitor`` prints; 0 of what is none."""
    return int(getattr(monitor, "_per_print_times", 0))


def printed_last(monitor: Any, step: int) -> None:
    """Have a ``LossMonitor`` count from a step."""
    monitor._last_print_time = step


def directory_of(callback: Any) -> str:
    """Return the directory of this rank that a ``ModelCheckpoint`` saves to; empty where it is made for each save."""
    return str(getattr(callback, "_directory", ""))


def config_of(callback: Any) -> Any:
    """Return the ``CheckpointConfig`` of a ``ModelCheckpoint``; None of what is none."""
    return getattr(callback, "_config", None)


def saved_step_of(callback: Any, trained: int) -> int:
    """Return the step that a ``ModelCheckpoint`` has saved last, `trained` of one that does not count."""
    return int(getattr(callback, "_last_triggered_step", trained) + getattr(callback, "_append_step_num", 0))
