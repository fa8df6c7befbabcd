"""What brings every part to the same step before work goes on (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Holder = tuple[int, int]
"""A device and a part that its process holds."""


@dataclass(frozen=True)
class Alignment:
    """What has to happen; nothing when every field is empty."""

    unserved: tuple[int, ...] = ()
    """Parts that no device holds: first of all they need one."""
    restored: tuple[Holder, ...] = ()
    """Holders that go back to the snapshot, after which the steps since are repeated."""
    copied: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """Part, a device that has it at the step, and the devices that get it from there."""
    repeated: tuple[int, ...] = ()
    """Steps to repeat."""

    @property
    def any(self) -> bool:
        """Whether something has to happen."""
        return bool(self.unserved or self.restored or self.copied or self.repeated)


def align(parts: int, versions: Mapping[Holder, int | None], step: int, snapshot: int) -> Alignment:
    """Return how all holders come to `step`.

    `versions` are the steps of all holders that are at work: the number of updates in their values, None when unknown.
    A part of which one holder is at the step is copied from there; otherwise every holder goes back to the `snapshot`,
    because gradients need all parts at the same step.
    """
    holders = {part: sorted(device for device, held in versions if held == part) for part in range(parts)}
    unserved = tuple(part for part, devices in holders.items() if not devices)
    if unserved:
        return Alignment(unserved=unserved)
    current = {part: [each for each in devices if versions[each, part] == step] for part, devices in holders.items()}
    if all(current.values()):
        copies = [
            (part, current[part][0], tuple(each for each in devices if each not in current[part]))
            for part, devices in holders.items()
        ]
        return Alignment(copied=tuple(each for each in copies if each[2]))
    return Alignment(
        restored=tuple(holder for holder in sorted(versions) if versions[holder] != snapshot),
        repeated=tuple(range(snapshot + 1, step + 1)),
    )
