"""Choose the sources of each parameter of a slice, and turn the choice into pieces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ms_recover.file_names import ending_of
from ms_recover.model.actions import Replica
from ms_recover.model.compose import ComposedParameter, Piece, Runs
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.regions import runs_of
from ms_recover.planning.supply.parameters import ParameterIndex, replica_of
from ms_recover.planning.supply.settle import Settled
from ms_recover.planning.supply.supply import Supply

_MOST_ALTERNATIVES = 3


@dataclass(frozen=True, slots=True)
class Giving:
    """The sources of one parameter, as the slice lists it: the ranks that may give it, and those it is taken from.

    That is one rank for the whole region, or one for each of `Settled.parts`.
    """

    parameter: Parameter
    settled: Settled
    ranks: tuple[int, ...]


def choose_parameters(
    supply: Supply, rank: int, expected: Iterable[Parameter], load: Mapping[int, int]
) -> tuple[Giving, ...]:
    """Choose the source of each parameter of a rank's slice.

    One rank that has everything goes first, then as few ranks as will do, then those with the lowest load, which is how
    many slices they give to already; the lowest rank among equals.
    """
    settled = [(parameter, supply.who(rank, parameter)) for parameter in expected]
    sources = _few_ranks([(part.ranks, parameter.nbytes) for parameter, part in settled if part.ranks], load)
    taken = {ranks: (_first_of(sources, ranks),) for ranks in {part.ranks for _, part in settled if part.ranks}}
    return tuple(
        Giving(parameter, part, taken.get(part.ranks) or tuple(_first_of(sources, ranks) for _, _, ranks in part.parts))
        for parameter, part in settled
    )


def _first_of(sources: Iterable[int], ranks: Sequence[int]) -> int:
    return next((one for one in sources if one in ranks), ranks[0])


def _few_ranks(wanted: Iterable[tuple[tuple[int, ...], int]], load: Mapping[int, int]) -> list[int]:
    """Choose few ranks so that each of `wanted` has one of its ranks among them (greedy set cover by bytes).

    `wanted` has the ranks that can give a parameter, and its bytes.
    """
    alike: Counter[tuple[int, ...]] = Counter()
    for ranks, count in wanted:
        alike[ranks] += count + 1
    chosen: list[int] = []
    while alike:
        gives: Counter[int] = Counter()
        for ranks, count in alike.items():
            for giver in ranks:
                gives[giver] += count
        best = min(gives, key=lambda giver: (-gives[giver], load.get(giver, 0), giver))
        chosen.append(best)
        alike = Counter({ranks: count for ranks, count in alike.items() if best not in ranks})
    return chosen


class PieceBook:
    """Numbers the slices that pieces come from, and turns choices into pieces."""

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

        def fitness(source: int) -> tuple[bool, int, bool, int, int]:
            listed = index.slices[source].listed
            alike = len(listed) == len(names) and listed.index.keys() == names
            given = self._bytes[self._numbers[source]] if source in self._numbers else 0
            named_alike = ending_of(index.slices[source].path) in endings
            return alike, -abs(len(listed) - len(names)), named_alike, given, -source

        return self._number(max(able, key=fitness))

    def take(self, choice: Giving) -> ComposedParameter:
        """Return a parameter with its pieces."""
        parameter, settled = choice.parameter, choice.settled
        if not parameter.nbytes:
            return ComposedParameter(parameter, ())
        if settled.ranks:
            (source,) = choice.ranks
            others = islice((rank for rank in settled.ranks if rank != source), _MOST_ALTERNATIVES)
            return ComposedParameter(parameter, (self._piece(source, parameter, Runs(0, 0, parameter.nbytes), others),))
        assert settled.region is not None
        item = parameter.item_size
        pieces = [
            self._piece(source, parameter, runs_of(box, region, settled.region, item))
            for source, (box, region, _) in zip(choice.ranks, settled.parts, strict=True)
        ]
        return ComposedParameter(parameter, tuple(pieces))

    def _piece(self, source: int, parameter: Parameter, runs: Runs, others: Iterable[int] = ()) -> Piece:
        index, name = self._index, parameter.name
        theirs = index.find(source, name)
        assert theirs is not None
        number = self._number(source)
        self._bytes[number] += runs.bytes
        digest = index.digest(source, name)
        alike = [
            rank for rank in others if index.digest(rank, name) == digest or not index.may_differ(name, (source, rank))
        ]
        return Piece(number, runs, theirs.nbytes, digest, tuple(map(self._number, alike)))

    def _number(self, rank: int) -> int:
        if rank not in self._numbers:
            self._numbers[rank] = len(self.sources)
            self.sources.append(replica_of(self._index.slices[rank]))
        return self._numbers[rank]
