"""What a splitter and its workers say to each other over a world of two: plain data as JSON, then the tensors.

From the splitter: ``hold`` (a part and where its weights are) and ``run`` (a chunk, for a part). From the worker:
``ready``, ``held``, ``ran`` with the output, ``raised`` with words, ``unable`` when a part cannot be held.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ms_recover.errors import InputError
from ms_recover.worlds.communicator import WorldCommunicator

_MAX_TENSORS = 1 << 16


class MessageChannel:
    """One end of the world between a splitter and a worker.

    Parameters
    ----------
    communicator : WorldCommunicator
    world : str
    peer : int
        Rank of the other end.
    """

    def __init__(self, communicator: WorldCommunicator, world: str, peer: int) -> None:
        self._communicator, self._world, self._peer = communicator, world, peer
        self._turn = asyncio.Lock()

    async def say(self, word: str, tensors: Sequence[Any] = (), **fields: Any) -> None:
        """Say something, after what is being said already.

        Raises
        ------
        BrokenWorldError
        """
        # numpy has no bfloat16: the other end has to ask for such a tensor as one of MindSpore.
        wide = [index for index, tensor in enumerate(tensors) if str(tensor.dtype).lower() == "bfloat16"]
        head = {"word": word, "tensors": len(tensors), "bfloat16": wide, "fields": fields}
        data = np.frombuffer(json.dumps(head).encode(), np.uint8)
        async with self._turn:
            await self._communicator.send(data, self._peer, world=self._world)
            for tensor in tensors:
                await self._communicator.send(tensor, self._peer, world=self._world)

    async def hear(self) -> tuple[str, Mapping[str, Any], list[Any]]:
        """Wait for what the other end says next: the word, its fields, the tensors.

        Raises
        ------
        BrokenWorldError
        InputError
            When it is nothing that can be meant.
        """
        data = await self._communicator.recv(self._peer, world=self._world)
        try:
            head = json.loads(bytes(data))
            word, count, wide, fields = head["word"], head["tensors"], set(head["bfloat16"]), head["fields"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"what the other end of world {self._world!r} says cannot be meant: {error}") from error
        if not isinstance(word, str) or not isinstance(fields, dict) or not 0 <= count <= _MAX_TENSORS:
            raise InputError(f"what the other end of world {self._world!r} says cannot be meant")
        tensors = [
            await self._communicator.recv(self._peer, world=self._world, as_tensor=index in wide)
            for index in range(count)
        ]
        return word, fields, tensors
