"""Messages between a splitter and a worker, over a world of two: plain data as JSON, then the tensors.

From the splitter: ``hold`` (a part and the place of its weights) and ``run`` (a chunk, for a part). From the worker:
``ready``, ``held``, ``ran`` with the output, ``raised`` with a description, ``unable`` when a part cannot be held.

Orders from the splitter have a number, an ``order``: ``make`` a part that has no weights yet, tell the ``names`` of the
values in its slice, ``write`` that, and in training ``train`` with an ``action``, see
`ms_recover.splitting.training.trained_part.answer`. The answer is ``done`` with the result, or ``failed`` with a
description.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from ms_recover.errors import InputError
from ms_recover.worlds.communicator import WorldCommunicator

OrderKind = Literal["make", "names", "write", "train"]
MessageKind = Literal[OrderKind, "hold", "run", "ready", "held", "ran", "raised", "unable", "done", "failed"]
_KINDS = frozenset(get_args(MessageKind))
_MAX_TENSORS = 1 << 16


@dataclass(frozen=True)
class Message:
    """A received message; the tensors are numpy arrays, those of type bfloat16 ``mindspore.Tensor``."""

    kind: MessageKind
    fields: Mapping[str, Any]
    tensors: list[Any]


class MessageChannel:
    """One end of the world between a splitter and a worker; `peer` is the rank of the other end."""

    def __init__(self, communicator: WorldCommunicator, world: str, peer: int) -> None:
        self._communicator = communicator
        self._world = world
        self._peer = peer
        self._turn = asyncio.Lock()

    async def send(self, kind: MessageKind, tensors: Sequence[Any] = (), **fields: Any) -> None:
        """Send a message, after those that are being sent already."""
        # numpy has no bfloat16: the other end has to receive such a tensor as one of MindSpore
        wide = [index for index, tensor in enumerate(tensors) if str(tensor.dtype).lower() == "bfloat16"]
        head = {"kind": kind, "tensors": len(tensors), "bfloat16": wide, "fields": fields}
        data = np.frombuffer(json.dumps(head).encode(), np.uint8)
        async with self._turn:
            await self._communicator.send(data, self._peer, world=self._world)
            for tensor in tensors:
                await self._communicator.send(tensor, self._peer, world=self._world)

    async def receive(self) -> Message:
        """Wait for the next message of the other end; an invalid one raises InputError."""
        data = await self._communicator.recv(self._peer, world=self._world)
        try:
            head = json.loads(bytes(data))
            kind, count, wide, fields = head["kind"], head["tensors"], set(head["bfloat16"]), head["fields"]
            if kind not in _KINDS or not isinstance(fields, dict):
                raise ValueError(f"kind {kind!r:.40}")
            if type(count) is not int or not 0 <= count <= _MAX_TENSORS:
                raise ValueError(f"{count!r:.40} tensors")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"invalid message over world {self._world!r}: {error}") from error
        tensors = [
            await self._communicator.recv(self._peer, world=self._world, as_tensor=index in wide)
            for index in range(count)
        ]
        return Message(cast(MessageKind, kind), fields, tensors)
