"""The state of a training beside its parameters: what is saved of it, and what a resumed training takes from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.execution.state_files import read_state, read_state_in
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import Manifest
from ms_recover.model.texts import list_some
from ms_recover.stores.store import Store
from ms_recover.training.generators import generator_states, random_operators
from ms_recover.training.network import OwnSlice
from ms_recover.training.state_values import from_state, to_state

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunState:
    """The state that was saved with a slice; without `generators` nothing was."""

    generators: Mapping[str, Any] = field(default_factory=dict)
    """States of the generators when the slice was saved, see `generator_states`."""
    extra: Mapping[str, Any] | None = None
    """What the program gave to be saved."""
    callbacks: tuple[Mapping[str, Any], ...] = ()
    """Classes and states of callbacks, see `callback_states`."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """What decided the order of the samples, see `sample_order`."""
    drawn_by_dataset: Mapping[str, Any] = field(default_factory=dict)
    """The generators that the dataset draws from, and their states before its first sample."""
    remembered: Mapping[str, str] = field(default_factory=dict)
    """What the dataset's own code had changed by then, see `SampleMemory.changed`."""


def encode_run_state(state: RunState) -> bytes:
    """Return the contents of the state file of a slice.

    Raises UsageError, which names the value, when a callback or the program gave one that cannot be saved.
    """
    values = {
        "generators": to_state(dict(state.generators), "generators"),
        "extra": None if state.extra is None else to_state(dict(state.extra), "extra"),
        "callbacks": [
            {"class": one["class"], "state": to_state(one["state"], f"the state of the callback {one['class']}")}
            for one in state.callbacks
        ],
        "order": to_state(dict(state.order), "order"),
        "drawn_by_dataset": to_state(dict(state.drawn_by_dataset), "drawn_by_dataset"),
        "remembered": to_state(dict(state.remembered), "remembered"),
    }
    try:
        return encode_state(values)
    except ValueError as error:
        raise UsageError(f"the state of the training cannot be saved: {error}") from None


def current_state(**parts: Any) -> RunState:
    """Return the state of the training now, with the given parts beside the generators."""
    return RunState(generators=generator_states(), **parts)


def find_run_state(own: OwnSlice, root: str) -> RunState | None:
    """Return the state that was saved with a slice; None, and a warning with the reason, when there is none to use.

    A rank whose slice was recovered has the state of the rank that it was recovered from, of the first of several: it
    is exact where ranks have equal generators and callbacks, which the warning says.
    """
    problem = "it was not saved with this slice"
    try:
        manifest = read_manifest(own.path + MANIFEST_SUFFIX)
        state = _state_beside(own.path, manifest)
        if state is not None:
            return state
        for source in manifest.provenance.sources:
            path = os.path.join(root, source.path)
            if source.host is None and (state := _state_of_source(path, manifest)) is not None:
                _log.warning(
                    "%s: its state file is lost, so random generators and callbacks go on as those of rank %s: %s",
                    own,
                    source.rank,
                    path,
                )
                return state
    except MsRecoverError as error:
        problem = str(error)
    _log.warning("%s: the state of random generators and callbacks is not restored, they start anew (%s)", own, problem)
    return None


def run_state_in(store: Store, path: str, digest: str) -> RunState:
    """Return the state that was saved with a slice of a store; errors as for `read_state_in`."""
    return _decoded(read_state_in(store, path, digest))


def _state_of_source(path: str, manifest: Manifest) -> RunState | None:
    with suppress(MsRecoverError):  # the slice was sound when it was copied, and may be gone now
        source = read_manifest(path + MANIFEST_SUFFIX)
        if (source.run_id, source.step) == (manifest.run_id, manifest.step):
            return _state_beside(path, source)
    return None


def _state_beside(path: str, manifest: Manifest) -> RunState | None:
    training = manifest.training
    if training is None or training.state_digest is None:
        return None
    return _decoded(read_state(path, training.state_digest))


def warn_of_operators(own: OwnSlice, network: Any, state: RunState | None) -> None:
    """Name the random operators of a network that do not go on where they were."""
    operators = random_operators(network, state.generators if state is not None else generator_states())
    if operators:
        _log.warning(
            "%s: random operators in the network start anew, because MindSpore does not expose their state: %s",
            own,
            list_some(operators, 8),
        )


def _decoded(values: Mapping[str, Any]) -> RunState:
    """Return the state that a file holds; parts that a later version may lack are empty."""
    found = {name: from_state(values.get(name)) for name in RunState.__dataclass_fields__}
    return RunState(
        generators=found["generators"] or {},
        extra=found["extra"],
        callbacks=tuple(found["callbacks"] or ()),
        order=found["order"] or {},
        drawn_by_dataset=found["drawn_by_dataset"] or {},
        remembered=found["remembered"] or {},
    )


def named(names: Collection[str], titles: Mapping[str, str]) -> str:
    """Return the titles of some names, for a message."""
    return ", ".join(titles[name] for name in titles if name in names)
