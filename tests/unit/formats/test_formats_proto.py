"""The protobuf messages: the description is that of the .proto, and both implementations work."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ms_recover.formats import proto

FOLDER = Path(proto.__file__).parent
TYPES = {"int64": 3, "int32": 5, "string": 9, "message": 11, "uint32": 13}
LABELS = {"required": 2, "repeated": 3}

ROUND_TRIP = """
import sys
from pathlib import Path
from google.protobuf.internal import api_implementation
from ms_recover.errors import FormatError
from ms_recover.formats.group_info import encode_group_info, read_group_info
from ms_recover.formats.strategy import read_strategy
for path in sys.argv[1:]:
    if path.endswith(".pb"):
        info = read_group_info(path)
        assert encode_group_info(info) == Path(path).read_bytes(), path
        try:
            read_group_info(path, owner=999)
        except FormatError:
            pass
        else:
            raise AssertionError(path)
    else:
        assert read_strategy(path).layouts, path
print(api_implementation.Type())
"""


def described() -> dict[str, list[tuple[str, int, int, int, str]]]:
    """Messages and fields of the .proto text, in the numbers of descriptor.proto."""
    text = re.sub(r"//.*", "", (FOLDER / "node_strategy.proto").read_text())
    field = re.compile(r"(required|repeated) (\w+) (\w+) = (\d+);")
    messages = {}
    for name, body in re.findall(r"message (\w+) \{([^}]*)\}", text):
        messages[name] = [
            (
                name_,
                int(number),
                LABELS[label],
                TYPES.get(kind, TYPES["message"]),
                "" if kind in TYPES else f".ms_recover.formats.{kind}",
            )
            for label, kind, name_, number in field.findall(body)
        ]
        assert len(messages[name]) == body.count(";"), name
    return messages


def test_the_description_is_that_of_the_proto_text() -> None:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto.FromString(proto.description())
    assert (file.name, file.package) == ("node_strategy.proto", "ms_recover.formats")
    assert {
        message.name: [(field.name, field.number, field.label, field.type, field.type_name) for field in message.field]
        for message in file.message_type
    } == described()


@pytest.mark.mindspore
def test_the_description_is_that_of_mindspore() -> None:
    spec = importlib.util.find_spec("mindspore")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("mindspore is not installed")
    from google.protobuf import descriptor_pb2

    text = (Path(spec.submodule_search_locations[0]) / "train" / "node_strategy_pb2.py").read_text()
    literal = re.search(r"(?:AddSerializedFile\(|serialized_pb=)(b'.*')", text)  # until MindSpore 2.9 the latter
    assert literal is not None
    theirs = descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(literal[1]))
    ours = descriptor_pb2.FileDescriptorProto.FromString(proto.description())
    for file in (theirs, ours):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
                field.type_name = field.type_name.rpartition(".")[2]
    assert list(theirs.message_type) == list(ours.message_type)


@pytest.mark.processes
@pytest.mark.parametrize("implementation", ["python", "upb"])
def test_both_implementations_of_the_installed_protobuf(data: Path, implementation: str) -> None:
    files = [str(path) for path in sorted((data / "fixtures").glob("*/ckpt_dir[05]/*")) if "_77" not in path.name]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ROUND_TRIP, *files],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == implementation


def test_messages_do_not_enter_the_default_pool() -> None:
    from google.protobuf import descriptor_pool

    proto.message_class("ParallelGroupMap")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("ms_recover.formats.ParallelGroupMap")
    with pytest.raises(KeyError):
        proto.message_class("NoSuchMessage")
