"""The order of a dataset's samples, and whether a resumed training goes on in it.

``mindspore.dataset.config`` has one seed, 5489 as long as nobody set it: then operations that shuffle take a random one
instead, but for sharded sources, whose order always comes from the configured seed (``dataset/engine/samplers.py`` of
2.10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mindspore.dataset as ds
from mindspore.dataset.engine.samplers import DistributedSampler

from ms_recover.errors import InputError

UNSEEDED = 5489
"""``std::mt19937::default_seed``."""

_RANDOM = ("Random", "RandAugment", "AutoAugment", "TrivialAugment", "UniformAugment", "MixUp", "CutMix", "CutOut")


def sample_order(dataset: Any) -> dict[str, Any]:
    """Return what decides the order of the samples: the configured seed, and whether it matters."""
    return {"seed": ds.config.get_seed(), "shuffled": _is_shuffled(dataset)}


def check_order(saved: Mapping[str, Any], dataset: Any) -> None:
    """Raise InputError when a shuffled dataset has another seed than the training that is resumed."""
    now = sample_order(dataset)
    if now["shuffled"] and saved and saved["seed"] != now["seed"]:
        raise InputError(
            f"the dataset shuffles with the seed {_seed(now['seed'])}, but when the slice was saved it was "
            f"{_seed(saved['seed'])}, so other samples would follow: call "
            f"mindspore.dataset.config.set_seed({saved['seed']}) before the dataset is made, or go on with "
            "allow_dataset_change=True"
        )


def doubts(dataset: Any, done: int, epoch_steps: int) -> list[str]:
    """Return why a resumed training may see other samples than the interrupted one, `done` steps behind its start."""
    found = []
    if done % epoch_steps and is_unseeded(dataset):
        found.append(
            f"the dataset is shuffled without a seed, so what follows in epoch {done // epoch_steps + 1} is not what "
            "was left of it: some samples come twice, others not at all. Call mindspore.dataset.config.set_seed() "
            "before the dataset is made, when a training starts and when it resumes"
        )
    if ds.config.get_fast_recovery() or ds.config.get_seed() == UNSEEDED:
        exact = "they are exact with mindspore.dataset.config.set_seed() and set_fast_recovery(False)"
        operations = sorted(set(_random_operations(dataset)))
        if operations:
            found.append(
                f"the random operations on samples ({', '.join(operations)}) go on otherwise than in the interrupted "
                f"training; {exact}"
            )
        if _has_processes(dataset):
            found.append(
                "samples are made by processes of their own (python_multiprocessing=True), whose random numbers, if "
                f"they draw any, go on otherwise than in the interrupted training; {exact}"
            )
    return found


def is_unseeded(dataset: Any) -> bool:
    """Whether the dataset is shuffled in an order that no later start can repeat."""
    return bool(ds.config.get_seed() == UNSEEDED) and _shuffles_anew(dataset)


def _nodes(dataset: Any) -> Iterator[Any]:
    waiting = [dataset]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += list(getattr(node, "children", None) or ())


def _is_shuffled(dataset: Any) -> bool:
    try:
        return bool(dataset.is_shuffled())
    except AttributeError:  # no dataset of MindSpore's, or one without a sampler
        return False


def _has_processes(dataset: Any) -> bool:
    return any(
        getattr(node, "python_multiprocessing", False)
        and (getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()) > 1
        for node in _nodes(dataset)
    )


def _shuffles_anew(dataset: Any) -> bool:
    """Whether something shuffles in an order that no seed fixes, as long as none is configured."""
    return any(
        _is_shuffled(node) and not isinstance(getattr(node, "sampler", None), DistributedSampler)
        for node in _nodes(dataset)
        if not getattr(node, "children", None) or type(node).__name__ == "ShuffleDataset"
    )


def _random_operations(dataset: Any) -> Iterator[str]:
    for node in _nodes(dataset):
        for operation in getattr(node, "operations", None) or ():
            name = type(operation).__name__
            if name.startswith(_RANDOM):
                yield name


def _seed(seed: int) -> str:
    return "that nobody set" if seed == UNSEEDED else str(seed)
