"""The order of a dataset's samples, and whether a resumed training goes on in it.

``mindspore.dataset.config`` has one seed, 5489 as long as nobody set it: then operations that shuffle take a random one
instead, but for sharded sources, whose order always comes from the configured seed (``dataset/engine/samplers.py`` of
2.10).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore.dataset.engine.samplers import DistributedSampler

from ms_recover.errors import InputError
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.training.in_process import of_process
from ms_recover.training.run import Runs
from ms_recover.training.run_state import RunState

_OF_SHARDS = re.compile(r"(?:num_shards|batch_size|num_samples)=\d+(?:, )?")

UNSEEDED = 5489
"""``std::mt19937::default_seed``."""

_NUMBERS = ("source_len", "num_samples", "num_shards", "buffer_size", "batch_size", "drop_remainder", "count")
"""Attributes of datasets that decide which samples there are."""

_CODE = ("source", "operations", "per_batch_map", "batch_size_func", "predicate", "collate_fn", "callbacks")
"""Attributes of MindSpore's datasets that hold code, or objects with code, of the program."""

_WRAPPERS = ("_GeneratorWrapper", "_PickleGeneratorSource", "FuncWrapper", "IterSampler")
"""Classes of MindSpore that hold objects of the program."""

_WRAPPED = ("transform", "sampler", "generator")
"""Attributes of theirs that have these objects."""

_DATA = (list, tuple, dict, np.ndarray)
"""Sources that are no code."""

_EXACT = "they are exact with mindspore.dataset.config.set_seed() and set_fast_recovery(False)"

_RANDOM = ("Random", "RandAugment", "AutoAugment", "TrivialAugment", "UniformAugment", "MixUp", "CutMix", "CutOut")


def sample_order(dataset: Any) -> dict[str, Any]:
    """Return what decides the samples and their order: the configured seed, whether it matters, and the operations."""
    shard, shards = shard_of(dataset)
    return {
        "seed": ds.config.get_seed(),
        "shuffled": _is_shuffled(dataset),
        "made": made_by(dataset),
        "shard": shard,
        "shards": shards,
        "accumulate": of_process(Runs).accumulate,
    }


def shards_of(dataset: Any) -> int:
    """Return into how many shards the samples of a dataset are dealt; 1 where every rank reads the same."""
    return shard_of(dataset)[1]


def shard_of(dataset: Any) -> tuple[int, int]:
    """Return which shard of how many this rank reads; where sources are dealt otherwise, of that with most shards."""
    found = [(1, 0)]
    for node in nodes(dataset) if dataset is not None else ():
        for one in (node, *_samplers(node)):
            shards = getattr(one, "num_shards", None) or 1
            found.append((int(shards), int(getattr(one, "shard_id", None) or 0)))
    shards, shard = max(found, key=lambda pair: pair[0])
    return shard, shards


def check_order(
    saved: Mapping[str, Any],
    dataset: Any,
    otherwise: str = "with allow_dataset_change=True",
    *,
    shared_out: bool = False,
) -> None:
    """Raise InputError when the training that is resumed had its samples in another order; `otherwise` it may go on.

    Where the dataset is `shared_out` anew, updates of the weights were compared already.
    """
    now = sample_order(dataset)
    if saved and saved["shuffled"] != now["shuffled"]:
        raise InputError(
            f"the dataset is {'' if now['shuffled'] else 'not '}shuffled, and was "
            f"{'' if saved['shuffled'] else 'not '}when the slice was saved, so other samples would follow: give the "
            f"dataset of that training, or go on {otherwise}"
        )
    before = saved.get("accumulate") or 1
    if saved and before != now["accumulate"] and not shared_out:
        raise InputError(
            f"accumulate={now['accumulate']}, and it was {before} when the slice was saved: give that, or "
            f"go on {otherwise}"
        )
    if now["shuffled"] and saved and saved["seed"] != now["seed"]:
        raise InputError(
            f"the dataset shuffles with the seed {_seed(now['seed'])}, but when the slice was saved it was "
            f"{_seed(saved['seed'])}, so other samples would follow: call "
            f"mindspore.dataset.config.set_seed({saved['seed']}) before the dataset is made, or go on "
            f"{otherwise}"
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
    if ds.config.get_seed() == UNSEEDED and _is_drawn_once(dataset):
        found.append(
            "the samples of the dataset were drawn at random without a seed, as Dataset.split() does, so each start "
            "trains with others. Call mindspore.dataset.config.set_seed() before the dataset is made"
        )
    if ds.config.get_fast_recovery() or ds.config.get_seed() == UNSEEDED:
        operations = random_operations(dataset)
        if operations:
            found.append(_text_of_random(operations))
        if _has_processes(dataset):
            found.append(
                "samples are made by processes of their own (python_multiprocessing=True), whose random numbers, if "
                f"they draw any, go on otherwise than in the interrupted training; {_EXACT}"
            )
    return found


def remaining_doubts(dataset: Any) -> list[str]:
    """Return what a comparison of the last trained batch may miss: few samples may be alike by chance."""
    operations = random_operations(dataset)
    if not operations or not ds.config.get_fast_recovery() or not code_names(dataset):
        return []
    return [_text_of_random(operations)]


def _text_of_random(operations: list[str]) -> str:
    return (
        f"the random operations on samples ({', '.join(operations)}) go on otherwise than in the interrupted training; "
        f"{_EXACT}"
    )


def loop_doubts(step: Step, dataset: Any, state: RunState | None, *, shared_out: bool = False) -> list[str]:
    """Return why a loop that was resumed behind a step may see other samples than the interrupted one."""
    epoch_steps = dataset.get_dataset_size()
    found = doubts(dataset, (step.epoch - 1) * epoch_steps + step.step, epoch_steps)
    if state is None:
        return found
    return [*doubts_of_change(state.order, dataset, shared_out=shared_out), *found]


def doubts_of_change(saved: Mapping[str, Any], dataset: Any, *, shared_out: bool = False) -> list[str]:
    """Return how a dataset is made otherwise than that of the training that is resumed.

    Where it is `shared_out` anew, not by numbers of shards and batches: these were compared.
    """
    before, now = list(saved.get("made") or ()), made_by(dataset)
    if shared_out:
        before, now = ([_OF_SHARDS.sub("", text) for text in made] for made in (before, now))
    if not before or before == now:
        return []
    text = "the dataset is made otherwise than when the slice was saved, so other samples may follow"
    return [f"{text}: it is {' <- '.join(now)}, and was {' <- '.join(before)}"]


def made_by(dataset: Any) -> list[str]:
    """Return the operations of a dataset, the last first, each with the numbers that decide which samples there are."""
    return [_operation(node) for node in nodes(dataset)] if dataset is not None else []


def _operation(node: Any) -> str:
    numbers = {name: getattr(node, name, None) for name in _NUMBERS}
    sampler = getattr(node, "sampler", None)
    parts = [f"{name}={value}" for name, value in numbers.items() if isinstance(value, int) and value is not False]
    parts += [type(sampler).__name__] if sampler is not None else []
    operations = getattr(node, "operations", None)
    parts += [type(one).__name__ for one in operations] if isinstance(operations, list) else []
    return f"{type(node).__name__}({', '.join(parts)})"


def nodes(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it is made from."""
    waiting = [dataset]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += list(getattr(node, "children", None) or ())


def code_names(dataset: Any) -> list[str]:
    """Return the names of the program's own code that makes the samples; none where MindSpore alone makes them."""
    found = (_name(one) for node in nodes(dataset) for one in _code_of(node)) if dataset is not None else ()
    return list(dict.fromkeys(found))


def called_by_threads(dataset: Any) -> bool:
    """Whether several threads of this process call the code of a dataset, in an order that nobody fixes."""
    return any(
        any(True for _ in _code_of(node))
        and not getattr(node, "python_multiprocessing", False)
        and (getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()) > 1
        for node in nodes(dataset)
    )


def _code_of(node: Any) -> Iterator[Any]:
    """Yield the program's code in one dataset; none of MindSpore's own operations, and no plain data."""
    source = getattr(node, "source", None)
    waiting = [one for name in _CODE if (one := getattr(node, name, None)) is not source]
    waiting += [] if type(source) in _DATA else [source]
    waiting += list(_samplers(node))
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif one is not None and not _is_theirs(one):
            yield one
        else:  # such as Compose
            waiting += list(getattr(one, "transforms", None) or ())


def _is_theirs(one: Any) -> bool:
    kind = type(one)
    return kind.__module__.startswith("mindspore.") and kind.__name__ not in _WRAPPERS


def _name(one: Any) -> str:
    if type(one).__name__ in _WRAPPERS:
        one = next((found for name in _WRAPPED if (found := getattr(one, name, None)) is not None), one)
    return str(getattr(one, "__qualname__", type(one).__qualname__))


def unrepeatable(dataset: Any) -> str | None:
    """Return why no later start can have the samples of this one, as a clause; None where one can."""
    if ds.config.get_seed() != UNSEEDED:
        return None
    if _shuffles_anew(dataset):
        return "the dataset is shuffled without a seed"
    if _is_drawn_once(dataset):
        return "the samples of the dataset were drawn at random without a seed"
    return "random operations on samples have no seed" if random_operations(dataset) else None


def causes(dataset: Any, saved: Mapping[str, Any]) -> list[str]:
    """Return what may be the cause where a dataset gives another batch than that of the training that is resumed."""
    found = doubts_of_change(saved, dataset)
    seed = ds.config.get_seed()
    if saved and saved["seed"] != seed:
        found.append(f"its seed is {_seed(seed)}, and was {_seed(saved['seed'])}")
    if seed == UNSEEDED:
        found.append("mindspore.dataset.config.set_seed() was not called")
    names = code_names(dataset)
    if names:
        found.append(
            f"its own code ({list_some(names, 8)}) keeps something between samples, such as a generator of random "
            "numbers, a count or an open stream"
        )
        if called_by_threads(dataset):
            found.append("several threads call that code: give it num_parallel_workers=1")
    found.append("the contents of its source have changed")
    return found


def is_unseeded(dataset: Any) -> bool:
    """Whether the dataset is shuffled in an order that no later start can repeat."""
    return bool(ds.config.get_seed() == UNSEEDED) and _shuffles_anew(dataset)


def _is_drawn_once(dataset: Any) -> bool:
    """Whether the dataset shuffles once for all epochs, so that the order decides which samples there are."""
    return any(
        getattr(one, "reshuffle_each_epoch", True) is False
        for node in nodes(dataset)
        for one in (node, *_samplers(node))
    )


def _samplers(node: Any) -> Iterator[Any]:
    sampler = getattr(node, "sampler", None)
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "child_sampler", None)


def _is_shuffled(dataset: Any) -> bool:
    try:
        return bool(dataset.is_shuffled())
    except AttributeError:  # no dataset of MindSpore's, or one without a sampler
        return False


def _has_processes(dataset: Any) -> bool:
    return any(
        getattr(node, "python_multiprocessing", False)
        and (getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()) > 1
        for node in nodes(dataset)
    )


def _shuffles_anew(dataset: Any) -> bool:
    """Whether something shuffles in an order that no seed fixes, as long as none is configured."""
    return any(
        _is_shuffled(node) and not isinstance(getattr(node, "sampler", None), DistributedSampler)
        for node in nodes(dataset)
        if not getattr(node, "children", None) or type(node).__name__ == "ShuffleDataset"
    )


def random_operations(dataset: Any) -> list[str]:
    """Return the names of MindSpore's random operations on samples."""
    operations = (one for node in nodes(dataset) for one in getattr(node, "operations", None) or ())
    return sorted({name for one in operations if (name := type(one).__name__).startswith(_RANDOM)})


def _seed(seed: int) -> str:
    return "that nobody set" if seed == UNSEEDED else str(seed)
