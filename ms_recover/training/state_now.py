"""The state of this process now, and what of it a resume cannot bring back."""

from __future__ import annotations

import logging
import time
from typing import Any

from ms_recover.model.texts import list_some
from ms_recover.training.cells import rounding_optimizers
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.generators import drawn_generators, generator_states, random_operators
from ms_recover.training.proof import resume_line
from ms_recover.training.run_state import RunState

_log = logging.getLogger(__name__)


def current_state(**parts: Any) -> RunState:
    """Return the state of the training now, with the given parts beside the generators."""
    states = generator_states()
    drawn = tuple(drawn_generators(states))
    return RunState(generators=states, drawn_generators=drawn, saved_at=time.time(), **parts)


def name_operators(own: OwnSlice, network: Any, state: RunState | None) -> None:
    """Name the random operators of a network that do not go on where they were, and those that round otherwise."""
    operators = random_operators(network, state.generators if state is not None else generator_states())
    if operators:
        _log.warning(
            "%s: random operators in the network start anew, because MindSpore does not expose their state: %s",
            own,
            list_some(operators, 8),
        )
        resume_line().doubt(f"random operators start anew: {list_some(operators, 8)}", "random numbers")
    rounding = rounding_optimizers(network)
    if rounding:
        _log.warning(
            "%s: %s: on CPU MindSpore's kernel rounds by how often it ran in the process, so the last bits are not "
            "those of the interrupted training",
            own,
            list_some(rounding),
        )
        resume_line().doubt(f"{list_some(rounding)} rounds by how often its kernel ran", "optimizer")
