"""The random generators of a process: Python's, numpy's, MindSpore's default one, and the seeds of its operators.

MindSpore (``common/seed.py`` and ``common/generator.py`` of 2.10) counts how often each kind of operator was given a
seed. The state of operators within a compiled graph, such as ``nn.Dropout``, stays in the operators: nothing reads it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import mindspore as ms
import numpy as np

from ms_recover.training.in_process import of_process
from ms_recover.training.mindspore_inside import compiled_functions, operator_counts, restore_operator_seeds

GENERATORS = {
    "python": "Python's random",
    "numpy": "numpy.random",
    "mindspore": "mindspore's default generator",
    "operators": "the seeds of mindspore's operators",
}
"""The generators, and their names in messages."""


_one_at_a_time = Lock()


@dataclass
class _Begun:
    """The generators when the training began, and those that it had drawn from before; a process has one of each."""

    states: Mapping[str, Any] | None = None
    names: frozenset[str] = frozenset()


_CELL = re.compile(r"[^.]+\.\d+\.\d+", re.ASCII)
_SEEDS = {"Seed0", "seed", "seed0"}
"""Arguments of MindSpore's random operators."""


def generator_states() -> dict[str, Any]:
    """Return the state of each generator, to be compared, saved and restored."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "mindspore": _default_generator(),
        "operators": {"seed": ms.get_seed(), "counts": operator_counts(), "compiled": has_compiled()},
    }


def has_compiled() -> bool:
    """Whether ``@jit`` has compiled a function or a cell of the program's in this process.

    MindSpore counts what it compiles by module and name: its own optimizers too, and in graph mode whole cells by
    class, number and id.
    """
    names = compiled_functions()
    return any(not name.startswith("mindspore.") and _CELL.fullmatch(name) is None for name in names)


def _default_generator() -> Any:
    """Return the state of MindSpore's default generator; its operator stands still where threads call it together."""
    with _one_at_a_time:
        return ms.get_rng_state().asnumpy()


def restore_generators(states: Mapping[str, Any], names: Collection[str] = tuple(GENERATORS)) -> None:
    """Put the generators of these names back into states that `generator_states` returned."""
    found = {name: states[name] for name in names if name in states}
    if "python" in found:
        random.setstate(found["python"])
    if "numpy" in found:
        np.random.set_state(found["numpy"])
    if "mindspore" in found:
        with _one_at_a_time:
            ms.set_rng_state(ms.Tensor(found["mindspore"]))
    if "operators" in found:
        restore_operator_seeds(found["operators"]["seed"], found["operators"]["counts"])


def random_operators(network: Any, states: Mapping[str, Any]) -> list[str]:
    """Return the random operators of a network whose state no generator has, as far as they can be found.

    These are the cells that hold some, and in graph mode all kinds that have been given a seed by the `states` of the
    generators: called as functions they are part of the graph. So they are in PyNative mode under ``@jit``.
    """
    found = {type(cell).__name__ for _, cell in network.cells_and_names() if _is_random(cell)}
    operators = states.get("operators", {"counts": ()})
    if ms.get_context("mode") == ms.GRAPH_MODE or operators.get("compiled"):
        found |= {str(kernel) for kernel, _ in operators["counts"]} - {"init"}
    return sorted(found)


def _is_random(cell: Any) -> bool:
    if type(cell).__name__.startswith("Dropout"):
        return bool(getattr(cell, "p", None) != 0 and getattr(cell, "keep_prob", None) != 1)
    own = cell.__dict__.get("_primitives") or {}
    return any(_SEEDS.intersection(operator.init_attrs) for operator in own.values())


def begin_drawing(names: Collection[str] = ()) -> None:
    """Note the generators as they are when a training begins; it had drawn from some `names` before."""
    begun = of_process(_Begun)
    begun.states, begun.names = generator_states(), frozenset(names)


def note_drawing() -> None:
    """Note the generators as they are, unless that was done in this process."""
    if of_process(_Begun).states is None:
        begin_drawing()


def drawn_generators(states: Mapping[str, Any]) -> list[str]:
    """Return the generators that the training has drawn from since it began, by their states now; sorted."""
    begun = of_process(_Begun)
    return sorted(begun.names | changed_generators(begun.states or {}, states))


def changed_generators(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the generators that were drawn from between two states."""
    return frozenset(name for name in GENERATORS if not _equal(before.get(name), after.get(name)))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return bool(one == other)
