"""Paths with places for the rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankPath:
    """A path with places for the rank, so that it can be made for another rank."""

    parts: tuple[str, ...]
    """The literal text between the places of the rank; one part alone means that the rank is not in the path."""
    digits: int = 1
    """Digits of the rank at least; zeros go before a shorter one."""
    numbers: tuple[int, ...] = ()
    """For each rank the number that stands for it in the path; empty where that is the rank."""

    def of(self, rank: int) -> str:
        """Return the path of ``rank``, with ``/`` between its components."""
        number = self.numbers[rank] if rank < len(self.numbers) else rank
        text = str(number)
        return (text if self.digits == 1 else text.zfill(self.digits)).join(self.parts)

    @property
    def names_rank(self) -> bool:
        """Whether the path differs from rank to rank."""
        return len(self.parts) > 1
