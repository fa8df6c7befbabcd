"""The state that a rank resumes with: its own wherever that is, else that of a rank which holds the same slice.

What describes one rank's samples (seed, shard, position, last batch, what its dataset draws) is never another's. The
states of peers at the same step hold it, see `ms_recover.training.rank_facts`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ms_recover.errors import MsRecoverError
from ms_recover.execution.state_files import read_state_unproven
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.resume_text import OF_STATE
from ms_recover.training.proof import resume_line
from ms_recover.training.rank_facts import RankFacts, whole_number
from ms_recover.training.run_state import RunState, decoded, state_beside, state_if_sound

_log = logging.getLogger(__name__)

Peers = Callable[[], Iterable[tuple[Manifest, Callable[[], RunState | None]]]]
"""Gives the manifests of the slices of a step, each with a function that reads its state."""


@dataclass(frozen=True)
class _Lender:
    rank: int
    path: str
    state: RunState


def find_run_state(own: OwnSlice, root: str, peers: Peers = lambda: ()) -> RunState | None:
    """Return the state that was saved with a slice; None, and a warning with the reason, when there is none to use.

    A rank whose slice was recovered takes its own state where that lies beside it still and peers describe it. Else it
    has the state of the rank that the slice was recovered from, of the first of several, or of another of its group:
    it is exact where the states of these ranks were equal, and otherwise a warning says so.
    """
    problem = "it was not saved with this slice"
    try:
        manifest = read_manifest(own.path + MANIFEST_SUFFIX)
    except MsRecoverError as error:
        _name_lost(own, str(error))
        return None
    try:
        state = state_beside(own.path, manifest)
    except MsRecoverError as error:
        state, problem = None, str(error)
    if state is not None:
        return replace(state, lent=any(source.rank != own.rank for source in manifest.provenance.sources))
    facts = described(own.rank, peers)
    state = described_state(own.path, facts)
    if state is not None:
        _log.info("%s: its own state lies beside it, as the ranks of its group describe it", own)
        return state
    lender = next(_lenders(own, root, manifest, peers), None)
    if lender is None:
        _name_lost(own, problem)
        return None
    return _borrowed(own, manifest, facts, lender)


def has_own_state(rank: int, path: str, manifest: Manifest | None, peers: Peers) -> bool:
    """Whether a rank's own state lies beside its slice, proven by the manifest of the slice or described by peers."""
    if manifest is not None and state_if_sound(path, manifest) is not None:
        return True
    return described_state(path, described(rank, peers)) is not None


def described(rank: int, peers: Peers) -> RankFacts | None:
    """Return what the states of peers say of a rank; None where none does."""
    for manifest, read in peers():
        if manifest.rank != rank and (state := read()) is not None:
            facts = RankFacts.of_values(state.peers.get(str(rank)))
            if facts is not None:
                return facts
    return None


def described_state(path: str, facts: RankFacts | None) -> RunState | None:
    """Return the state beside a slice whose manifest does not prove it, where peers have described just this state."""
    if facts is None:
        return None
    with suppress(MsRecoverError):
        values = read_state_unproven(path)
        if whole_number(values) == facts.whole:
            return decoded(values)
    return None


def _lenders(own: OwnSlice, root: str, manifest: Manifest, peers: Peers) -> Iterator[_Lender]:
    """Yield the states of ranks that hold the same: of those that the slice comes from, then of others."""
    for source in manifest.provenance.sources:
        path = os.path.join(root, source.path)
        if source.host is None and source.rank is not None and (state := _state_of_source(path, manifest)) is not None:
            yield _Lender(source.rank, path, state)
    for other, read in peers():
        if other.rank != own.rank and other.rank in manifest.group and (state := read()) is not None:
            yield _Lender(other.rank, other.file, state)


def _state_of_source(path: str, manifest: Manifest) -> RunState | None:
    with suppress(MsRecoverError):  # the slice was sound when it was copied, and may be gone now
        source = read_manifest(path + MANIFEST_SUFFIX)
        if (source.run_id, source.step) == (manifest.run_id, manifest.step):
            return state_if_sound(path, source)
    return None


def _borrowed(own: OwnSlice, manifest: Manifest, facts: RankFacts | None, lender: _Lender) -> RunState:
    """Return the state of another rank, with what is known of this rank's samples in place of the other's."""
    state, training = lender.state, manifest.training
    if facts is not None and state.facts is not None:
        equal = facts.states == state.facts.states
    else:
        equal = training is not None and training.states_differ is False
    if equal:
        _log.info("%s: its state file is lost; that of rank %s held the same: %s", own, lender.rank, lender.path)
    else:
        parts = ["random generators", "callbacks"]
        parts += ["what cells keep"] if state.attributes else []
        parts += ["extra"] if state.extra is not None else []
        _log.warning(
            "%s: its state file is lost, so %s and %s go on as those of rank %s: %s",
            own,
            ", ".join(parts[:-1]),
            parts[-1],
            lender.rank,
            lender.path,
        )
        resume_line().doubt(f"those of rank {lender.rank}", *OF_STATE)
        if state.attributes:
            resume_line().doubt(f"what cells keep is that of rank {lender.rank}", "weights")
    return replace(
        state,
        lent=lender.rank != own.rank and not equal,
        order=facts.order if facts is not None else {},
        drawn_by_dataset=state.drawn_by_dataset if equal else {},
        batch=(),
        batch_number=facts.batch if facts is not None else 0,
        drawn=facts.drawn if facts is not None else None,
    )


def _name_lost(own: OwnSlice, problem: str) -> None:
    _log.warning("%s: the state of random generators and callbacks is not restored, they start anew (%s)", own, problem)
    resume_line().doubt("no state was saved", *OF_STATE)
