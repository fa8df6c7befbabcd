"""The state of a training beside its parameters: what is saved of it, and what a resumed training takes from it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.execution.state_files import CLAIM, read_state, read_state_in
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import Manifest
from ms_recover.model.state import SliceClaim
from ms_recover.model.texts import list_some
from ms_recover.stores.store import Store
from ms_recover.training.generators import generator_states, random_operators
from ms_recover.training.network import OwnSlice
from ms_recover.training.proof import OF_STATE, resume_line
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
    buffers: Mapping[str, Any] = field(default_factory=dict)
    """The persistent buffers of the network, see `ms_recover.training.buffers`."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What cells keep that is in no slice, see `ms_recover.training.attributes.changed_values`."""
    trainable: Mapping[str, Any] = field(default_factory=dict)
    """Which parameters are trained, see `ms_recover.training.trainable`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of optimizers, loss scales and losses, see `ms_recover.training.hyperparameters`."""
    batch: tuple[Any, ...] = ()
    """Digests of the last batch that was trained, see `ms_recover.training.batches.to_record`."""
    drawn: int | None = None
    """Batches that the dataset had given from its beginning on; None where nobody counted."""
    lent: bool = False
    """Whether it is the state of another rank; in no file."""
    saved_at: float | None = None
    """When the slice was saved, in seconds since 1970."""


def encode_run_state(state: RunState, claim: SliceClaim | None = None) -> bytes:
    """Return the contents of the state file of a slice; a `claim` states whose it is.

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
        "buffers": to_state(dict(state.buffers), "buffers"),
        "attributes": to_state(dict(state.attributes), "attributes"),
        "trainable": to_state(dict(state.trainable), "trainable"),
        "batch": to_state(list(state.batch), "batch"),
        "drawn": state.drawn,
        "settings": to_state(dict(state.settings), "settings"),
        "saved_at": state.saved_at,
    }
    if claim is not None:
        values[CLAIM] = claim.values
    try:
        return encode_state(values)
    except ValueError as error:
        raise UsageError(f"the state of the training cannot be saved: {error}") from None


def current_state(**parts: Any) -> RunState:
    """Return the state of the training now, with the given parts beside the generators."""
    return RunState(generators=generator_states(), saved_at=time.time(), **parts)


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
            return replace(state, lent=any(source.rank != own.rank for source in manifest.provenance.sources))
        for source in manifest.provenance.sources:
            path = os.path.join(root, source.path)
            if source.host is None and (state := _state_of_source(path, manifest)) is not None:
                _log.warning(
                    "%s: its state file is lost, so random generators and callbacks go on as those of rank %s: %s",
                    own,
                    source.rank,
                    path,
                )
                resume_line().doubt(f"those of rank {source.rank}", *OF_STATE)
                return replace(state, lent=source.rank != own.rank)
    except MsRecoverError as error:
        problem = str(error)
    _log.warning("%s: the state of random generators and callbacks is not restored, they start anew (%s)", own, problem)
    resume_line().doubt("no state was saved", *OF_STATE)
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


def state_if_sound(path: str, manifest: Manifest) -> RunState | None:
    """Return the state beside a slice; None where there is none that its manifest names, or it cannot be read."""
    with suppress(MsRecoverError):
        return _state_beside(path, manifest)
    return None


def warn_of_operators(own: OwnSlice, network: Any, state: RunState | None) -> None:
    """Name the random operators of a network that do not go on where they were."""
    operators = random_operators(network, state.generators if state is not None else generator_states())
    if operators:
        _log.warning(
            "%s: random operators in the network start anew, because MindSpore does not expose their state: %s",
            own,
            list_some(operators, 8),
        )
        resume_line().doubt(f"random operators start anew: {list_some(operators, 8)}", "random numbers")


def _decoded(values: Mapping[str, Any]) -> RunState:
    """Return the state that a file holds; parts that a later version may lack are empty."""
    found = {name: from_state(values.get(name)) for name in RunState.__dataclass_fields__}
    return RunState(
        generators=found["generators"] or {},
        extra=found["extra"],
        callbacks=tuple(found["callbacks"] or ()),
        order=found["order"] or {},
        drawn_by_dataset=found["drawn_by_dataset"] or {},
        buffers=found["buffers"] or {},
        attributes=found["attributes"] or {},
        trainable=found["trainable"] or {},
        batch=tuple(found["batch"] or ()),
        drawn=found["drawn"],
        settings=found["settings"] or {},
        saved_at=found["saved_at"],
    )


def named(names: Collection[str], titles: Mapping[str, str]) -> str:
    """Return the titles of some names, for a message."""
    return ", ".join(titles[name] for name in titles if name in names)
