"""Slices that workers write: parts go from a worker's memory to the disk, and not through the splitter's process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ms_recover.model.manifest import Digests
from ms_recover.splitting.protocol import Message
from ms_recover.splitting.slices import SliceStore


class PartFiles:
    """Has devices make parts that are in no slice yet, and write slices of parts; its methods run in the event loop.

    `part_fields` are what a worker has to know of each part; `order` sends an order to a device, see `Devices.order`,
    which also says what all methods raise.
    """

    def __init__(
        self,
        store: SliceStore,
        part_fields: Sequence[Mapping[str, Any]],
        order: Callable[..., Awaitable[Message]],
    ) -> None:
        self._store = store
        self._part_fields = part_fields
        self._order = order
        self.making = [asyncio.Lock() for _ in part_fields]
        """For each part held while a device makes it."""
        self._receiving = asyncio.Lock()

    async def make(self, device: int, part: int, *, remote: bool) -> None:
        """Have a device make a part and write the slices of its first weights."""
        made = await self._order(device, part, kind="make", device=device, **self._part_fields[part])
        await self._save(device, part, made.fields["names"], 0, remote=remote)

    async def save(self, device: int, part: int, step: int) -> None:
        """Have a device of this host write the slices of a part behind so many trained steps."""
        held = await self._order(device, part, kind="names", **self._part_fields[part])
        await self._save(device, part, held.fields["names"], step, remote=False)

    async def _save(self, device: int, part: int, names: Sequence[str], step: int, *, remote: bool) -> None:
        loop = asyncio.get_running_loop()
        writing = self._receive if remote else self._write

        def write(path: str) -> Digests:
            return asyncio.run_coroutine_threadsafe(writing(device, part, path), loop).result()

        await asyncio.to_thread(self._store.save, part, write, names, step)

    async def _write(self, device: int, part: int, path: str) -> Digests:
        """Have a device write a part's slice to a new file; return the digests of what it wrote."""
        fields = (await self._order(device, part, kind="write", path=path, **self._part_fields[part])).fields
        return Digests(file=fields["file"], parameters=tuple(fields["parameters"]))

    async def _receive(self, device: int, part: int, path: str) -> Digests:
        """Write the slice of a part that a device of another host sends; one part at a time is in memory."""
        from ms_recover.splitting import values
        from ms_recover.tensors.arrays import to_tensor

        async with self._receiving:
            answer = await self._order(device, part, kind="write", **self._part_fields[part])
            tensors = map(to_tensor, answer.tensors)
            held = dict(zip(answer.fields["names"], tensors, strict=True))
            return await asyncio.to_thread(values.write_values, held, path)
