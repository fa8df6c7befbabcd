"""The rank list and the strategy file that MindSpore's compiler writes: the training's compile writes them, no other.

Every compile under (semi-)auto parallel writes the file that GROUP_INFO_FILE names and the strategy file of the
parallel context. A network without an optimizer has an empty restore list, and other layouts: an evaluation would take
the files of the training away. MindSpore has no hook around a compile, so that its executor of cells is wrapped.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindspore import nn
from mindspore.experimental.optim import Optimizer
from mindspore.parallel._auto_parallel_context import auto_parallel_context

from ms_recover.errors import MsRecoverError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import read_group_info

VARIABLE = "GROUP_INFO_FILE"


class CompiledFiles:
    """The rank list that the compiler is asked for, and the training that it belongs to.

    The training is the first network with an optimizer that is compiled behind this, or the one that `belong_to` names.
    Compiled once more, it leaves the files alone as well: manifests name the digest of the strategy file, which counts
    how often it was written. Functions that are compiled by ``jit`` are not seen.

    Parameters
    ----------
    group_info : Path
        Where the list is to be written.
    """

    def __init__(self, group_info: Path) -> None:
        self._path = str(group_info)
        self._optimizers: list[weakref.ref[Any]] = []
        os.environ[VARIABLE] = self._path
        _Present.files = self
        _wrap_executor()

    def belong_to(self, network: Any) -> None:
        """Have the files written for this network, whatever was compiled before."""
        optimizers = optimizers_of(network)
        if optimizers and not self._is_training(optimizers):
            self._optimizers = []

    def compile(self, cell: Any, compile_it: Callable[[], Any]) -> Any:
        """Compile a cell, and have the files written if it is the training."""
        optimizers = optimizers_of(cell)
        if os.environ.get(VARIABLE) != self._path:
            return compile_it()
        if not optimizers or not self._is_training(optimizers) or (self._optimizers and os.path.isfile(self._path)):
            with _no_files(cell):
                return compile_it()
        self._keep_from_cache()
        compiled = compile_it()
        self._optimizers = [weakref.ref(one) for one in optimizers]
        return compiled

    def _is_training(self, optimizers: list[Any]) -> bool:
        known = [one for one in (reference() for reference in self._optimizers) if one is not None]
        if not known:
            self._optimizers = []
        return not known or any(one is other for one in known for other in optimizers)

    def _keep_from_cache(self) -> None:
        """Write a list without communication groups again, so that MindSpore does not take it for all, and compiles."""
        try:
            found = read_group_info(self._path)
        except MsRecoverError:
            return
        if not found.groups:
            write_group_info(self._path, found.restore_ranks)


class _Present:
    files: CompiledFiles | None = None


def optimizers_of(cell: Any) -> list[Any]:
    """Return the optimizers in a cell."""
    return [one for _, one in cell.cells_and_names() if isinstance(one, (nn.Optimizer, Optimizer))]


@contextmanager
def _no_files(cell: Any) -> Iterator[None]:
    """Compile without writing a rank list or a strategy file."""
    context = auto_parallel_context()
    variable, strategy = os.environ.pop(VARIABLE), context.get_strategy_ckpt_save_file()
    own = getattr(cell, "_save_strategy_file_path", "")  # of an AutoParallel, which sets the context by itself
    context.set_strategy_ckpt_save_file("")
    context.set_group_ckpt_save_file("")  # MindSpore's own memory of the variable
    if own:
        cell._save_strategy_file_path = ""
    try:
        yield
    finally:
        os.environ[VARIABLE] = variable
        context.set_strategy_ckpt_save_file(strategy)
        if own:
            cell._save_strategy_file_path = own


def _wrap_executor() -> None:
    """Have all compiles of cells pass by here, once in a process."""
    try:
        from mindspore.graph.api import _cell_graph_executor as executor
    except ImportError:  # before MindSpore 2.10
        from mindspore.common.api import _cell_graph_executor as executor
    if "compile" in vars(executor):
        return
    original = executor.compile

    def compile_cell(cell: Any, *args: Any, **options: Any) -> Any:
        files = _Present.files
        if files is None:
            return original(cell, *args, **options)
        return files.compile(cell, lambda: original(cell, *args, **options))

    executor.compile = compile_cell
