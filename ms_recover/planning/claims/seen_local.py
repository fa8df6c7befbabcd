"""Rank-local parameters that no manifest records: those in which the ranks of a group differ from step to step.

`ms_recover.training.SliceManifests` writes manifests without an exchange between ranks, so nothing records them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Manifest, RunStep
from ms_recover.model.rank_local import MOST_NAMED, share_nothing
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some

Group = tuple[int, ...]
Member = tuple[str, Group]
"""A run, and ranks of it that hold the same slice."""


@dataclass(frozen=True, slots=True)
class SeenLocal:
    """Parameters in which ranks of a group differ at a step, as their manifests state."""

    names: frozenset[str]
    step: Step
    ranks: Group
    compared: bool = True
    """False where no step has two ranks of the group, and no manifest records a comparison."""

    def __str__(self) -> str:
        names, ranks = list_some(sorted(self.names), MOST_NAMED), list_some(self.ranks)
        return f"{names}: ranks {ranks} differ at step {self.step} by their manifests"


NOTHING_SEEN = SeenLocal(frozenset(), Step(0, 0), ())
NOT_COMPARED = SeenLocal(frozenset(), Step(0, 0), (), compared=False)


def find_seen_local(files: Iterable[SliceFile]) -> Mapping[Member, SeenLocal]:
    """Return the rank-local parameters that manifests show but do not record, by run and group.

    A difference at the last step of a run alone is none of them, because it may be the first trace of a fault; it is
    where it lasts, or where later steps of the run have one rank of the group left. Of a run that has no step to
    compare the one before it is looked at, up to the step from which it goes on. Ranks that differ in every parameter
    hold nothing in common, and nothing is rank-local there. `NOT_COMPARED` stands for groups of which nothing shows
    whether ranks differ.
    """
    saved = [file.manifest for file in files if file.manifest is not None and _is_witness(file.manifest)]
    runs: dict[Member, dict[Step, dict[int, Manifest]]] = defaultdict(lambda: defaultdict(dict))
    before: dict[str, Manifest] = {}
    for manifest in sorted(saved, key=lambda manifest: (manifest.step, manifest.rank)):
        runs[manifest.run_id, manifest.group][manifest.step][manifest.rank] = manifest
        if manifest.training is not None and manifest.training.resumed_from is not None:
            before[manifest.run_id] = manifest
    seen = {member: _of_steps(_history(member, runs, before)) for member in runs}
    return {member: local for member, local in seen.items() if local.names or not local.compared}


def _is_witness(manifest: Manifest) -> bool:
    """Whether a manifest states what a rank held when a slice was saved."""
    stated = len(manifest.digests.parameters) == len(manifest.parameters) > 0
    return bool(manifest.run_id) and manifest.provenance.kind == "saved" and stated and len(manifest.group) > 1


def _history(
    member: Member, runs: Mapping[Member, Mapping[Step, Mapping[int, Manifest]]], before: Mapping[str, Manifest]
) -> list[Mapping[int, Manifest]]:
    """Return the slices of a group at each step of a run and of those that it goes on from, oldest first."""
    run, group = member
    steps = [members for _, members in sorted(runs[member].items())]
    seen = {run}
    while (origin := _origin(before.get(run))) is not None and origin.run_id not in seen:
        run, last = origin.run_id, origin.step
        own = sorted(runs.get((run, group), {}).items())
        steps = [*[members for step, members in own if step <= last], *steps]
        seen.add(run)
    return steps


def _origin(manifest: Manifest | None) -> RunStep | None:
    """Return the step that a run goes on from, where its manifest names it."""
    origin = manifest.training.resumed_from if manifest is not None and manifest.training is not None else None
    return origin if origin is not None and origin.run_id else None


def _of_steps(steps: Sequence[Mapping[int, Manifest]]) -> SeenLocal:
    compared = [(place, _difference(members)) for place, members in enumerate(steps) if len(members) > 1]
    if not compared:
        recorded = any(_has_compared(manifest) for members in steps for manifest in members.values())
        return NOTHING_SEEN if recorded else NOT_COMPARED
    place, newest = compared[-1]
    earlier = [difference for _, difference in compared[:-1]]
    lasting = newest if place + 1 < len(steps) else newest.intersection(frozenset().union(*earlier))
    members = steps[place]
    if not lasting or _share_nothing(members, newest):
        return NOTHING_SEEN
    first = next(iter(members.values()))
    return SeenLocal(lasting, first.step, tuple(sorted(members)))


def _has_compared(manifest: Manifest) -> bool:
    """Whether ranks compared their values when a slice was saved: `SliceSaver` does, which saves a state as well."""
    training = manifest.training
    return training is None or training.state_digest is not None or bool(training.rank_local)


def _difference(held: Mapping[int, Manifest]) -> frozenset[str]:
    """Return the parameters that several ranks hold, and not with the same contents."""
    digests: dict[str, set[str]] = defaultdict(set)
    for manifest in held.values():
        for parameter, digest in zip(manifest.parameters, manifest.digests.parameters, strict=True):
            digests[parameter.name].add(digest)
    return frozenset(name for name, found in digests.items() if len(found) > 1)


def _share_nothing(members: Mapping[int, Manifest], names: frozenset[str]) -> bool:
    elements = {
        parameter.name: prod(parameter.shape) for manifest in members.values() for parameter in manifest.parameters
    }
    return share_nothing(elements, names)
