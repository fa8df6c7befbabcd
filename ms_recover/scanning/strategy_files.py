"""Read strategy files: every rank has one, and nearly all are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ms_recover.errors import MsRecoverError
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.tree import Tree
from ms_recover.scanning.walk import RankFile
from ms_recover.stores.digest import digest_of

_AT_A_TIME = 64
"""Files whose bytes are held at a time."""


class StrategyReader:
    """Decodes equal files once and shares equal strategies, during one scan."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._decoded: dict[bytes, tuple[Strategy, str]] = {}
        self._same: dict[Strategy, Strategy] = {}
        self._last: tuple[bytes, tuple[Strategy, str] | None] = (b"", None)

    def read(self, path: str) -> tuple[Strategy, str]:
        """Return the strategy in a file, and the digest of its bytes."""
        return self._decode(path, self._tree.small(path, "a strategy file"))

    def _decode(self, path: str, data: bytes) -> tuple[Strategy, str]:
        last, known = self._last
        if known is None or data != last:  # comparing two files takes less than looking one up
            known = self._decoded.get(data)
        if known is None:
            strategy = decode_strategy(data, self._tree.name(path))
            known = self._decoded[data] = (self._same.setdefault(strategy, strategy), digest_of(data))
        self._last = (data, known)
        return known

    def beside_slices(self, files: Sequence[RankFile], notes: Notes) -> list[StrategyFile]:
        """Read the strategy files in the ranks' directories; those that cannot be read are noted."""

        def load(file: RankFile) -> bytes | MsRecoverError:
            try:
                return self._tree.small(file.path, "a strategy file")
            except MsRecoverError as error:
                return error

        found = []
        for start in range(0, len(files), _AT_A_TIME):
            some = files[start : start + _AT_A_TIME]
            for file, data in zip(some, self._tree.each(load, some), strict=True):
                try:
                    if isinstance(data, MsRecoverError):
                        raise data
                    found.append(StrategyFile(file.rank, file.path, *self._decode(file.path, data)))
                except MsRecoverError as error:
                    self._note(file.path, error, notes)
        return found

    def in_folder(self, paths: Iterable[str], notes: Notes) -> list[StrategyFile]:
        """Read strategy files without a rank in their names; those that cannot be read are noted."""
        found: list[StrategyFile] = []
        for path in paths:
            try:
                found += self.named([(None, path)])
            except MsRecoverError as error:
                self._note(path, error, notes)
        return found

    def _note(self, path: str, error: MsRecoverError, notes: Notes) -> None:
        self._tree.check_reached(error)
        notes.add(path, self._tree.brief(error, path))

    def named(self, files: Iterable[tuple[int | None, str]]) -> list[StrategyFile]:
        """Read the strategy files that the operator named; a merged one gives a file for each stage.

        It raises as `ms_recover.formats.strategy.read_strategy`.
        """
        found = []
        for rank, path in files:
            strategy, digest = self.read(path)
            parts = _unmerged(strategy)
            if not parts:
                first = min(strategy.stages, default=0) * strategy.devices_per_stage
                found.append(StrategyFile(first if rank is None else rank, path, strategy, digest))
            for stage, part in parts.items():
                shared = self._same.setdefault(part, part)
                found.append(StrategyFile(stage * strategy.devices_per_stage, path, shared, digest))
        return found


def _unmerged(strategy: Strategy) -> dict[int, Strategy]:
    """Split a file of MindSpore's ``merge_pipeline_strategys`` by stage; nothing for another file.

    MindSpore puts the stage and a hyphen before each parameter's name.
    """
    layouts: dict[int, list[Layout]] = defaultdict(list)
    for layout in strategy.layouts:
        stage, hyphen, name = layout.parameter.partition("-")
        if not hyphen or not stage.isascii() or not stage.isdigit() or int(stage) not in strategy.stages:
            return {}
        layouts[int(stage)].append(replace(layout, parameter=name))
    return {
        stage: Strategy((stage,), strategy.save_count, tuple(sorted(found, key=lambda layout: layout.parameter)))
        for stage, found in sorted(layouts.items())
    }
