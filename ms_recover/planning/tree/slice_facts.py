"""Facts about single slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.slices import ParameterList
from ms_recover.planning.claims.manifest_check import check_contents, check_listed, check_manifest, later_groups
from ms_recover.planning.claims.seen_local import NOTHING_SEEN, Member, SeenLocal, find_seen_local
from ms_recover.planning.claims.settle_claims import Claims
from ms_recover.planning.claims.tolerance import Tolerance
from ms_recover.planning.tree.world_size import WorldSize

NAN_EVERYWHERE = "every floating-point value is NaN"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceFacts:
    """One slice and the evidence about it.

    Parameters
    ----------
    file : SliceFile
        The slice.
    path : str
        Path relative to the root.
    listed : ParameterList
        Its parameters; equal lists are mostly one object.
    group : tuple of int
        The ranks that hold the same slice by the rank lists or the operator's word, its own among them.
    claimed : bool
        The operator's word alone groups them.
    digests : Digests or None
        Of its contents: as they were read, else as its manifest states them. None when unknown, and for encrypted
        slices, whose contents cannot be compared because each encryption draws its own initial value.
    was_read : bool
        The digests are those of the bytes on the disk.
    manifest_problem : str or None
        The mismatch of its manifest with its place, name and header, or of its header with what it must list.
    content_problem : str or None
        The mismatch of its contents with its manifest, or the reason why they could not be read.
    failing : bool
        The device failed to give it: its bytes need not be wrong.
    expected : ParameterList or None
        What it must list by metadata that most of the files agree with; None when nothing states it.
    is_nan : bool
        It was read, and every floating-point value in it is NaN.
    seen_local : SeenLocal
        The rank-local parameters of its run and group that manifests show, whether or not they record them.
    """

    file: SliceFile
    path: str
    listed: ParameterList
    group: tuple[int, ...]
    claimed: bool = False
    digests: Digests | None
    was_read: bool
    manifest_problem: str | None
    content_problem: str | None
    failing: bool = False
    expected: ParameterList | None = None
    state_problem: str | None = None
    is_nan: bool = False
    seen_local: SeenLocal = NOTHING_SEEN

    @property
    def rank(self) -> int:
        """Rank."""
        return self.file.rank

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest."""
        return self.file.manifest

    @property
    def contents(self) -> Digests:
        """Its digests, which must be known."""
        assert self.digests is not None
        return self.digests

    @property
    def problem(self) -> str | None:
        """What is wrong with it by itself: its header, its manifest's mismatch with its place, or its contents."""
        return self.file.problem or self.manifest_problem or self.content_problem

    def digest_of(self, name: str) -> str | None:
        """Return the digest of a parameter's contents, None when it is not known."""
        place = self.listed.index.get(name)
        if self.digests is None or not self.digests.parameters or place is None:
            return None
        return self.digests.parameters[place]

    @property
    def proven(self) -> bool:
        """Whether its manifest is a verdict: its digests were right when they were written."""
        return self.file.manifest is not None and self.file.manifest.provenance.proven

    @property
    def saved(self) -> bool:
        """Whether training saved its manifest, which is no damage then where other slices differ."""
        return self.file.manifest is not None and self.file.manifest.provenance.kind == "saved"

    @property
    def rank_local(self) -> frozenset[str]:
        """The parameters that differed among the ranks of its group when it was saved, by proven manifests."""
        return self.recorded_local | self.seen_local.names

    @property
    def recorded_local(self) -> frozenset[str]:
        """Those that its own manifest records, where it is proven."""
        manifest = self.file.manifest
        if manifest is None or manifest.training is None or not manifest.provenance.proven:
            return frozenset()
        return frozenset(manifest.training.rank_local)


def find_slice_facts(
    files: Iterable[SliceFile],
    inventory: Inventory,
    world: WorldSize,
    claims: Claims,
    contents: Contents,
    tolerance: Tolerance,
) -> Iterator[SliceFacts]:
    """Yield the facts about slices that lie in the world."""
    # One object for all lists that are equal: comparing names takes as long as reading them.
    shared: dict[ParameterList, ParameterList] = {}
    files = list(files)
    groups, seen = claims.groups, find_seen_local(files)
    later = later_groups(files, groups.members.values(), tolerance, claims.stages.families)
    for file in files:
        expected = inventory.part.expected.get(file.step, {}).get(file.rank)
        listed = file.parameters if isinstance(file.parameters, ParameterList) else ParameterList(file.parameters)
        group, path, claimed = groups.of(file.rank), file.path, file.rank in groups.claimed
        read = contents.digests.get(path)
        whose = group if inventory.part.kind is None else None
        problem = check_manifest(file, world.ranks, whose, claimed=claimed, later=group in later)
        yield SliceFacts(
            file=file,
            path=path,
            listed=shared.setdefault(listed, listed),
            group=group,
            claimed=claimed,
            digests=None if file.encryption is not None else read or _stated_digests(file, problem),
            was_read=read is not None,
            manifest_problem=problem or check_listed(file, expected),
            content_problem=check_contents(file, contents),
            failing=file.failing or path in contents.failing,
            expected=expected,
            state_problem=contents.states.get(path),
            is_nan=path in contents.nan,
            seen_local=_seen(file, seen),
        )


def _stated_digests(file: SliceFile, problem: str | None) -> Digests | None:
    """Return the digests in the manifest of a slice; None where the manifest lists other parameters than the slice."""
    manifest = file.manifest
    if manifest is None or (problem is not None and manifest.parameters != file.parameters):
        return None
    return manifest.digests


def _seen(file: SliceFile, seen: Mapping[Member, SeenLocal]) -> SeenLocal:
    manifest = file.manifest
    if manifest is None or not manifest.provenance.proven:
        return NOTHING_SEEN
    return seen.get((manifest.run_id, manifest.group), NOTHING_SEEN)
