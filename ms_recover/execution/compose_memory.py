"""Put parameters together in memory, out of pieces of slices that are each compared with their digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash

from ms_recover.execution.bad_source import BadSourceError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.model.compose import ComposeAction, ComposedParameter
from ms_recover.model.slices import Parameter
from ms_recover.stores.digest import name_digest


@dataclass(frozen=True, slots=True, eq=False)
class ComposedValue:
    """The contents of one parameter, and their digest as a manifest states it."""

    parameter: Parameter
    data: bytearray
    digest: str


def compose_values(
    action: ComposeAction, context: ActionContext, names: Mapping[str, str], dropped: list[str]
) -> Iterator[ComposedValue]:
    """Yield the parameters of an action, in its order; nothing is written.

    Parameters
    ----------
    action, context, names
        As for `PieceReader`.
    dropped : list of str
        Gets the sources that proved bad, and why; others with the same contents took their place.

    Raises
    ------
    VerificationError
        When every source of a piece has other bytes than its digest says, or changed since the plan.
    MsRecoverError
        When no source of a piece can be read.
    """
    with PieceReader(action, context, names) as reader:
        for item in action.parameters:
            while True:
                try:
                    yield _compose(item, reader)
                    break
                except BadSourceError as failure:
                    reader.drop(failure)
        reader.check_unchanged()
        dropped += reader.dropped


def _compose(item: ComposedParameter, reader: PieceReader) -> ComposedValue:
    data, digest, at = bytearray(item.parameter.nbytes), xxhash.xxh3_128(), 0
    windows = reader.contents(item)
    for window in windows:
        data[at : at + len(window)] = window
        digest.update(window)
        at += len(window)
    reader.check(item, name_digest(digest))
    return ComposedValue(item.parameter, data, name_digest(digest))
