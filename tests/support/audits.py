"""Random trees of random strategies, and the plan for what is left of them when hosts are lost."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.inventory import Inventory
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.model.topology import Topology
from tests.support.cuts import CutTensor, _Flat, cell_of, cut_layout, slice_of

SHAPES = ((1, 2, 1), (1, 4, 1), (2, 2, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), (1, 3, 2), (2, 1, 2), (1, 1, 1), (2, 3, 1))
"""Tensor-parallel, data-parallel and pipeline-parallel sizes."""
NEWER, OLDER = Step(2, 8), Step(1, 8)


@dataclass(frozen=True, kw_only=True)
class RandomTree:
    """A random strategy with its evidence and damage.

    Parameters
    ----------
    tensor, data, stages : int
        Sizes of the axes.
    seed : int
        Of all other choices.
    """

    tensor: int
    data: int
    stages: int
    seed: int

    @classmethod
    def of(cls, seed: int) -> RandomTree:
        """Return the tree of a seed."""
        tensor, data, stages = Random(seed).choice(SHAPES)
        return cls(tensor=tensor, data=data, stages=stages, seed=seed)

    @property
    def devices(self) -> int:
        """Ranks of a stage."""
        return self.tensor * self.data

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.devices * self.stages

    @property
    def dealt(self) -> bool:
        """Whether remove_redundancy=True leaves one copy of each part."""
        return Random(self.seed + 3).random() < 0.12

    @property
    def flipped(self) -> bool:
        """Whether one bit of one slice of the newer step is flipped."""
        return Random(self.seed + 4).random() < 0.15

    def _keeps(self, name: str, layout: Layout | None, place: int) -> bool:
        if layout is None:
            return True
        alike = [one for one in range(self.devices) if cell_of(layout, one) == cell_of(layout, place)]
        return alike[len(name) % len(alike)] == place or name.endswith(".weight") is (place == alike[0])

    def make(self, root: Path) -> None:
        """Write it."""
        source = Random(self.seed + 1)
        layouts = self._layouts(source)
        groups = self._groups(layouts)
        lists = source.choice(("all", "all", "some", "none"))
        strategies = source.choice(("all", "all", "some", "none"))
        manifests = source.random() < 0.5
        steps = (NEWER, OLDER) if source.random() < 0.4 else (NEWER,)
        for rank in range(self.ranks):
            folder = root / f"ckpt_dir{rank}"
            folder.mkdir(parents=True)
            stage = rank // self.devices
            if lists == "all" or (lists == "some" and source.random() < 0.5):
                write_group_info(folder / "group_info.pb", list(groups[rank]))
            if strategies == "all" or (strategies == "some" and source.random() < 0.5):
                named = tuple(one for one in layouts[stage].values() if one is not None)
                (folder / "strategy.ckpt").write_bytes(encode_strategy(Strategy((stage,), 2, named)))
        for step in steps:
            for rank in range(self.ranks):
                held = dict(layouts[rank // self.devices])
                if self.dealt:
                    held = {name: one for name, one in held.items() if self._keeps(name, one, rank % self.devices)}
                path = root / f"ckpt_dir{rank}/test-{step}.ckpt"
                path.write_bytes(slice_of(self._tensors(held, step), rank % self.devices))
                if manifests:
                    group = groups[rank] if lists == "all" else (rank,)
                    manifest = replace(make_manifest(str(path), rank, step, self.ranks, group, "run"), provenance=SAVED)
                    write_manifest(str(path), manifest)
        for _ in range(source.choice((0, 0, 0, 1, 1, 2))):
            rank = source.randrange(self.ranks)
            path = root / f"ckpt_dir{rank}/test-{source.choice(steps)}.ckpt"
            if source.random() < 0.5:
                path.unlink(missing_ok=True)
            elif path.exists():
                path.write_bytes(path.read_bytes()[:-3])
        if self.flipped:
            path = root / f"ckpt_dir{source.randrange(self.ranks)}/test-{NEWER}.ckpt"
            if path.exists():
                data = bytearray(path.read_bytes())
                data[100] ^= 1
                path.write_bytes(data)

    def topology(self) -> Topology:
        """Return a random placement on hosts, and on racks of these."""
        source = Random(self.seed + 2)
        count = source.randint(2, min(self.ranks, 8)) if self.ranks > 1 else 1
        hosts = [f"host{rank % count}" for rank in range(self.ranks)]
        if source.random() < 0.5:
            source.shuffle(hosts)
        racks = tuple(f"rack{int(host.removeprefix('host')) % 2}" for host in hosts)
        return Topology(("host", "rack"), (tuple(hosts), racks), "the test")

    def _layouts(self, source: Random) -> list[Mapping[str, Layout | None]]:
        tp_inner = source.random() < 0.7
        matrix = (self.data, self.tensor) if tp_inner else (self.tensor, self.data)
        tp_axis = 0 if tp_inner else 1
        shards = source.choice([0, -1, *(n for n in (2, 4) if self.data % n == 0)])
        norm_shards = source.choice((0, 0, shards if shards < 0 or self.devices % max(shards, 1) == 0 else 0))
        found = []
        for stage in range(self.stages):
            layer = f"layer{stage}"
            layouts: dict[str, Layout | None] = {
                f"{layer}.weight": cut_layout(f"{layer}.weight", matrix, (tp_axis,)),
                f"moment.{layer}.weight": cut_layout(f"moment.{layer}.weight", matrix, (tp_axis,), shards=shards),
                f"{layer}.norm": cut_layout(f"{layer}.norm", matrix, (), shards=norm_shards),
            }
            if source.random() < 0.3:
                layouts[f"{layer}.queue"] = None
            found.append(layouts)
        return found

    def _tensors(self, layouts: Mapping[str, Layout | None], step: Step) -> dict[str, CutTensor]:
        arrays = {name: Random(f"{self.seed} {step} {name}").randbytes(4 * 96) for name in layouts}
        return {
            name: CutTensor("Float32", _Flat(memoryview(arrays[name]).cast("i")), one) for name, one in layouts.items()
        }

    def _groups(self, layouts: list[Mapping[str, Layout | None]]) -> dict[int, tuple[int, ...]]:
        alike: dict[object, list[int]] = defaultdict(list)
        for rank in range(self.ranks):
            stage, place = divmod(rank, self.devices)
            cells = tuple(cell_of(one, place) for one in layouts[stage].values() if one is not None)
            alike[stage, cells].append(rank)
        return {rank: tuple(held) for held in alike.values() for rank in held}


def without(inventory: Inventory, ranks: Iterable[int]) -> Inventory:
    """Return what a scan finds when the directories of some ranks are gone."""
    gone = frozenset(ranks)
    return replace(
        inventory,
        ranks=tuple(rank for rank in inventory.ranks if rank not in gone),
        slices=tuple(file for file in inventory.slices if file.rank not in gone),
        group_files=tuple(file for file in inventory.group_files if file.rank not in gone),
        strategy_files=tuple(file for file in inventory.strategy_files if file.rank not in gone),
        orphans=tuple(file for file in inventory.orphans if file.rank not in gone),
        notes=(),
    )


def delete(root: Path, ranks: Iterable[int]) -> None:
    """Remove the directories of some ranks."""
    for rank in ranks:
        shutil.rmtree(root / f"ckpt_dir{rank}", ignore_errors=True)
