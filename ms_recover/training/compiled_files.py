"""The rank list and the strategy file that MindSpore's compiler writes: the training's compile writes them, no other.

Every compile under (semi-)auto parallel writes the file that GROUP_INFO_FILE names and the strategy file of the
parallel context. A network without an optimizer has an empty restore list, and other layouts: an evaluation would take
the files of the training away. MindSpore has no hook around a compile, so that its executor of cells is wrapped.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore import nn
from mindspore.experimental.optim import Optimizer
from mindspore.parallel._auto_parallel_context import auto_parallel_context

from ms_recover.errors import MsRecoverError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import read_group_info
from ms_recover.stores.atomic import write_small

VARIABLE = "GROUP_INFO_FILE"

_OWN_STRATEGY = "_save_strategy_file_path"
_OWN_CONFIG = (_OWN_STRATEGY, "_only_trainable_params")
"""Of an AutoParallel, which sets the parallel context by itself where no ``Model`` does."""


@dataclass(frozen=True)
class _Compiled:
    """A training network that was compiled, by its optimizers, and what the compiler wrote for it."""

    optimizers: tuple[weakref.ref[Any], ...]
    files: dict[str, bytes]

    def is_of(self, optimizers: list[Any]) -> bool:
        return any(one() is other for one in self.optimizers for other in optimizers)


class CompiledFiles:
    """The rank list that the compiler is asked for, and the training that it belongs to.

    The training is the one that `belong_to` names, and until then the network with an optimizer that was compiled last.
    Compiled once more, it leaves the files alone as well: manifests name the digest of the strategy file, which counts
    how often it was written. Functions that are compiled by ``jit`` are not seen.

    Parameters
    ----------
    group_info : Path
        Where the list is to be written.
    """

    def __init__(self, group_info: Path) -> None:
        self._path = str(group_info)
        self._compiled: list[_Compiled] = []
        self._training: tuple[weakref.ref[Any], ...] = ()
        self._by_cell: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        os.environ[VARIABLE] = self._path
        _Present.files = self
        _wrap_executor()

    def belong_to(self, network: Any) -> None:
        """Have the files be those of this network, and no other's from now on.

        StorageError when it was compiled before another one, and its files cannot be written again.
        """
        optimizers = optimizers_of(network)
        self._training = tuple(map(weakref.ref, optimizers))
        own = next((one for one in self._compiled if one.is_of(optimizers)), None)
        if own is not None and own is not self._compiled[-1]:
            for path, data in own.files.items():
                write_small(path, data, mode=0o600)
            self._compiled.append(own)

    def compile(self, cell: Any, compile_it: Callable[[], Any]) -> Any:
        """Compile a cell, and have the files written if it is the training."""
        if os.environ.get(VARIABLE) != self._path:
            return compile_it()
        optimizers = self._optimizers(cell)
        if not optimizers or self._is_another(optimizers) or self._is_compiled(optimizers):
            with _no_files(cell):
                return compile_it()
        self._keep_from_cache()
        strategy = getattr(cell, _OWN_STRATEGY, "") or auto_parallel_context().get_strategy_ckpt_save_file()
        compiled = compile_it()
        files = {}
        for path in filter(None, (self._path, strategy)):
            with suppress(OSError):  # not configured, or not written: from the compile cache
                files[path] = Path(path).read_bytes()
        self._compiled.append(_Compiled(tuple(map(weakref.ref, optimizers)), files))
        return compiled

    def _optimizers(self, cell: Any) -> list[Any]:
        """Return the optimizers of a cell; it passes by at every step, so that they are looked for once."""
        found = self._by_cell.get(cell)
        if found is None:
            found = self._by_cell[cell] = list(map(weakref.ref, optimizers_of(cell)))
        return [one for one in (reference() for reference in found) if one is not None]

    def _is_another(self, optimizers: list[Any]) -> bool:
        known = [one for one in (reference() for reference in self._training) if one is not None]
        return bool(known) and not any(one is other for one in known for other in optimizers)

    def _is_compiled(self, optimizers: list[Any]) -> bool:
        return os.path.isfile(self._path) and any(one.is_of(optimizers) for one in self._compiled)

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
    own = getattr(cell, _OWN_STRATEGY, "")
    context.set_strategy_ckpt_save_file("")
    context.set_group_ckpt_save_file("")  # MindSpore's own memory of the variable
    if own:
        setattr(cell, _OWN_STRATEGY, "")
    try:
        yield
    finally:
        os.environ[VARIABLE] = variable
        context.set_strategy_ckpt_save_file(strategy)
        if own:
            setattr(cell, _OWN_STRATEGY, own)


@dataclass(frozen=True)
class CapturedFiles:
    """What a compile wrote instead of the files that it was to write."""

    strategy: bytes | None
    files: dict[str, bytes]
    """The contents of those files, by their paths."""


@contextmanager
def captured_files(model: Any) -> Iterator[Callable[[], CapturedFiles]]:
    """Have compiles in a block write elsewhere: in the directory of a rank may lie the files of another world.

    The strategy is written in any case, and names optimizer states. Yields a function that returns what was written.
    """
    context = auto_parallel_context()
    before, variable = context.get_strategy_ckpt_config(), os.environ.get(VARIABLE)
    wrapped = getattr(model, "_network", None)
    own = {name: getattr(wrapped, name) for name in _OWN_CONFIG if hasattr(wrapped, name)}
    wanted = own.get(_OWN_STRATEGY) or before["save_file"]
    with tempfile.TemporaryDirectory(prefix="ms_recover.") as folder:
        group_info, strategy = os.path.join(folder, "group_info.pb"), os.path.join(folder, "strategy.ckpt")
        context.set_strategy_ckpt_config({"save_file": strategy, "only_trainable_params": False})
        for name, value in zip(_OWN_CONFIG, (strategy, False), strict=True):
            if name in own:
                setattr(wrapped, name, value)
        if variable is not None:
            os.environ[VARIABLE] = group_info
            context.set_group_ckpt_save_file(group_info)

        def captured() -> CapturedFiles:
            files = {}
            for path, place in ((strategy, wanted), (group_info, variable)):
                if place:
                    with suppress(OSError):
                        files[place] = Path(path).read_bytes()
            data = Path(strategy).read_bytes() if os.path.isfile(strategy) else None
            return CapturedFiles(data, files)

        try:
            yield captured
        finally:
            context.set_strategy_ckpt_config(before)
            for name, value in own.items():
                setattr(wrapped, name, value)
            if variable is not None:
                os.environ[VARIABLE] = variable
                context.set_group_ckpt_save_file("")


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
