"""The directory of a rank, and what lies in it beside the slices: the rank list and the strategy file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import GROUP_INFO_NAME, STRATEGY_NAME, rank_in_folder
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.strategy import Layout
from ms_recover.training.compiled_files import CompiledFiles
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.layouts import same_slice, write_strategy
from ms_recover.training.options import check_place, listed_layouts, restore_ranks
from ms_recover.training.this_process import device_target

_log = logging.getLogger(__name__)


class RankFiles:
    """The directory of this rank, its rank list and its strategy file; nothing is written before `make` and `write`.

    On a device other than CPU MindSpore's compiler is asked for the rank list where nothing else states it, by
    GROUP_INFO_FILE; it writes into the directory, which is made at once then.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    directory : str
        With ``{rank}`` for the rank.
    group, layouts
        As for `SliceSaver`.

    Attributes
    ----------
    directory, group_info : Path
        The directory, and the rank list in it.
    layouts, stated_group
        What the program stated.
    template : str
        The directory with ``{rank}``.

    Raises
    ------
    UsageError
        When an argument is invalid.
    StorageError
        When the directory could not be made or written.
    """

    def __init__(
        self, job: TrainingJob, directory: str, group: Collection[int] | None, layouts: Iterable[Layout] | None
    ) -> None:
        self._job, self.template = job, directory
        self.directory = Path(directory.replace("{rank}", str(job.rank))).absolute()
        self.group_info = self.directory / GROUP_INFO_NAME
        self.layouts = self._layouts = listed_layouts(layouts, job.size)
        self._group = restore_ranks(group, self._layouts, job)
        self.stated_group = frozenset(self._group) if group is not None and self._group is not None else None
        self._compiled: CompiledFiles | None = None
        with self._explained():
            check_place(self.directory)
        if rank_in_folder(self.directory.name, self.directory.parent.name) is None:
            _log.warning(
                "rank %d: directory=%r does not end in a name such as 'ckpt_dir{rank}', by which recover_train and "
                "recover-ckpt know whose slices lie there; they do not find slices in it by themselves",
                job.rank,
                directory,
            )
        if self._group is None and device_target() != "CPU":
            self.make()
            self._compiled = CompiledFiles(self.group_info)
        elif self._group is None:
            _log.warning(
                "rank %d: the ranks that hold the same slice are unknown; give the group or the layouts", job.rank
            )

    def make(self) -> None:
        """Make the directory; StorageError when the file system refuses."""
        with self._explained():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, network: Any) -> None:
        """Write the rank list, and the strategy file of a network, where they are known.

        StorageError when the file system refuses, UsageError when the layouts do not fit the network.
        """
        if self._compiled is not None:
            self._compiled.belong_to(network)
        if self._group is not None:
            with self._explained():
                write_group_info(str(self.group_info), self._group)
        if self._layouts is not None:
            stage = self._job.rank // prod(self._layouts[0].device_matrix)
            write_strategy(self.directory / STRATEGY_NAME, self._layouts, network, stage)

    def group(self) -> tuple[int, ...]:
        """Return the ranks that hold the same slice; this rank alone where they are unknown."""
        rank = self._job.rank
        if self._group is None and self.group_info.exists():
            try:
                self._group = list(
                    read_group_info(str(self.group_info), owner=rank, world_size=self._job.size).restore_ranks
                )
            except MsRecoverError as error:
                _log.warning("rank %d: the manifests cannot name its group: %s", rank, error)
                self._group = [rank]
        return tuple(self._group or [rank])

    @property
    def is_one_block(self) -> bool:
        """Whether the ranks with the same slice are known, and hold some parameter of it alone.

        Otherwise a lost slice might be composed of what other ranks hold.
        """
        group, job = self._group, self._job
        if group is None or self._layouts is None:
            return group is not None
        return any(same_slice([one], job.rank, job.size) == group for one in self._layouts)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"rank {self._job.rank} cannot save to {self.directory}: {error}; choose another directory"
            ) from error
