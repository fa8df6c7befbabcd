"""Put a slice together parameter by parameter: which pieces of which slices, or what nobody holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ms_recover.file_names import ending_of
from ms_recover.model.actions import Replica
from ms_recover.model.compose import ComposedParameter, MissingRegion, Piece, Runs
from ms_recover.model.slices import Parameter
from ms_recover.planning.parts import Part, Parts, replica_of
from ms_recover.planning.redundancy.regions import Box, cover, runs_of, volume

_MOST_ALTERNATIVES = 3


@dataclass(frozen=True)
class Choice:
    """Where one parameter of a slice comes from.

    Parameters
    ----------
    parameter : Parameter
        As the slice lists it.
    part : Part
        Who holds the same part.
    ranks : tuple of int
        Whom it is taken from: one rank for the whole part, several for pieces of it, none.
    pieces : tuple of (int, Box, Box)
        For each of several ranks which region it gives, and which one it holds; empty where one gives all.
    missing : tuple of MissingRegion
        What nobody gives.
    """

    parameter: Parameter
    part: Part
    ranks: tuple[int, ...] = ()
    pieces: tuple[tuple[int, Box, Box], ...] = ()
    missing: tuple[MissingRegion, ...] = ()


def choose(parts: Parts, rank: int, expected: Iterable[Parameter], serves: Counter[int]) -> tuple[Choice, ...]:
    """Choose whom each parameter is taken from.

    One rank that has everything goes first, then as few ranks as will do, then those that serve fewest others; the
    lowest rank among equals.

    Parameters
    ----------
    parts : Parts
        Who holds what.
    rank : int
        Whose slice is wanted.
    expected : iterable of Parameter
        What it lists.
    serves : Counter of int
        How many slices each rank gives to already.
    """
    found = [(parameter, parts.part(rank, parameter)) for parameter in expected]
    givers = _few_ranks([(part.ranks, parameter.nbytes) for parameter, part in found if part.ranks], rank, serves)
    place = {giver: index for index, giver in enumerate(givers)}
    return tuple(
        Choice(parameter, part, (min((one for one in part.ranks if one in place), key=place.__getitem__),))
        if part.ranks
        else _from_elsewhere(parts, rank, parameter, part, givers)
        for parameter, part in found
    )


def _few_ranks(wanted: list[tuple[tuple[int, ...], int]], rank: int, serves: Counter[int]) -> list[int]:
    """Choose few ranks so that each of `wanted` has one of its ranks among them (greedy set cover by bytes).

    Parameters
    ----------
    wanted : list of (tuple of int, int)
        Ranks that can give a parameter, and its bytes.
    rank : int
        The receiver, whose own damaged slice goes first where it gives anything.
    serves : Counter of int
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
        best = min(gives, key=lambda one: (one != rank, -gives[one], serves[one], one))
        chosen.append(best)
        alike = Counter({ranks: count for ranks, count in alike.items() if best not in ranks})
    return chosen


def _from_elsewhere(parts: Parts, rank: int, parameter: Parameter, part: Part, givers: Collection[int]) -> Choice:
    """Cover a parameter that no rank holds as the slice does with pieces that are cut another way."""
    wanted = part.region
    if not parameter.nbytes:
        return Choice(parameter, part)
    if part.problem is not None or wanted is None:
        whole = wanted or tuple((0, size) for size in parameter.shape)
        reason = part.problem or "no sound slice has it"
        return Choice(parameter, part, missing=(MissingRegion(parameter.name, whole, parameter.nbytes, reason),))
    boxes = parts.elsewhere(rank, parameter)
    pieces, uncovered = cover(wanted, [box for box, _ in boxes])
    item = parameter.nbytes // volume(wanted)
    missing = tuple(
        MissingRegion(parameter.name, box, volume(box) * item, "no sound slice has it") for box in uncovered
    )
    chosen = []
    for index, box in pieces:
        held, ranks = boxes[index]
        chosen.append((next((one for one in ranks if one in givers), ranks[0]), box, held))
    return Choice(parameter, part, tuple(one for one, _, _ in chosen), tuple(chosen), missing)


class PieceBook:
    """Number the slices that pieces come from, and turn choices into pieces.

    Parameters
    ----------
    parts : Parts
        Who holds what.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.sources: list[Replica] = []
        self._numbers: dict[int, int] = {}
        self._bytes: dict[int, int] = defaultdict(int)

    def model_for(self, rank: int, parameters: Sequence[ComposedParameter], endings: Collection[str] = ()) -> int:
        """Return which source to follow in form: one that lists as much, and of these the one that gives most bytes.

        Where parameters were dealt out, a slice that was saved so says it in its metadata, a full one does not.
        One of the format that the rank's own files have, by `endings`, goes before one that gives more.
        """
        parts = self._parts
        names = {item.parameter.name for item in parameters}
        stage = parts.kinds.get(parts.stages.of(rank), [])
        able = {kind[0] for kind in stage if parts.files[kind[0]].encryption is None} | set(self._numbers)

        def fitness(one: int) -> tuple[bool, int, bool, int, int]:
            listed = parts.files[one].parameters
            alike = len(listed) == len(names) and {parameter.name for parameter in listed} == names
            given = self._bytes[self._numbers[one]] if one in self._numbers else 0
            named_alike = ending_of(parts.files[one].path) in endings
            return alike, -abs(len(listed) - len(names)), named_alike, given, -one

        return self._number(max(able, key=fitness))

    def take(self, choice: Choice) -> ComposedParameter:
        """Return a parameter with its pieces."""
        parameter, part = choice.parameter, choice.part
        if not parameter.nbytes:
            return ComposedParameter(parameter, ())
        if not choice.pieces:
            giver = choice.ranks[0]
            others = [one for one in part.ranks if one != giver][:_MOST_ALTERNATIVES]
            return ComposedParameter(parameter, (self._piece(giver, parameter, Runs(0, 0, parameter.nbytes), others),))
        assert part.region is not None
        item = parameter.nbytes // volume(part.region)
        runs = [(giver, runs_of(box, held, part.region, item)) for giver, box, held in choice.pieces]
        return ComposedParameter(parameter, tuple(self._piece(giver, parameter, one) for giver, one in runs))

    def _piece(self, giver: int, parameter: Parameter, runs: Runs, others: Iterable[int] = ()) -> Piece:
        parts, name = self._parts, parameter.name
        theirs = parts.find(giver, name)
        assert theirs is not None
        number = self._number(giver)
        self._bytes[number] += runs.bytes
        digest = parts.digest(giver, name)
        tolerated = parts.situation.tolerance.covers(name)
        alike = [self._number(one) for one in others if not tolerated or parts.digest(one, name) == digest]
        return Piece(number, runs, theirs.nbytes, digest, tuple(alike))

    def _number(self, rank: int) -> int:
        if rank not in self._numbers:
            self._numbers[rank] = len(self.sources)
            self.sources.append(replica_of(self._parts.situation, self._parts.files[rank]))
        return self._numbers[rank]
