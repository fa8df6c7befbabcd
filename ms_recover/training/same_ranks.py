"""The ranks that hold the same slice, as MindSpore's layouts say after the network is compiled."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ms_recover.errors import MsRecoverError
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.slices import Parameter

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SameRanks:
    """The holders of each parameter of this rank.

    Without `by_parameter` the same ranks hold every parameter, `whole`; without that too nothing is known.
    """

    rank: int
    whole: tuple[int, ...] | None = None
    by_parameter: Mapping[str, frozenset[int]] | None = None
    """The ranks that hold the same part of a parameter as this rank."""

    @property
    def known(self) -> bool:
        """Whether anything is known of other ranks."""
        return self.whole is not None or self.by_parameter is not None

    def holders(self, parameters: Iterable[Parameter]) -> tuple[int, ...]:
        """Return the ranks that hold the same slice, by its parameters; this rank alone where that is not known.

        Values of one element, such as counters, need no layout: all ranks hold them.
        """
        if self.by_parameter is None:
            return self.whole or (self.rank,)
        held = [self.by_parameter.get(one.name) for one in parameters if prod(one.shape) > 1]
        named = [ranks for ranks in held if ranks is not None]
        if not named or len(named) < len(held):
            return (self.rank,)
        return tuple(sorted(frozenset.intersection(*named)))


def compiled_ranks(network: Any, rank: int, world_size: int) -> SameRanks | None:
    """Return the holders by the layouts that MindSpore's compiler gave a train network; None when it gave none.

    The layouts are those of ``Cell.parameter_layout_dict``, and ``get_parameter_redundancy`` (``train/_utils.py``) says
    who holds the same by them, as it does for MindFormers where redundancy is removed.
    """
    try:
        layouts = dict(network.parameter_layout_dict)
        if not layouts or world_size == 1:
            return None
        import mindspore as ms

        from ms_recover.training.mindspore_inside import ranks_alike

        stages = max(1, int(ms.get_auto_parallel_context("pipeline_stages") or 1))
        first = rank // (world_size // stages) * (world_size // stages)
        kinds = {name: repr((layout[:2], layout[5:6])) for name, layout in layouts.items()}
        examples = {kind: name for name, kind in kinds.items()}
        held = ranks_alike({name: layouts[name] for name in examples.values()}, first)
        own = {
            kind: frozenset(next(tuple(ranks) for ranks in held[name] if rank in ranks))
            for kind, name in examples.items()
        }
    except Exception as error:  # of a version of MindSpore that keeps layouts elsewhere
        _log.warning("rank %d: the ranks that hold the same are not known by MindSpore's layouts: %r", rank, error)
        return None
    return SameRanks(rank, by_parameter={name: own[kind] for name, kind in kinds.items()})


def listed_ranks(path: str, rank: int, world_size: int) -> SameRanks | None:
    """Return the holders by a rank list, such as MindSpore's compiler writes; None without one that can be used."""
    if not os.path.isfile(path):
        return None
    try:
        return SameRanks(rank, read_group_info(path, owner=rank, world_size=world_size).sorted_ranks)
    except MsRecoverError as error:
        _log.warning("rank %d: the manifests cannot name its group: %s", rank, error)
        return None
