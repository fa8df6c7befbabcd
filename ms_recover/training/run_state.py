"""The state of a training beside its parameters: what is saved of it, and what a resumed training takes from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.execution.state_files import CLAIM, read_state, read_state_in
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import Manifest
from ms_recover.model.state import SliceClaim
from ms_recover.stores.store import Store
from ms_recover.training.batches import difference, digest_batch, from_record, to_record
from ms_recover.training.rank_facts import RankFacts, batch_number, facts_of
from ms_recover.training.state_values import from_state, to_state


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
    """Which parameters are trained, see `ms_recover.training.network_state`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of optimizers, loss scales and losses, see `ms_recover.training.hyperparameters`; and of callbacks."""
    batch: tuple[Any, ...] = ()
    """Digests of the last batch that was trained, see `ms_recover.training.batches.to_record`."""
    drawn: int | None = None
    """Batches that the dataset had given from its beginning on; None where nobody counted."""
    drawn_generators: tuple[str, ...] = ()
    """The generators that the training has drawn from since it began."""
    peers: Mapping[str, Any] = field(default_factory=dict)
    """What describes other ranks of the group, by rank: see `ms_recover.training.rank_facts`."""
    lent: bool = False
    """Whether it is the state of another rank, which may not be as this rank's own was; in no file."""
    batch_number: int = 0
    """Of a state that is lent: what is known of the batch that this rank trained last; in no file."""
    facts: RankFacts | None = field(default=None, compare=False)
    """What describes the rank that saved it, of a state that was read."""
    saved_at: float | None = None
    """When the slice was saved, in seconds since 1970."""

    @property
    def knows_batch(self) -> bool:
        """Whether the batch that this rank trained last can be recognised."""
        return bool(self.batch) or self.batch_number != 0

    def difference(self, batch: Any, names: Sequence[str] = ()) -> str | None:
        """Return how a batch differs from the one that this rank trained last, as a clause; None where it does not.

        `names` are those of its columns.
        """
        found = digest_batch(batch)
        if self.batch:
            return difference(from_record(self.batch), found, names)
        same = batch_number(to_record(found)) == self.batch_number
        return (
            None if same else "it is another one (this rank's own state is lost, and peers keep a digest of it alone)"
        )


@dataclass(frozen=True)
class PendingState:
    """A state that can be saved, and what describes the rank in it."""

    values: Mapping[str, Any]
    facts: RankFacts

    def encoded(self, claim: SliceClaim | None = None, peers: Mapping[int, RankFacts] = MappingProxyType({})) -> bytes:
        """Return the contents of the state file of a slice; a `claim` states whose it is.

        `peers` are what describes other ranks. Raises UsageError when values exceed a limit of the format.
        """
        values = {**self.values, "peers": {str(rank): facts.values for rank, facts in peers.items()}}
        if claim is not None:
            values[CLAIM] = claim.values
        try:
            return encode_state(values)
        except ValueError as error:
            raise UsageError(f"the state of the training cannot be saved: {error}") from None


def pending_state(state: RunState) -> PendingState:
    """Return a state as its file is going to hold it.

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
        "drawn_generators": list(state.drawn_generators),
    }
    return PendingState(values, facts_of(values))


def run_state_in(store: Store, path: str, digest: str) -> RunState:
    """Return the state that was saved with a slice of a store; errors as for `read_state_in`."""
    return decoded(read_state_in(store, path, digest))


def state_beside(path: str, manifest: Manifest) -> RunState | None:
    """Return the state beside a slice; None where its manifest names none. Errors are those of `read_state`."""
    training = manifest.training
    if training is None or training.state_digest is None:
        return None
    return decoded(read_state(path, training.state_digest))


def state_if_sound(path: str, manifest: Manifest) -> RunState | None:
    """Return the state beside a slice; None where there is none that its manifest names, or it cannot be read."""
    with suppress(MsRecoverError):
        return state_beside(path, manifest)
    return None


def decoded(values: Mapping[str, Any]) -> RunState:
    """Return the state that a file holds; parts that a later version may lack are empty."""
    found = {name: from_state(values.get(name)) for name in RunState.__dataclass_fields__ if name != "facts"}
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
        drawn_generators=tuple(found["drawn_generators"] or ()),
        peers=found["peers"] or {},
        facts=facts_of(values),
    )


def named(names: Collection[str], titles: Mapping[str, str]) -> str:
    """Return the titles of some names, for a message."""
    return ", ".join(titles[name] for name in titles if name in names)
