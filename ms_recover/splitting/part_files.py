"""Slices that workers write: parts go from a worker's memory to the disk, and not through the splitter's process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ms_recover.errors import DeviceLostError, MsRecoverError
from ms_recover.model.manifest import Digests
from ms_recover.splitting.process import Worker
from ms_recover.splitting.protocol import Message, RequestKind
from ms_recover.splitting.slices import SliceStore


class RequestRefusedError(MsRecoverError):
    """A worker could not do what it was asked for."""


class PartFiles:
    """Has workers make parts that are in no slice yet, and write slices of parts; its methods run in the event loop.

    `part_fields` are what a worker has to know of each part.
    """

    def __init__(self, store: SliceStore, part_fields: Sequence[Mapping[str, Any]]) -> None:
        self._store = store
        self._part_fields = part_fields
        self._numbers = itertools.count()
        self._requests: dict[int, tuple[Worker, asyncio.Future[Message]]] = {}
        self.making = [asyncio.Lock() for _ in part_fields]
        """For each part held while a worker makes it."""
        self._receiving = asyncio.Lock()

    async def make(self, worker: Worker, part: int, device: int) -> None:
        """Have a worker make a part and write the slices of its first weights."""
        made = await self._ask(worker, "make", part, device=device)
        await self.save(worker, part, made.fields["names"], 0)

    async def save(self, worker: Worker, part: int, expected: Sequence[str], step: int) -> None:
        """Have a worker write the slices of a part behind so many trained steps."""
        loop = asyncio.get_running_loop()

        def write(path: str) -> Digests | None:
            return asyncio.run_coroutine_threadsafe(self.write(worker, part, path), loop).result()

        await asyncio.to_thread(self._store.save, part, write, expected, step)

    async def write(self, worker: Worker, part: int, path: str) -> Digests | None:
        """Have a worker write a part's slice to a new file; return its digests, if the worker knows them."""
        if not worker.remote:
            fields = (await self._ask(worker, "write", part, path=path)).fields
            return Digests(file=fields["file"], parameters=tuple(fields["parameters"]))
        async with self._receiving:  # one part at a time in the memory of this process
            return await self._receive(worker, part, path)

    async def _receive(self, worker: Worker, part: int, path: str) -> Digests:
        from ms_recover.splitting import batches, values

        answer = await self._ask(worker, "write", part)
        tensors = map(batches.to_tensor, answer.tensors)
        held = dict(zip(answer.fields["names"], tensors, strict=True))
        return await asyncio.to_thread(values.write_values, held, path)

    async def _ask(self, worker: Worker, kind: RequestKind, part: int, **fields: Any) -> Message:
        """Send a request and wait for its answer; what `forget` and `refused` say of it is raised."""
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[number] = worker, answer
        try:
            await worker.channel.send(kind, part=part, request=number, **self._part_fields[part], **fields)
            return await answer
        finally:
            del self._requests[number]

    def answered(self, worker: Worker, message: Message) -> None:
        """Handle the answer of a worker to a request, or its refusal."""
        asked, answer = self._requests.get(message.fields.get("request", -1), (None, None))
        if asked is not worker or answer is None or answer.done():
            return
        if message.kind == "answered":
            answer.set_result(message)
        else:
            answer.set_exception(RequestRefusedError(str(message.fields.get("words"))))

    def forget(self, worker: Worker) -> None:
        """End all requests to a worker that is lost."""
        for asked, answer in self._requests.values():
            if asked is worker and not answer.done():
                answer.set_exception(DeviceLostError("its process was lost meanwhile", cause="closed"))

    def close(self) -> None:
        """End all requests."""
        for _, answer in self._requests.values():
            answer.cancel()
