"""Read strategy files: every rank has one, and nearly all are equal."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ms_recover.errors import MsRecoverError
from ms_recover.formats.reading import read_small
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.walk import RankFile
from ms_recover.stores.digest import Digester


class StrategyReader:
    """Decodes equal files once and shares equal strategies, during one scan."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, tuple[Strategy, str]] = {}
        self._same: dict[Strategy, Strategy] = {}
        self._last: tuple[bytes, tuple[Strategy, str] | None] = (b"", None)

    def read(self, path: str) -> tuple[Strategy, str]:
        """Return the strategy in a file, and the digest of its bytes."""
        data = read_small(path, "a strategy file")
        last, known = self._last
        if known is None or data != last:  # comparing two files takes less than looking one up
            known = self._decoded.get(data)
        if known is None:
            strategy = decode_strategy(data, path)
            digester = Digester()
            digester.update(memoryview(data))
            known = self._decoded[data] = (self._same.setdefault(strategy, strategy), digester.digests().file)
        self._last = (data, known)
        return known

    def beside_slices(self, root: str, files: Iterable[RankFile], notes: Notes) -> list[StrategyFile]:
        """Read the strategy files in the ranks' directories; those that cannot be read are noted."""
        found = []
        for file in files:
            path = os.path.join(root, file.path)
            try:
                found.append(StrategyFile(file.rank, file.path, *self.read(path)))
            except MsRecoverError as error:
                notes.add(file.path, str(error).removeprefix(f"{path}: "))
        return found

    def in_folder(self, root: str, paths: Iterable[str], notes: Notes) -> list[StrategyFile]:
        """Read strategy files without a rank in their names; those that cannot be read are noted."""
        found: list[StrategyFile] = []
        for path in paths:
            full = os.path.join(root, path)
            try:
                found += [replace(file, path=path) for file in self.named([(None, full)])]
            except MsRecoverError as error:
                notes.add(path, str(error).removeprefix(f"{full}: "))
        return found

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
