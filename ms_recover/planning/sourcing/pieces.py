"""Choose the sources of each parameter of a slice, and turn the choice into pieces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ms_recover.file_names import ending_of
from ms_recover.model.actions import Replica
from ms_recover.model.compose import ComposedParameter, MissingRegion, Piece, Runs
from ms_recover.model.slices import Parameter
from ms_recover.planning.redundancy.regions import Box, cover, runs_of, volume
from ms_recover.planning.sourcing.parameters import ParameterIndex, replica_of
from ms_recover.planning.sourcing.settle import Settled, Settlement

_MOST_ALTERNATIVES = 3


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The sources of one parameter of a slice.

    Parameters
    ----------
    parameter : Parameter
        As the slice lists it.
    settled : Settled
        The ranks that may give it.
    ranks : tuple of int
        The ranks it is taken from: one for the whole part, several for pieces of it, none.
    pieces : tuple of (int, Box, Box)
        For each of several ranks the region it gives, and the one it holds; empty where one gives all.
    missing : tuple of MissingRegion
        What nobody gives.
    """

    parameter: Parameter
    settled: Settled
    ranks: tuple[int, ...] = ()
    pieces: tuple[tuple[int, Box, Box], ...] = ()
    missing: tuple[MissingRegion, ...] = ()


def choose_parameters(
    settlement: Settlement, rank: int, expected: Iterable[Parameter], load: Mapping[int, int]
) -> tuple[Choice, ...]:
    """Choose the source of each parameter.

    One rank that has everything goes first, then as few ranks as will do, then those with the lowest load; the lowest
    rank among equals.

    Parameters
    ----------
    settlement : Settlement
        Who may give what.
    rank : int
        Whose slice is wanted.
    expected : iterable of Parameter
        Its parameters.
    load : mapping of int to int
        How many slices each rank gives to already.
    """
    found = [(parameter, settlement.settle(rank, parameter)) for parameter in expected]
    sources = _few_ranks([(part.ranks, parameter.nbytes) for parameter, part in found if part.ranks], rank, load)
    place = {source: index for index, source in enumerate(sources)}
    return tuple(
        Choice(
            parameter=parameter,
            settled=part,
            ranks=(min((one for one in part.ranks if one in place), key=place.__getitem__),),
        )
        if part.ranks
        else _from_whole_tensors(settlement.index, rank, parameter, part, sources)
        for parameter, part in found
    )


def _few_ranks(wanted: list[tuple[tuple[int, ...], int]], rank: int, load: Mapping[int, int]) -> list[int]:
    """Choose few ranks so that each of `wanted` has one of its ranks among them (greedy set cover by bytes).

    Parameters
    ----------
    wanted : list of (tuple of int, int)
        Ranks that can give a parameter, and its bytes.
    rank : int
        The receiver, whose own damaged slice goes first where it gives anything.
    load : mapping of int to int
        How many slices each rank gives to already.
    """
    alike: Counter[tuple[int, ...]] = Counter()
    for ranks, count in wanted:
        alike[ranks] += count + 1
    chosen: list[int] = []
    while alike:
        gives: Counter[int] = Counter()
        for ranks, count in alike.items():
            for one in ranks:
                gives[one] += count
        best = min(gives, key=lambda one: (one != rank, -gives[one], load.get(one, 0), one))
        chosen.append(best)
        alike = Counter({ranks: count for ranks, count in alike.items() if best not in ranks})
    return chosen


def _from_whole_tensors(
    index: ParameterIndex, rank: int, parameter: Parameter, settled: Settled, sources: Collection[int]
) -> Choice:
    """Cover a parameter that no rank holds as the slice does with pieces of whole tensors."""
    wanted = settled.region
    if not parameter.nbytes:
        return Choice(parameter=parameter, settled=settled)
    if settled.problem is not None or wanted is None:
        whole = wanted or tuple((0, size) for size in parameter.shape)
        reason = settled.problem or "no sound slice has it"
        gone = MissingRegion(parameter.name, whole, parameter.nbytes, reason)
        return Choice(parameter=parameter, settled=settled, missing=(gone,))
    boxes = index.whole_tensors(rank, parameter)
    pieces, uncovered = cover(wanted, [box for box, _ in boxes])
    item = parameter.nbytes // volume(wanted)
    missing = tuple(
        MissingRegion(parameter.name, box, volume(box) * item, "no sound slice has it") for box in uncovered
    )
    chosen = []
    for number, box in pieces:
        held, ranks = boxes[number]
        chosen.append((next((one for one in ranks if one in sources), ranks[0]), box, held))
    return Choice(
        parameter=parameter,
        settled=settled,
        ranks=tuple(one for one, _, _ in chosen),
        pieces=tuple(chosen),
        missing=missing,
    )


class PieceBook:
    """Numbers the slices that pieces come from, and turns choices into pieces.

    Parameters
    ----------
    index : ParameterIndex
        The parameters of the step.
    """

    def __init__(self, index: ParameterIndex) -> None:
        self._index = index
        self.sources: list[Replica] = []
        self._numbers: dict[int, int] = {}
        self._bytes: dict[int, int] = defaultdict(int)

    def model_for(self, rank: int, parameters: Sequence[ComposedParameter], endings: Collection[str] = ()) -> int:
        """Return the source whose form is followed: one that lists as much, and of these the one that gives most bytes.

        Where parameters were dealt out, a slice that was saved so says it in its metadata, a full one does not. One of
        the format that the rank's own files have, by `endings`, goes before one that gives more.
        """
        index = self._index
        names = {item.parameter.name for item in parameters}
        stage = index.kinds.get(index.stages.of(rank), [])
        able = {kind[0] for kind in stage if index.slices[kind[0]].file.encryption is None} | set(self._numbers)

        def fitness(one: int) -> tuple[bool, int, bool, int, int]:
            listed = index.slices[one].listed
            alike = len(listed) == len(names) and listed.index.keys() == names
            given = self._bytes[self._numbers[one]] if one in self._numbers else 0
            named_alike = ending_of(index.slices[one].path) in endings
            return alike, -abs(len(listed) - len(names)), named_alike, given, -one

        return self._number(max(able, key=fitness))

    def take(self, choice: Choice) -> ComposedParameter:
        """Return a parameter with its pieces."""
        parameter, settled = choice.parameter, choice.settled
        if not parameter.nbytes:
            return ComposedParameter(parameter, ())
        if not choice.pieces:
            source = choice.ranks[0]
            others = [one for one in settled.ranks if one != source][:_MOST_ALTERNATIVES]
            return ComposedParameter(parameter, (self._piece(source, parameter, Runs(0, 0, parameter.nbytes), others),))
        assert settled.region is not None
        item = parameter.nbytes // volume(settled.region)
        runs = [(source, runs_of(box, held, settled.region, item)) for source, box, held in choice.pieces]
        return ComposedParameter(parameter, tuple(self._piece(source, parameter, one) for source, one in runs))

    def _piece(self, source: int, parameter: Parameter, runs: Runs, others: Iterable[int] = ()) -> Piece:
        index, name = self._index, parameter.name
        theirs = index.find(source, name)
        assert theirs is not None
        number = self._number(source)
        self._bytes[number] += runs.bytes
        digest = index.digest(source, name)
        tolerated = index.facts.tolerance.covers(name)
        alike = [self._number(one) for one in others if not tolerated or index.digest(one, name) == digest]
        return Piece(number, runs, theirs.nbytes, digest, tuple(alike))

    def _number(self, rank: int) -> int:
        if rank not in self._numbers:
            self._numbers[rank] = len(self.sources)
            self.sources.append(replica_of(self._index.slices[rank]))
        return self._numbers[rank]
