"""Compare a slice with its manifest: place, header and contents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from ms_recover.model.contents import Contents
from ms_recover.model.groups import ascending
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.claims.tolerance import Tolerance

Group = tuple[int, ...]

DEFAULT = Tolerance()
NO_LAYOUTS: Mapping[int, Group] = MappingProxyType({})


def later_groups(
    slices: Sequence[SliceFile],
    groups: Collection[Group],
    tolerance: Tolerance = DEFAULT,
    alike: Mapping[int, Group] = NO_LAYOUTS,
) -> frozenset[Group]:
    """Return the groups whose rank lists may have come after their slices were sealed without any.

    These manifests name their own rank alone; at each step that two of them have, and at one at least, their contents
    are equal, but for what may differ. Where one rank's slices alone are left, layouts name the same ranks.
    """
    alone = _sealed_alone(slices, groups, tolerance)
    confirmed = [group for group in _of_one_rank(slices, groups) if alike.get(group[0]) == group] if alike else []
    return frozenset(confirmed) | frozenset(
        group
        for group, at_steps in alone.items()
        if all(len(set(equal)) < 2 for equal in at_steps) and any(len(equal) > 1 for equal in at_steps)
    )


def uncompared_groups(
    slices: Sequence[SliceFile], groups: Iterable[Group], alike: Mapping[int, Group] = NO_LAYOUTS
) -> frozenset[Group]:
    """Return the groups of which one rank's slices alone are left, sealed before there were rank lists.

    Nothing shows whether the list that came later is theirs, unless a manifest states it, or layouts, by which each
    rank is `alike` some ranks.
    """
    lone = _of_one_rank(slices, groups)
    return frozenset(group for group in lone if alike.get(group[0]) != group)


def _of_one_rank(slices: Sequence[SliceFile], groups: Iterable[Group]) -> list[Group]:
    lone = _sealed_alone(slices, groups)
    stated = {ascending(file.manifest.group) for file in slices if file.manifest is not None} if lone else ()
    present = {file.rank for file in slices} if lone else ()
    return [group for group in lone if group not in stated and sum(rank in present for rank in group) < 2]


def _sealed_alone(
    slices: Iterable[SliceFile], groups: Iterable[Group], tolerance: Tolerance = DEFAULT
) -> dict[Group, list[list[tuple[str, ...]]]]:
    """Return by group and step the contents of slices whose sealed manifests name their own rank alone.

    Slices that were recovered since, because the group's list was believed, are among them.
    """
    contents: dict[tuple[int, Step], tuple[Group, tuple[str, ...]]] = {}
    alone: set[int] = set()
    for file in slices:
        manifest = file.manifest
        if manifest is not None and manifest.provenance.kind == "sealed" and manifest.group == (file.rank,):
            alone.add(file.rank)
            contents[file.rank, file.step] = manifest.group, _compared(manifest, tolerance)
        elif manifest is not None and manifest.recovered:
            contents[file.rank, file.step] = ascending(manifest.group), _compared(manifest, tolerance)
    steps = {step for _, step in contents} if alone else ()
    at_steps: dict[Group, list[list[tuple[str, ...]]]] = {}
    for group in set(groups) if alone else ():
        if len(group) > 1 and not alone.isdisjoint(group):
            of_steps = [[contents[rank, step] for rank in group if (rank, step) in contents] for step in steps]
            at_steps[group] = [
                [digest for of, digest in contents_of if len(of) == 1 or of == group] for contents_of in of_steps
            ]
    return at_steps


def _compared(manifest: Manifest, tolerance: Tolerance) -> tuple[str, ...]:
    """Return the digests of what must be equal where two ranks hold the same slice."""
    pairs = zip(manifest.parameters, manifest.digests.parameters, strict=False)
    kept = tuple(digest for parameter, digest in pairs if not tolerance.covers(parameter.name))
    return (manifest.digests.file,) if len(kept) == len(manifest.digests.parameters) else kept


def check_manifest(
    file: SliceFile, world_size: int, group: Group | None, *, claimed: bool = False, later: bool = False
) -> str | None:
    """Return why place, name or header of a slice are not what its manifest says; None when they are.

    The group is not compared where it is None. A manifest that names its own rank alone does not speak against the
    group where the slice was sealed before there were rank lists (`later`), nor where the operator's word groups the
    rank (`claimed`); there one that rests on an earlier word does not either.
    """
    manifest = file.manifest
    if manifest is None:
        return None
    name = file.path.rpartition("/")[2]
    if manifest.rank != file.rank:
        return f"its manifest says it is the slice of rank {manifest.rank}"
    if manifest.step != file.step:
        return f"its manifest says it is of step {manifest.step}, not {file.step}: it was renamed"
    if manifest.file != name:
        return f"its manifest is that of {manifest.file}"
    if manifest.world_size != world_size:
        return f"its manifest says it is one of {manifest.world_size} ranks, not of {world_size}"
    alone = len(manifest.group) == 1 and (claimed or (later and manifest.provenance.kind == "sealed"))
    silent = alone or (claimed and manifest.provenance.evidence == "operator")
    if group is not None and not silent and manifest.group != group != ascending(manifest.group):
        return f"its manifest says ranks {list(manifest.group)} hold the same slice, the rank lists say {list(group)}"
    return check_header(file)


def check_header(file: SliceFile) -> str | None:
    """Return why size or header of a slice are not what its manifest says; None when they are, or without one."""
    manifest = file.manifest
    if manifest is None:
        return None
    if manifest.size != file.size:
        return f"it has {file.size} bytes, its manifest says {manifest.size}"
    if manifest.parameters != file.parameters:
        odd = _apart(file.parameters, manifest.parameters)
        return f"it does not list the parameters that its manifest lists: see {odd}"
    return None


def check_listed(file: SliceFile, expected: ParameterList | None) -> str | None:
    """Return why a slice does not list the parameters that it must, None when it does or nothing states them."""
    if expected is None or expected is file.parameters or file.problem is not None or file.encryption is not None:
        return None
    if len(expected) == len(file.parameters) and set(expected) == set(file.parameters):
        return None
    odd = _apart(file.parameters, expected)
    return f"it does not list the parameters that metadata.json states and most files list: see {odd}"


def _apart(ours: Iterable[Parameter], theirs: Iterable[Parameter]) -> str:
    """Return the names of parameters that two lists do not both have alike."""
    left = {parameter.name: parameter for parameter in theirs}
    odd = [parameter.name for parameter in ours if left.pop(parameter.name, None) != parameter]
    return name_some(odd + list(left))


def check_contents(file: SliceFile, contents: Contents) -> str | None:
    """Return why a slice is damaged by what was read from it; None when it is not, was not read, or has no manifest."""
    if file.path in contents.problems:
        return contents.problems[file.path]
    read = contents.digests.get(file.path)
    if read is None or file.manifest is None or read.file == file.manifest.digests.file:
        return None
    expected = file.manifest.digests.parameters
    pairs = zip(file.parameters, read.parameters, expected, strict=False)
    odd = [parameter.name for parameter, digest, stated in pairs if digest != stated]
    where = f"in {name_some(odd)}" if odd else "outside the parameters"
    return f"its contents are not those of its manifest, {where}"
