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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.experimental.optim import Optimizer

from ms_recover.errors import MsRecoverError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import read_group_info
from ms_recover.stores.atomic import write_small
from ms_recover.training.mindspore_inside import (
    STRATEGY,
    TRAINABLE_ONLY,
    have_compiles_pass,
    strategy_of,
    strategy_set,
    wrapped_network,
)

VARIABLE = "GROUP_INFO_FILE"


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
        have_compiles_pass(self)

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
        strategy = strategy_of(cell) or ms.get_auto_parallel_context("strategy_ckpt_save_file")
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


def optimizers_of(cell: Any) -> list[Any]:
    """Return the optimizers in a cell."""
    return [one for _, one in cell.cells_and_names() if isinstance(one, (nn.Optimizer, Optimizer))]


@contextmanager
def _no_files(cell: Any) -> Iterator[None]:
    """Compile without writing a rank list or a strategy file."""
    variable, strategy = os.environ.pop(VARIABLE), ms.get_auto_parallel_context("strategy_ckpt_save_file")
    ms.set_auto_parallel_context(strategy_ckpt_save_file="", group_ckpt_save_file="")  # the latter remembers VARIABLE
    try:
        with strategy_set(cell, **{STRATEGY: ""}):
            yield
    finally:
        os.environ[VARIABLE] = variable
        ms.set_auto_parallel_context(strategy_ckpt_save_file=strategy)


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
    before, variable = ms.get_auto_parallel_context("strategy_ckpt_config"), os.environ.get(VARIABLE)
    network = wrapped_network(model)
    wanted = strategy_of(network) or before["save_file"]
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="ms_recover."))
        group_info, strategy = os.path.join(folder, "group_info.pb"), os.path.join(folder, "strategy.ckpt")
        ends.callback(ms.set_auto_parallel_context, strategy_ckpt_config=before)
        ms.set_auto_parallel_context(strategy_ckpt_config={"save_file": strategy, "only_trainable_params": False})
        ends.enter_context(strategy_set(network, **{STRATEGY: strategy, TRAINABLE_ONLY: False}))
        if variable is not None:
            ends.callback(ms.set_auto_parallel_context, group_ckpt_save_file="")
            ends.callback(os.environ.__setitem__, VARIABLE, variable)
            os.environ[VARIABLE] = group_info
            ms.set_auto_parallel_context(group_ckpt_save_file=group_info)

        def captured() -> CapturedFiles:
            files = {}
            for path, place in ((strategy, wanted), (group_info, variable)):
                if place:
                    with suppress(OSError):
                        files[place] = Path(path).read_bytes()
            data = Path(strategy).read_bytes() if os.path.isfile(strategy) else None
            return CapturedFiles(data, files)

        yield captured
