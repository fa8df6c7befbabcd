"""The documents of iterations as JSON between nodes, and back: as they lie in files, compressed, equal ones once."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from ms_recover.errors import FormatError
from ms_recover.file_names import COMMON_NAME, ITERATION_CONTAINERS, METADATA_NAME, TRACKER_NAME, named_iteration
from ms_recover.formats.codec import Fields, Meta, Size
from ms_recover.formats.documents import decode_document
from ms_recover.model.actions import FileState
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.steps import Step
from ms_recover.scanning.sent_paths import check_below
from ms_recover.stores.paths import join

MOST_BYTES = 512 << 20
"""Longest document that is sent, in bytes before it is compressed."""
_SHOWN = 500
_T = TypeVar("_T")


class DocumentFields(Fields):
    """A document; `text` is its number among those that are sent, None for one that is not there or damaged."""

    path: str
    state: tuple[Size, int] | None
    text: Annotated[int, Meta(ge=0)] | None
    problem: str | None


class IterationFields(Fields):
    """The directory of an iteration."""

    iteration: Annotated[int, Meta(ge=0, lt=10**18)]
    directory: str
    metadata: DocumentFields
    common: DocumentFields
    global_step: int | None


class SentDocuments(Fields):
    """The documents of a tree, and their texts, each compressed by zlib and in base 64."""

    iterations: tuple[IterationFields, ...] = ()
    tracker: DocumentFields | None = None
    texts: tuple[str, ...] = ()


def send_documents(
    iterations: tuple[Iteration, ...], tracker: Document[int] | None, contents: Mapping[str, bytes]
) -> SentDocuments:
    """Return the documents of a tree; `contents` has the bytes of those that are sent, by path."""
    numbers: dict[bytes, int] = {}

    def fields(document: Document[Any]) -> DocumentFields:
        data = contents.get(document.path) if document.value is not None else None
        state = None if document.state is None else (document.state.bytes, document.state.mtime_ns)
        problem = document.problem
        if document.value is not None and data is None:
            problem = "could not be sent by the node that has it: it is too large, or gone"
        text = None if data is None else numbers.setdefault(data, len(numbers))
        return DocumentFields(document.path, state, text, problem)

    rows = tuple(
        IterationFields(one.step.step, one.directory, fields(one.metadata), fields(one.common), one.global_step)
        for one in iterations
    )
    sent = None if tracker is None else fields(tracker)
    return SentDocuments(rows, sent, tuple(base64.b64encode(zlib.compress(data, 1)).decode() for data in numbers))


def receive_documents(sent: SentDocuments) -> tuple[tuple[Iteration, ...], Document[int] | None]:
    """Return the documents of another node's tree; those that cannot be decoded have a problem.

    Raises
    ------
    ValueError
        When they are no possible documents.
    """
    decoded: dict[tuple[int, str], ShardMetadata | CommonInfo | int | str] = {}

    def read(fields: DocumentFields, kind: type[_T], path: str) -> Document[_T]:
        if check_below(fields.path) != path:
            raise ValueError(f"the document {fields.path} is not at its place, {path}")
        state = None if fields.state is None else FileState(*fields.state)
        if fields.text is None:
            return Document(fields.path, state, None, fields.problem)
        key = (fields.text, fields.path.rpartition("/")[2])
        if key not in decoded:
            try:
                decoded[key] = decode_document(fields.path, _unpack(sent.texts, fields.text))
            except FormatError as error:
                decoded[key] = str(error)
        value = decoded[key]
        if isinstance(value, kind):
            return Document(fields.path, state, value)
        return Document(fields.path, state, None, value if isinstance(value, str) else "is a document of another kind")

    iterations = tuple(
        Iteration(
            step=Step.iteration(one.iteration),
            directory=one.directory,
            metadata=read(one.metadata, ShardMetadata, _in_directory(one, METADATA_NAME)),
            common=read(one.common, CommonInfo, _in_directory(one, COMMON_NAME)),
            global_step=one.global_step,
        )
        for one in sent.iterations
    )
    if sent.tracker is None:
        return iterations, None
    containers = {join(container, TRACKER_NAME) for container in ITERATION_CONTAINERS}
    if sent.tracker.path not in containers:
        raise ValueError(f"the document {sent.tracker.path[:_SHOWN]!r} is not at its place")
    return iterations, read(sent.tracker, int, sent.tracker.path)


def _in_directory(fields: IterationFields, name: str) -> str:
    """Return the path of a document in the directory of its iteration; a ValueError when that is named like another."""
    last = fields.directory.rpartition("/")[2]
    if fields.directory and named_iteration(last) != fields.iteration:
        raise ValueError(f"iteration {fields.iteration} does not lie in {fields.directory[:_SHOWN]!r}")
    return check_below(join(fields.directory, name))


def _unpack(texts: tuple[str, ...], number: int) -> bytes:
    if number >= len(texts):
        raise ValueError("a document is listed and not sent")
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(texts[number], validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a document cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise ValueError("a document is cut off, or too large")
    return data
