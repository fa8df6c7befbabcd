"""Orders to workers, and their answers."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from ms_recover.splitting.protocol import Message


class DeviceGoneError(Exception):
    """The device was lost before it answered."""

    def __init__(self, device: int) -> None:
        super().__init__(f"device {device} is lost")
        self.device = device


class OrderFailedError(Exception):
    """A part raised on an order."""

    def __init__(self, device: int, part: int, words: str) -> None:
        super().__init__(words)
        self.device = device
        self.part = part
        self.words = words


@dataclass(frozen=True, eq=False)
class _Open:
    device: int
    part: int
    answer: asyncio.Future[Message]


class Orders:
    """The orders that are not answered yet."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, _Open] = {}

    def add(self, device: int, part: int) -> tuple[int, asyncio.Future[Message]]:
        """Return the number of a new order, and its answer."""
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait any more
        self._open[number] = _Open(device, part, answer)
        return number, answer

    def answered(self, number: int, message: Message) -> None:
        """Handle the answer to an order."""
        found = self._open.pop(number, None)
        if found is None or found.answer.done():
            return
        if message.kind == "failed":
            found.answer.set_exception(OrderFailedError(found.device, found.part, message.fields["words"]))
        else:
            found.answer.set_result(message)

    def at(self, device: int) -> int:
        """Return the number of open orders of a device."""
        return sum(1 for order in self._open.values() if order.device == device)

    def close(self) -> None:
        """Give up all orders."""
        for order in self._open.values():
            order.answer.cancel()
        self._open.clear()

    def lost(self, device: int) -> None:
        """Fail the orders of a device that is lost."""
        for number in [number for number, order in self._open.items() if order.device == device]:
            order = self._open.pop(number)
            if not order.answer.done():
                order.answer.set_exception(DeviceGoneError(device))
