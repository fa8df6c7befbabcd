"""Real files, and a small encoder for files that nobody's writer would make."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
WRITER = Path(__file__).with_name("write_real_files.py")


class Wire:
    """Encode protobuf by hand, also wrongly."""

    @staticmethod
    def varint(value: int) -> bytes:
        value &= (1 << 64) - 1
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    @classmethod
    def message(cls, number: int, payload: bytes) -> bytes:
        return cls.varint(number << 3 | 2) + cls.varint(len(payload)) + payload

    @classmethod
    def number(cls, number: int, value: int) -> bytes:
        return cls.varint(number << 3) + cls.varint(value)

    @classmethod
    def tensor(cls, dims: tuple[int, ...], dtype: str, content: bytes) -> bytes:
        head = b"".join(cls.number(1, dim) for dim in dims)
        return head + cls.message(2, dtype.encode()) + cls.message(3, content)

    @classmethod
    def record(
        cls, name: str | bytes, dims: tuple[int, ...] = (2,), dtype: str = "Float32", content: bytes = b"abcdefgh"
    ) -> bytes:
        tag = name.encode() if isinstance(name, str) else name
        return cls.message(1, cls.message(1, tag) + cls.message(2, cls.tensor(dims, dtype, content)))

    @classmethod
    def map_record(cls, name: str, *tensors: bytes) -> bytes:
        inner = b"".join(cls.message(1, tensor) for tensor in tensors)
        return cls.message(1, cls.message(1, name.encode()) + cls.message(3, inner))

    @classmethod
    def ranks(cls, *ranks: int) -> bytes:
        return b"".join(cls.number(1, rank) for rank in ranks)


@pytest.fixture(scope="session")
def wire() -> type[Wire]:
    return Wire


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of committed files."""
    return DATA


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes into a file of the test's own folder."""

    def write(content: bytes, name: str = "net-1_1.ckpt") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="session")
def written_now(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Slices that the installed MindSpore writes, and what it reads back from them.

    The folder also holds two group files of ours; the oracle says what MindSpore reads from these.
    """
    if importlib.util.find_spec("mindspore") is None:
        pytest.skip("mindspore is not installed")
    from ms_recover.execution.rank_lists import write_group_info
    from ms_recover.formats.group_info import encode_group_info
    from ms_recover.model.groups import GroupInfo, RankGroup

    folder = tmp_path_factory.mktemp("written_now")
    write_group_info(folder / "restore_list.pb", [5, 1])
    (folder / "full.pb").write_bytes(encode_group_info(GroupInfo((0, 300), (RankGroup("2-77", (0, 300)),))))
    command = [sys.executable, str(WRITER), ".", "restore_list.pb", "full.pb"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, json.loads((folder / "oracle.json").read_text())
