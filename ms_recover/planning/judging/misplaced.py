"""Slices that hold the bytes of another slice: renamed, or put in the wrong place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ms_recover.model.steps import Step
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.tree.facts import SliceFacts

_Class = tuple[tuple[int, ...], Step]


@dataclass
class _Holders:
    """The slices of one family and step with the same contents."""

    slices: list[SliceFacts] = field(default_factory=list)
    sound: int = 0
    backed: SliceFacts | None = None
    recovered: bool = False

    def add(self, one: SliceFacts) -> None:
        self.slices.append(one)
        self.sound += one.file.problem is None
        self.recovered = self.recovered or one.recovered
        if self.backed is None and _is_backed(one):
            self.backed = one


def _is_backed(one: SliceFacts) -> bool:
    manifest = one.manifest
    return manifest is not None and (manifest.step, manifest.digests) == (one.file.step, one.digests)


class ContentIndex:
    """Find other slices with the bytes of a slice, in time that does not grow with their number.

    Ranks that are alone in their rank lists are of the family that holds the same by the layouts of `stages`.
    """

    def __init__(self, slices: Iterable[SliceFacts], stages: Stages) -> None:
        self._stages = stages
        self._holders: dict[str, dict[_Class, _Holders]] = defaultdict(lambda: defaultdict(_Holders))
        self._members: Counter[_Class] = Counter()
        for slice_ in slices:
            key = (self._family(slice_), slice_.file.step)
            self._members[key] += slice_.file.problem is None
            if slice_.digests is not None:
                self._holders[slice_.digests.file][key].add(slice_)

    def _family(self, one: SliceFacts) -> tuple[int, ...]:
        return one.group if len(one.group) > 1 else self._stages.families.get(one.rank, one.group)

    def why_misplaced(self, slice_: SliceFacts, *, confirmed: bool = False) -> str | None:
        """Return the reason why a slice is not what its name and place claim, None when nothing shows it.

        A slice is misplaced if its bytes are those of an older slice of its own family, which a manifest or all others
        of that step confirm; or those of a slice of another one, which a manifest or another of that family confirms.
        Slices that were copied from this one do not count, ranks that are alike by layouts are of one family, and the
        operator's word is no evidence against ranks that it does not name. Where another of its family holds the same
        it is `confirmed`: only an older slice's manifest is evidence against both. Where every value is NaN all ranks
        hold the same bytes, which shows nothing.
        """
        classes = self._holders.get(slice_.digests.file, {}) if slice_.digests is not None else {}
        for (family, step), holders in classes.items():
            first = holders.slices[0]
            own = family == self._family(slice_) or self._stages.alike(first.rank, slice_.rank)
            if (own and step >= slice_.file.step) or (first.claimed and not own):
                continue
            candidates = holders.slices if holders.recovered else [holders.backed or first]
            for other in candidates:
                if other.manifest is not None and any(
                    source.path == slice_.path for source in other.manifest.provenance.sources
                ):
                    continue  # a copy is no witness for its source
                sound = other.file.problem is None
                equal, others = holders.sound - sound, self._members[family, step] - sound
                backed = _is_backed(other)
                by_others = (equal == others if own else equal > 0) and not confirmed
                if (by_others or (backed and (own or not confirmed))) and not slice_.is_nan:
                    return f"holds the bytes of {other.path}: it was renamed or put in the wrong place"
        return None
