"""What describes a rank's samples and states at a save, in a few numbers that its peers keep.

A rank's seed, shard, position and states may be its own: those of a rank that holds the same slice say nothing of
them. So the numbers of all ranks are gathered, and those of a rank are in the state files of others of its group: when
a rank is lost, they show which order, position and batch were its own, and whether a state that is found is its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ms_recover.formats.state import fingerprint
from ms_recover.model.state import StateValue

if TYPE_CHECKING:
    from ms_recover.training.deciding.job import TrainingJob

MOST_PEERS = 16
"""Ranks that keep the numbers of one."""

_PACKED = struct.Struct("<IIHHIqqq")
"""Flags, seed, shard, shards, batches, the last batch, states, the whole file: 40 bytes, one exchange."""

_READY = 4
"""In the flags of an exchange: the rank has updated its weights."""

_NUMBERS = struct.Struct(f"<{_PACKED.size // 4}i")
_NOT_COUNTED = _MOST_BATCHES = (1 << 32) - 1
_MOST_SHARDS = (1 << 16) - 1

_STATES = ("callbacks", "extra", "attributes", "drawn_by_dataset")
"""Members of a state file that ranks of one group may have of their own, beside the generators."""

_NOT_ITS_OWN = ("peers", "claim")
"""Members that are no part of the rank's own state."""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What describes the samples and the states of one rank at one step; numbers of 64 bits are signed."""

    seed: int = 0
    """Of the dataset."""
    shuffled: bool = False
    accumulate: int = 1
    """Steps of the dataset that make up one update of the weights."""
    shard: int = 0
    shards: int = 1
    """It reads this one of so many shards."""
    drawn: int | None = None
    """Batches that the dataset had given; None where nobody counted."""
    batch: int = 0
    """From the digest of the last trained batch, 0 without one."""
    states: int = 0
    """From the states that ranks of one group may have of their own: generators, callbacks, what the program gave."""
    whole: int = 0
    """From all that its state file holds of the rank."""
    known: bool = True
    """Whether the rank has a dataset of which all of this is known."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The facts as a gather takes them."""
        flags = self.accumulate << 3 | self.known << 1 | self.shuffled
        drawn = _NOT_COUNTED if self.drawn is None or self.drawn >= _MOST_BATCHES else self.drawn
        shard, shards = min(self.shard, _MOST_SHARDS), min(self.shards, _MOST_SHARDS)
        digests = (self.batch, self.states, self.whole)
        return _NUMBERS.unpack(_PACKED.pack(flags, self.seed, shard, shards, drawn, *digests))

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> RankFacts:
        """Return the facts that `numbers` stand for."""
        flags, seed, shard, shards, drawn, batch, states, whole = _PACKED.unpack(_NUMBERS.pack(*numbers))
        return cls(
            seed=seed,
            shuffled=bool(flags & 1),
            known=bool(flags & 2),
            accumulate=flags >> 3,
            shard=shard,
            shards=shards,
            drawn=None if drawn == _NOT_COUNTED else drawn,
            batch=batch,
            states=states,
            whole=whole,
        )

    @property
    def values(self) -> dict[str, StateValue]:
        """The facts as a state file holds them."""
        return asdict(self)

    @classmethod
    def of_values(cls, values: StateValue) -> RankFacts | None:
        """Return the facts that a state file holds; None where they are none."""
        kinds = {name: type(one.default) for name, one in cls.__dataclass_fields__.items() if name != "drawn"}
        if not isinstance(values, Mapping) or any(type(values.get(name)) is not kind for name, kind in kinds.items()):
            return None
        drawn = values.get("drawn")
        if drawn is not None and type(drawn) is not int:
            return None
        return cls(drawn=drawn, **{name: values[name] for name in kinds})

    @property
    def order(self) -> dict[str, Any]:
        """What a state holds of the order of the samples, as far as it is known; empty without a dataset."""
        if not self.known:
            return {}
        return {
            "seed": self.seed,
            "shuffled": self.shuffled,
            "accumulate": self.accumulate,
            "shard": self.shard,
            "shards": self.shards,
        }


def facts_of(values: Mapping[str, StateValue]) -> RankFacts:
    """Return what describes a rank from the values of its state file."""
    order = values.get("order") or {}
    marks = _marks(values)
    generators, ahead = values.get("generators") or {}, values.get("drawn_by_dataset") or {}
    drawn = {name: generators.get(name) for name in values.get("drawn_generators") or () if name not in ahead}
    states = [fingerprint(drawn), *(marks.get(name) for name in _STATES)]
    return RankFacts(
        seed=order.get("seed", 0),
        shuffled=order.get("shuffled", False),
        accumulate=order.get("accumulate") or 1,
        shard=order.get("shard", 0),
        shards=order.get("shards", 1),
        drawn=values.get("drawn"),
        batch=batch_number(values.get("batch") or ()),
        states=_number(states),
        whole=_number(marks),
        known=bool(order),
    )


def whole_number(values: Mapping[str, StateValue]) -> int:
    """Return `RankFacts.whole` of the values of a state file."""
    return _number(_marks(values))


def _marks(values: Mapping[str, StateValue]) -> dict[str, bytes]:
    return {name: fingerprint(value) for name, value in values.items() if name not in _NOT_ITS_OWN}


def batch_number(record: StateValue) -> int:
    """Return what `RankFacts.batch` is for digests of a batch, see `ms_recover.training.batches.to_record`."""
    return _number([list(one) for one in record]) if record else 0


def peers_of(rank: int, group: Sequence[int], facts: Sequence[RankFacts]) -> dict[int, RankFacts]:
    """Return the facts that a rank keeps of others of its group, by rank, from those of all ranks, index = rank.

    Those are the next ones in the group, as in a ring, so that each has as many keepers.
    """
    members = sorted(group)
    if rank not in members:
        return {}
    place = members.index(rank)
    ring = members[place + 1 :] + members[:place]
    return {peer: facts[peer] for peer in ring[:MOST_PEERS] if peer < len(facts)}


def states_differ(group: Sequence[int], facts: Sequence[RankFacts]) -> bool | None:
    """Whether the states of the ranks of a group differ; None of a rank alone, and where nothing was gathered."""
    if len(group) < 2 or not facts:
        return None
    return len({facts[rank].states for rank in group if rank < len(facts)}) > 1


def _number(value: StateValue) -> int:
    return int.from_bytes(fingerprint(value)[:8], "little", signed=True)


def gather_facts(
    job: TrainingJob, own: RankFacts, doing: str, named: str, *, ready: bool = True
) -> tuple[bool, list[RankFacts]]:
    """Return whether all ranks are `ready` to save, and what describes the samples and states of each, index = rank.

    Of a rank that is alone nothing is described. It is one exchange, whatever is asked.
    """
    if job.size == 1 or not job.connected:
        return ready, []
    first, *others = own.numbers
    rows = job.gather([first | ready * _READY, *others], doing, named=named)
    return all(row[0] & _READY for row in rows), [RankFacts.of_numbers(row) for row in rows]
