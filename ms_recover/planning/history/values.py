"""Which contents are read to find values that are no finite numbers, and what they show over the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ms_recover.model.history import OddValues, ValueKind
from ms_recover.model.steps import Step
from ms_recover.planning.history.witnesses import Moment


@dataclass(frozen=True, slots=True)
class Content:
    """Contents of a parameter: equal ones are read once, whoever holds them."""

    digest: str
    dtype: str


@dataclass(frozen=True, slots=True)
class ReadValue:
    """What reading contents showed; `digest` is theirs as they were read."""

    digest: str
    nan: int
    inf: int
    zero: bool


@dataclass(frozen=True, kw_only=True)
class ReadValues:
    """What was read: by contents, and the places where other bytes lie than the manifest states.

    `damaged` has path and parameter; `unread` the slices that cannot be read, and why.
    """

    values: Mapping[Content, ReadValue] = field(default_factory=dict)
    damaged: frozenset[tuple[str, str]] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)

    def with_found(self, wanted: Wanted, read: Mapping[str, Mapping[str, ReadValue] | str]) -> ReadValues:
        """Return it with what was read of the wanted: by path the values by parameter, or why there are none."""
        values, damaged, unread = dict(self.values), set(self.damaged), dict(self.unread)
        for path, names in wanted.items():
            by_name = read[path]
            if isinstance(by_name, str):
                unread[path] = by_name
                continue
            for name, content in names.items():
                value = by_name.get(name)
                if value is not None and value.digest == content.digest:
                    values[content] = value
                else:
                    damaged.add((path, name))
        return ReadValues(values=values, damaged=frozenset(damaged), unread=unread)


Wanted = Mapping[str, Mapping[str, Content]]
"""Contents to read by path of the slice and parameter."""


def choose_contents(
    moments: Sequence[Moment], readable: frozenset[str], dtypes: frozenset[str], done: ReadValues
) -> Wanted:
    """Return what is still to be read of the types, each from the first slice that is `readable` and holds it.

    Contents that proved damaged in one slice are looked for in the next one.
    """
    wanted: dict[str, dict[str, Content]] = {}
    chosen = set(done.values)
    for moment in moments:
        for witness in moment.witnesses.values():
            if witness.path not in readable or witness.path in done.unread:
                continue
            for parameter, digest in zip(witness.listed, witness.digests, strict=True):
                if parameter.dtype not in dtypes:
                    continue
                content = Content(digest, parameter.dtype)
                if content in chosen or (witness.path, parameter.name) in done.damaged:
                    continue
                chosen.add(content)
                wanted.setdefault(witness.path, {})[parameter.name] = content
    return wanted


@dataclass
class _Course:
    """A kind of odd values of a parameter, over the steps."""

    first: Step
    last: Step
    ranks: set[int]
    steps: set[Step]
    count: int = 0


def find_odd_values(moments: Sequence[Moment], read: ReadValues) -> tuple[tuple[OddValues, ...], tuple[str, ...]]:
    """Return the odd values by first step and parameter, and the parameters that were all zero at every step."""
    courses: dict[tuple[str, ValueKind], _Course] = {}
    was: dict[tuple[int, str], bool] = {}
    seen: dict[str, bool] = defaultdict(lambda: True)
    places = {moment.step: place for place, moment in enumerate(moments)}
    for moment in moments:
        for rank, witness in moment.witnesses.items():
            for parameter, digest in zip(witness.listed, witness.digests, strict=True):
                name = parameter.name
                pairs: list[tuple[ValueKind, int]] = []
                if (witness.path, name) in read.damaged:
                    pairs.append(("damaged", 1))
                value = read.values.get(Content(digest, parameter.dtype))
                if value is not None:
                    pairs += [("nan", value.nan)] if value.nan else []
                    pairs += [("inf", value.inf)] if value.inf else []
                    seen[name] &= value.zero
                    if value.zero and was.get((rank, name)):  # zeros are odd only after other values
                        pairs.append(("zero", 1))
                    was[rank, name] = was.get((rank, name), False) or not value.zero
                for kind, count in pairs:
                    course = courses.setdefault((name, kind), _Course(moment.step, moment.step, set(), set()))
                    course.last = moment.step
                    course.steps.add(moment.step)
                    course.count = max(course.count, count)
                    if course.first == moment.step:
                        course.ranks.add(rank)
    odd = [
        OddValues(
            parameter=name,
            kind=kind,
            first=course.first,
            last=course.last,
            ranks=tuple(sorted(course.ranks)),
            count=course.count,
            steps=len(course.steps),
        )
        for (name, kind), course in courses.items()
    ]
    odd.sort(key=lambda value: (places[value.first], value.parameter, value.kind))
    return tuple(odd), tuple(sorted(name for name, zero in seen.items() if zero))
