"""MindSpore's ``node_strategy`` messages, for every protobuf from 3.13 to 7.

The classes are made from ``node_strategy.proto`` in a pool of our own: nothing collides with the messages that
MindSpore registers, and no generated module is tied to one release of protobuf.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

from ms_recover.errors import FormatError
from ms_recover.formats.wire import encode_field

_PACKAGE = "ms_recover.formats"
_TEXT = Path(__file__).with_name("node_strategy.proto")
_MESSAGE = re.compile(r"message (\w+) \{([^}]*)\}")
_FIELD = re.compile(r"(required|repeated) (\w+) (\w+) = (\d+);")
_LABELS = {"required": 2, "repeated": 3}
_TYPES = {"int64": 3, "int32": 5, "string": 9, "uint32": 13}
_MESSAGE_TYPE = 11


@cache
def message_class(name: str) -> Any:
    """Return the class of a message of ``node_strategy.proto``, for example ``"ParallelGroupMap"``."""
    from google.protobuf import message_factory

    factory: Any = message_factory
    pool = _pool()
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    if hasattr(factory, "GetMessageClass"):  # since 4.22
        return factory.GetMessageClass(descriptor)
    return factory.MessageFactory(pool).GetPrototype(descriptor)


def parse(name: str, data: bytes) -> Any:
    """Decode a message, and accept nothing but what MindSpore's writer would have made of its contents.

    protobuf itself takes unknown fields, absent required fields and numbers out of range in silence, and each release
    and implementation answers differently. Hence the known contents are encoded again and compared.

    Raises
    ------
    FormatError
        When the data are no such message. The text says why and names no file.
    """
    from google.protobuf.message import Error

    message = message_class(name)()
    try:
        message.MergeFromString(data)
        complete = message.IsInitialized()
        same = _known(message).SerializePartialToString() == data
    except (Error, ValueError, TypeError, LookupError, RecursionError, struct.error) as error:
        raise FormatError(f"its bytes cannot be decoded ({type(error).__name__}), it is cut or damaged") from error
    if not complete:
        raise FormatError("a required field is missing, it is cut or damaged")
    if not same:
        raise FormatError("it holds bytes that MindSpore does not write there, it is damaged or of another kind")
    return message


def _known(message: Any) -> Any:
    """Return a copy without unknown fields (``DiscardUnknownFields`` leaves stale sizes in old releases)."""
    copy = type(message)()
    for field, value in message.ListFields():
        if isinstance(value, (int, str, bytes)):  # bytes: text that is not UTF-8, which setattr refuses
            setattr(copy, field.name, value)
        elif hasattr(value, "ListFields"):
            inner = getattr(copy, field.name)
            inner.SetInParent()
            inner.MergeFrom(_known(value))
        else:
            target = getattr(copy, field.name)
            if hasattr(value[0], "ListFields"):
                for item in value:
                    target.add().MergeFrom(_known(item))
            else:
                target.extend(value)
    return copy


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(description())
    return pool


def description() -> bytes:
    """Return ``node_strategy.proto`` as a serialized ``FileDescriptorProto``."""
    file = encode_field(1, _TEXT.name.encode()) + encode_field(2, _PACKAGE.encode())
    for message, body in _MESSAGE.findall(_TEXT.read_text()):
        fields = encode_field(1, message.encode())
        for label, kind, name, number in _FIELD.findall(body):
            field = encode_field(1, name.encode()) + encode_field(3, int(number)) + encode_field(4, _LABELS[label])
            if kind in _TYPES:
                field += encode_field(5, _TYPES[kind])
            else:
                field += encode_field(5, _MESSAGE_TYPE) + encode_field(6, f".{_PACKAGE}.{kind}".encode())
            fields += encode_field(2, field)
        file += encode_field(4, fields)
    return file
