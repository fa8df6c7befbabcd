"""The numbers that a program gives to the cells of its network, and the classes of these: saved, and compared.

The slope of an activation, the probability of a dropout, the threshold of a clip: a resumed training with another one
is another training. What a cell changes by itself is no setting, and is saved with what cells keep.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from mindspore import nn

from ms_recover.model.texts import list_some
from ms_recover.training.cell_values import OF_CELLS
from ms_recover.training.cells import OPTIMIZERS
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.hyperparameters import OF_NETWORK, text_of_setting
from ms_recover.training.proof import resume_line

_log = logging.getLogger(__name__)

_NUMBERS = (bool, int, float, np.generic)
_THEIRS = ("mindspore.nn.wrap", "mindspore.nn.optim", "mindspore.train", "mindspore.parallel", "ms_recover.")
"""Modules whose cells follow from settings that are compared by themselves, or from how many ranks there are."""
_OF_RANKS = frozenset(
    (
        *("rank", "rank_id", "rank_size", "world_size", "device_num", "degree", "mean", "num_shards", "shard_id"),
        *("reducer_flag", "sens", "sense_flag", "return_grad", "use_graceful_exit"),
    )
)
"""What is a rank's own, or the train cell's."""
_COUNT = "cells"
_MOST_NAMED = 8

Places = Collection[tuple[str, str]]


def settings_of_cells(network: Any, changed: Places = ()) -> dict[str, str]:
    """Return the numbers of a network's cells by class and attribute, and how many cells of each class there are.

    Attributes of which one cell has `changed` its own, by path and name, are left out.
    """
    found: dict[str, list[str]] = defaultdict(list)
    counts: Counter[str] = Counter()
    own: set[str] = set()
    for path, cell in _cells(network):
        kind = type(cell).__qualname__.rpartition(".")[2]
        counts[kind] += not isinstance(cell, nn.LossBase) and not kind.startswith("_")
        for name, value in vars(cell).items():
            if name in OF_CELLS or name in _OF_RANKS or name.startswith("__") or not _is_number(value):
                continue
            found[f"{kind}.{name}"].append(text_of_setting(value))
            if (path, name) in changed:
                own.add(f"{kind}.{name}")
    values = {name: texts[0] if len(set(texts)) == 1 else text_of_setting(texts) for name, texts in found.items()}
    texts = {name: text for name, text in values.items() if name not in own}
    texts |= {f"{kind} {_COUNT}": str(count) for kind, count in counts.items() if count}
    return {f"{OF_NETWORK}{name}": text for name, text in sorted(texts.items())}


def compare_cells(own: OwnSlice, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Warn, once, of the numbers of cells that differ from those of the interrupted training, and of other classes."""
    before = {name: text for name, text in saved.items() if name.startswith(OF_NETWORK)}
    differ = [name for name in sorted(before.keys() & now) if before[name] != now[name]]
    differ += [name for name in sorted(before.keys() ^ now) if before and name.endswith(_COUNT)]
    if not differ:
        return
    texts = [
        f"{name.removeprefix(OF_NETWORK)}: {now.get(name, 'none')}, and was {before.get(name, 'none')}"
        for name in differ
    ]
    _log.warning(
        "%s: the network is made otherwise than when the slice was saved, and training goes on with the program's: %s",
        own,
        list_some(texts, _MOST_NAMED),
    )
    resume_line().doubt(f"the network is made otherwise: {list_some(texts, _MOST_NAMED)}", "settings")


def _cells(network: Any) -> Iterator[tuple[str, Any]]:
    skipped: list[str] = []
    for path, cell in network.cells_and_names():
        if isinstance(cell, OPTIMIZERS):
            skipped.append(f"{path}.")
        elif not path.startswith(tuple(skipped)) and not type(cell).__module__.startswith(_THEIRS):
            yield path, cell


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_number, value))
    return isinstance(value, _NUMBERS)
