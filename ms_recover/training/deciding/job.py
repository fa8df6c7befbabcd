"""The training job: the rank of this process, and exchanges among all ranks."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.model.texts import list_some

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

AllGather = Callable[[Sequence[int]], list[tuple[int, ...]]]
"""Sends as many numbers as all other ranks do, and returns those of each rank; RuntimeError without an answer."""

_FRAME = 10
"""Numbers of one exchange, beside the mark, the code of the operation and their count: those of a save fit."""

_MARK = 0x6D735265
"""In front of each exchange: what a rank without it sent is of another collective, such as an update of the weights."""

_TEXT = 256
"""Numbers of the text by which ranks that do different things name these."""

_EXCHANGING = "exchanging numbers"
"""An operation without a name of its own."""

_SHARED = "_shared_by_ranks"
"""The attribute of an error that other ranks know of."""

_FAILED = "\n"
"""In the text of a rank that has failed, between what it did and the reason; no name of an operation has it."""


@dataclass(frozen=True)
class TrainingJob:
    """The ranks of a training job, as the process of one rank sees them."""

    rank: int
    size: int
    all_gather: AllGather | None = None
    """How ranks exchange numbers; None where MindSpore's communication is down, so that they cannot."""

    @property
    def connected(self) -> bool:
        """Whether ranks can exchange numbers."""
        return self.all_gather is not None

    def gather(self, numbers: Sequence[int], doing: str = _EXCHANGING, *, named: str = "") -> list[tuple[int, ...]]:
        """Send numbers to every rank, and return those of each rank, index = rank.

        Blocks until all ranks have called it, each with any count of numbers within 32 bits: the widest type that
        AllGather takes on every device. `doing` is the operation, which all ranks must have in common; messages call it
        `named` where that is given. Up to 10 numbers are one exchange of a fixed size, so that ranks that do different
        things meet in it all the same.

        Raises UsageError, the same on all ranks, where they do different things, and when there are other ranks but no
        communication; MsRecoverError where a rank has failed, see `ending_together`, and when MindSpore has waited in
        vain for a rank.
        """
        if self.size == 1:
            return [tuple(numbers)]
        try:
            return self._gather(numbers, doing, named)
        except MsRecoverError as error:  # the other ranks have it as well, or none is there
            setattr(error, _SHARED, True)
            raise

    def _gather(self, numbers: Sequence[int], doing: str, named: str) -> list[tuple[int, ...]]:
        doing, said = doing or _EXCHANGING, named or doing or _EXCHANGING
        own = [int(number) for number in numbers]
        first = own[:_FRAME]
        marked = self._sent([_MARK, _code(doing), len(own), *first, *[0] * (_FRAME - len(first))], said)
        self._check_marks([mark for mark, *_ in marked], said)
        rows = [row[1:] for row in marked]
        if len({row[0] for row in rows}) > 1:
            words = pack_text(said.encode()[: 4 * _TEXT].decode(errors="ignore"))[1:]
            sent = self._sent([*words, *[0] * (_TEXT - len(words))], said)
            texts = [unpack_text((4 * _TEXT, *row)).rstrip("\0") for row in sent]
            why = why_failed(texts)
            raise UsageError(why_apart(texts)) if why is None else MsRecoverError(f"rank {self.rank} {why}")
        counts = [row[1] for row in rows]
        rest = max(counts) - _FRAME
        more = self._sent([*own[_FRAME:], *[0] * (rest - len(own[_FRAME:]))], said) if rest > 0 else [()] * self.size
        return [(*row[2:], *end)[:count] for row, end, count in zip(rows, more, counts, strict=True)]

    def _sent(self, numbers: Sequence[int], said: str) -> list[tuple[int, ...]]:
        """Send as many numbers as all other ranks do, and return those of each rank."""
        if self.all_gather is None:
            raise UsageError(
                f"rank {self.rank} is one of {self.size}, but cannot communicate with the others: "
                "call mindspore.communication.init() first"
            )
        try:
            return self.all_gather(numbers)
        except RuntimeError as error:
            raise MsRecoverError(
                f"rank {self.rank}: another rank is gone, or does not call this ({said}); its log says why, or its "
                f"program does not do it on all ranks ({error})"
            ) from error

    def _check_marks(self, marks: Sequence[int], said: str) -> None:
        """Raise MsRecoverError where a rank sent something else; MindSpore gives what it is, of whatever operation."""
        others = [rank for rank, mark in enumerate(marks) if mark != _MARK]
        if others:
            raise MsRecoverError(
                f"rank {self.rank}: rank(s) {list_some(others)} do not call this ({said}): what they sent is of "
                f"another operation, such as a step of the training; have all {self.size} ranks call this"
            )

    def holds_everywhere(self, fact: bool, doing: str = _EXCHANGING, *, named: str = "") -> bool:
        """Whether a fact holds on every rank; all ranks call this. A rank without communication goes by its own."""
        return all(held for (held,) in self.gather([fact], doing, named=named)) if self.connected else fact

    def gather_text(self, text: str, doing: str = _EXCHANGING) -> list[str]:
        """Send a text to every rank, and return that of each rank, index = rank; as `gather`."""
        return [unpack_text(row) for row in self.gather(pack_text(text), doing)]

    def gather_unequal(self, text: str, doing: str) -> list[str]:
        """Send a text to every rank as `gather_text` does; empty where all are equal, which their digests show."""
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if len(set(self.gather(struct.unpack("<4i", digest), doing))) == 1:
            return []
        return self.gather_text(text, doing)

    @contextmanager
    def ending_together(self, what: str) -> Iterator[None]:
        """Have an error within, where nothing is exchanged, end every rank and not this one alone.

        The others learn `what` has failed, and why, in the exchange that they come to next, whichever it is. Where
        nothing fails, nothing is exchanged; nor is an error twice, or one that comes from an exchange.
        """
        try:
            yield
        except Exception as error:
            if self.size > 1 and self.connected and not _is_shared(error):
                setattr(error, _SHARED, True)
                reason = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
                _log.error("rank %d: %s failed: %s", self.rank, what, reason)  # at once: the others may be long
                with suppress(MsRecoverError):  # the failure of this rank is more specific
                    self.gather([], f"{what}{_FAILED}{reason}")
            raise

    def run_together(self, what: str, work: Callable[[], _T]) -> _T:
        """Run `work`, which messages call `what`, on every rank; if it fails on one, it fails on all.

        Where it fails, its own error is raised; on the ranks where it succeeded, MsRecoverError with that reason.
        """
        with self.ending_together(what):
            result = work()
        self.gather([], what)
        return result

    def run_connected(self, what: str, work: Callable[[], _T]) -> _T:
        """Run `work` as `run_together` does; a rank without communication runs it by itself."""
        return self.run_together(what, work) if self.connected else work()


def _is_shared(error: BaseException | None) -> bool:
    """Whether the other ranks know of an error, or of one that it was raised from."""
    while error is not None:
        if getattr(error, _SHARED, False):
            return True
        error = error.__cause__ or error.__context__
    return False


def why_failed(doings: Sequence[str]) -> str | None:
    """Return why a rank stops where others have failed, by what each of them does, index = rank; None where none has.

    See `TrainingJob.ending_together`.
    """
    by_text: dict[str, list[int]] = {}
    for rank, doing in enumerate(doings):
        if _FAILED in doing:
            by_text.setdefault(doing, []).append(rank)
    if not by_text:
        return None
    parts = []
    for text, ranks in by_text.items():
        what, _, reason = text.partition(_FAILED)
        parts.append(f"{what} failed on rank(s) {list_some(ranks)}: {reason}")
    return f"stops because {list_some(parts, 4, separator='; ')}"


def why_apart(doings: Sequence[str]) -> str:
    """Return why ranks cannot go on, by what each of them does, index = rank."""
    by_doing: dict[str, list[int]] = {}
    for rank, doing in enumerate(doings):
        by_doing.setdefault(doing, []).append(rank)
    parts = (
        f"{'rank' if len(ranks) == 1 else 'ranks'} {list_some(ranks)} {'is' if len(ranks) == 1 else 'are'} {doing}"
        for doing, ranks in by_doing.items()
    )
    return (
        f"the ranks are not at the same place of the program: {list_some(parts)}; have all {len(doings)} ranks resume "
        "and save together, at the same steps and with the same arguments"
    )


def pack_text(text: str) -> tuple[int, ...]:
    """Return a text as numbers for a gather: how many bytes, and these, four to a number."""
    data = text.encode()
    padded = data.ljust(-(-len(data) // 4) * 4, b"\0")
    return (len(data), *struct.unpack(f"<{len(padded) // 4}i", padded))


def unpack_text(numbers: Sequence[int]) -> str:
    """Return the text of numbers; the inverse of `pack_text`."""
    size, *words = numbers
    return struct.pack(f"<{len(words)}i", *words)[:size].decode()


def _code(doing: str) -> int:
    return int.from_bytes(hashlib.blake2b(doing.encode(), digest_size=4).digest(), "big", signed=True)
