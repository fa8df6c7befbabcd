"""Damaged slices: each kind that MindSpore loads, crashes on or refuses is named here, and nothing raises."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.errors import FormatError, MissingInputError, StorageError
from ms_recover.formats import records
from ms_recover.formats.ckpt import parse_header
from ms_recover.formats.header import find_problem, read_header
from ms_recover.model.slices import SliceHeader

Put = Callable[..., Path]
A_TENSOR = b"\x08\x02\x12\x07Float32\x1a\x08abcdefgh"


def only_problem(header: SliceHeader) -> str:
    assert len(header.problems) == 1, header.problems
    return header.problems[0]


# --- the rows of "load_checkpoint on bad input" ---------------------------------------------------------------------


def test_cut_inside_contents(wire: Any, put: Put) -> None:
    whole = wire.record("first") + wire.record("second", content=b"12345678")
    header = read_header(put(whole[:-3]))
    problem = only_problem(header)
    assert f"record 2 ('second'): contents should end at offset {len(whole)}, the file ends 3 bytes before" in problem
    assert [parameter.name for parameter in header.parameters] == ["first"]


def test_cut_inside_the_first_record(wire: Any, put: Put) -> None:
    for end in range(1, len(wire.record("first"))):
        header = read_header(put(wire.record("first")[:end]))
        assert len(header.problems) == 1, end
        assert header.kind == "ckpt"


@pytest.mark.parametrize("junk", [b"\x00" * 64, b"junk", b"\xff" * 40, b"\x0a", b"\n\x02hi"])
def test_trailing_junk(wire: Any, put: Put, junk: bytes) -> None:
    start = len(wire.record("a"))
    header = read_header(put(wire.record("a") + junk))
    assert re.match(rf"offset {start}\d*: record 2|offset \d+: record 2", only_problem(header))
    assert [parameter.name for parameter in header.parameters] == ["a"]


def test_all_zeros(put: Put) -> None:
    assert "not a slice: the file is zeros where it should begin" in only_problem(read_header(put(bytes(5000))))


def test_zeros_behind_sound_records(wire: Any, put: Put) -> None:
    problem = only_problem(read_header(put(wire.record("a") + bytes(700))))
    assert "zeros where a record should begin, 700 bytes before the end" in problem


def test_garbage(put: Put) -> None:
    problem = only_problem(read_header(put(bytes(range(255, 0, -1)))))
    assert "no record begins here" in problem


def test_cut_at_a_record_boundary(data: Path, put: Put) -> None:
    path = data / "formats" / "types.ckpt"
    names = [parameter.name for parameter in read_header(path).parameters]
    header = read_header(path)
    ends = [ranges[-1].end for ranges in header.contents]
    for kept, end in enumerate(ends[:-1], 1):
        cut = put(path.read_bytes()[:end])
        assert read_header(cut).problems == ()  # nothing tells, which is why names are expected
        problem = only_problem(read_header(cut, expected=names))
        assert problem.startswith(f"{len(names) - kept} of {len(names)} expected parameters are missing")
        assert sorted(names[kept:])[0] in problem


def test_the_list_of_missing_names_is_bounded(wire: Any, put: Put) -> None:
    problem = only_problem(read_header(put(wire.record("a")), expected={f"{i:0200}" for i in range(10_000)}))
    assert problem.startswith("10000 of 10000")
    assert len(problem) < 1200


def test_cut_between_two_pieces(data: Path, put: Put) -> None:
    path = data / "formats" / "pieces.ckpt"
    first, second, third = read_header(path).contents[0]
    for end, have in ((first.end, 1024), (second.end, 2048)):
        header = read_header(put(path.read_bytes()[:end]))
        problem = only_problem(header)
        assert problem.startswith(f"offset 0: 'w0': contents have {have} bytes, Float32 [40, 16] takes 2560")
        assert header.parameters[0].nbytes == have
    assert read_header(put(path.read_bytes()[: third.end])).problems == ()


def test_damaged_contents_need_the_crc(data: Path, put: Put) -> None:
    for name, recognised in (("pieces_crc", True), ("pieces", False)):
        whole = bytearray((data / "formats" / f"{name}.ckpt").read_bytes())
        whole[700] ^= 4
        path = put(bytes(whole))
        header = read_header(path)
        assert header.problems == ()
        problem = find_problem(path, header)
        assert (problem is not None and "bytes have changed" in problem) is recognised
        whole[500:900] = bytes(400)
        path.write_bytes(bytes(whole))
        assert (find_problem(path, read_header(path)) is not None) is recognised
        assert (find_problem(path, read_header(path)) is not None) is recognised
        assert find_problem(path, read_header(path), crc=False) is None


def test_structure_is_judged_before_contents(wire: Any, put: Put) -> None:
    path = put(wire.record("a") + b"junk")
    header = read_header(path)
    path.unlink()  # contents are not even looked at
    assert find_problem(path, header) == only_problem(header)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_the_first_byte_of_a_record(wire: Any, put: Put, bit: int) -> None:
    records_ = [wire.record("a"), wire.record("b"), wire.record("c")]
    whole = bytearray(b"".join(records_))
    whole[len(records_[0])] ^= 1 << bit
    header = read_header(put(bytes(whole)))
    assert only_problem(header).startswith(f"offset {len(records_[0])}: record 2: no record begins here")
    assert [parameter.name for parameter in header.parameters] == ["a"]


def test_contents_shorter_than_dims(wire: Any, put: Put) -> None:
    header = read_header(put(wire.record("a", (3,)) + wire.record("b")))
    assert "'a': contents have 8 bytes, Float32 [3] takes 12" in only_problem(header)
    assert [parameter.name for parameter in header.parameters] == ["a", "b"]


def test_contents_longer_than_dims(wire: Any, put: Put) -> None:
    problem = only_problem(read_header(put(wire.record("a", (1,)) + wire.record("b"))))
    assert "'a': contents have 8 bytes, Float32 [1] takes 4" in problem
    assert "occurs twice" in problem


def test_a_name_twice_in_a_row(wire: Any, put: Put) -> None:
    problem = only_problem(read_header(put(wire.record("a") * 2)))
    assert "contents have 16 bytes, Float32 [2] takes 8" in problem


def test_a_name_twice_apart(wire: Any, put: Put) -> None:
    whole = wire.record("a") + wire.record("b") + wire.record("a")
    header = read_header(put(whole))
    assert only_problem(header).endswith("'a': the parameter occurs a second time")
    assert len(header.parameters) == 3


def test_empty_file(put: Put) -> None:
    assert only_problem(read_header(put(b""))) == "not a slice: the file is empty"


def test_nothing_but_a_trailer(put: Put) -> None:
    header = read_header(put(b"crc_num" + bytes(10)))
    assert only_problem(header) == "no record in the file"


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.ckpt", tmp_path / "no" / "no.ckpt", tmp_path / "a\0b"):
        with pytest.raises(MissingInputError, match=r"no\.ckpt: no such file|null character"):
            read_header(path)


def test_directory_and_pipe(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="this is a directory, a slice was expected"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="no regular file"):
        read_header(tmp_path / "pipe")


def test_bad_crc(data: Path, put: Put) -> None:
    whole = bytearray((data / "formats" / "crc.ckpt").read_bytes())
    whole[-1] ^= 1
    path = put(bytes(whole))
    header = read_header(path)
    assert header.problems == ()
    assert re.search("is 0x[0-9a-f]{8}, the trailer says 0x[0-9a-f]{8}", find_problem(path, header) or "")


def test_unknown_type(wire: Any, put: Put) -> None:
    header = read_header(put(wire.record("a", dtype="Float99") + wire.record("b")))
    assert only_problem(header) == "offset 0: 'a': type 'Float99' is unknown"
    assert len(header.parameters) == 2


# --- and more -------------------------------------------------------------------------------------------------------


def test_a_cut_trailer(data: Path, put: Put) -> None:
    whole = (data / "formats" / "crc.ckpt").read_bytes()
    for missing in range(1, 17):
        assert read_header(put(whole[:-missing])).problems != (), missing


def test_a_trailer_beyond_32_bits(wire: Any, put: Put) -> None:
    header = read_header(put(wire.record("a") + b"crc_num" + (1 << 40).to_bytes(10, "big")))
    assert "the CRC trailer holds 0x10000000000" in only_problem(header)
    assert header.crc is None


def test_crc_of_a_file_that_changed_since(data: Path, put: Put) -> None:
    path = put((data / "formats" / "crc.ckpt").read_bytes())
    header = read_header(path)
    path.write_bytes(path.read_bytes() + b"x")
    assert find_problem(path, header) == f"the file had {header.size} bytes and has {header.size + 1} now"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (lambda w: w.record("a", (-1, -2)), "dims [-1, -2] are negative"),
        (lambda w: w.record("a", (1 << 62, 1 << 62)), "takes 85070591730234615865843651857942052864"),
        (lambda w: w.record("a", (1,) * 33), "more than 32 dims"),
        (lambda w: w.record("a", (1,) * 5000), "more than 32 dims"),
        (lambda w: w.record("a" * 5000), "a text of 5000 bytes where none is longer than 1024"),
        (lambda w: w.record("a", dtype="x" * 65), "a text of 65 bytes where none is longer than 64"),
        (lambda w: w.record(b"\xff\xfe"), "a text that is not UTF-8"),
        (lambda w: w.record(""), "the record has no name"),
        (lambda w: w.message(1, w.message(2, A_TENSOR)), "the record has no name"),
        (lambda w: w.message(1, w.message(1, b"a")), "the record has no contents"),
        (lambda w: w.message(1, b""), "the record has no name"),
        (lambda w: w.message(1, w.message(1, b"a") * 2 + w.message(2, A_TENSOR)), "field 1 of wire type 2 in a record"),
        (lambda w: w.message(1, w.message(1, b"a") + w.message(2, A_TENSOR) * 2), "field 2 of wire type 2 in a record"),
        (lambda w: w.message(1, w.message(1, b"a") + w.message(4, A_TENSOR)), "field 4 of wire type 2 in a record"),
        (lambda w: w.message(1, w.message(1, b"a") + w.message(2, A_TENSOR + b"\x20\x01")), "field 4 of wire type 0"),
        (lambda w: w.message(1, w.message(1, b"a") + w.message(2, A_TENSOR[:11])), "the tensor has no contents"),
        (lambda w: w.message(1, w.message(1, b"a") + w.message(2, A_TENSOR[11:])), "the tensor has no type"),
        (lambda w: w.message(1, w.message(1, b"a") + b"\x15abcd"), "wire type 5 does not occur"),
        (lambda w: w.message(1, w.message(1, b"a") + b"\x13\x14"), "wire type 3 does not occur"),
        (lambda w: w.message(1, w.message(1, b"a") + b"\x12\x7f" + A_TENSOR), "bytes behind the message it is in"),
        (lambda w: w.message(1, b"\x0a" + b"\x80" * 11 + b"\x01a"), "a number does not fit into 64 bits"),
        (lambda w: w.message(1, b"\x0a" + b"\xff" * 9 + b"\x7fa"), "a number does not fit into 64 bits"),
        (lambda w: w.message(1, b"\x0a" + b"\xff" * 9000), "a number does not end within ten bytes"),
        (lambda w: w.message(1, w.message(1, b"a") + w.message(2, b"\x0a\x02\x01\x80" + A_TENSOR)), "end of its field"),
        (lambda w: w.record("a", (), "str", b"abcde"), "5 bytes with dims [] are no UTF-32 string"),
        (lambda w: w.record("a", (0,), "str", b""), "0 bytes with dims [] are no UTF-32 string"),
        (lambda w: w.record("a", (2,), "str", b"abcdefgh"), "8 bytes with dims [2] are no UTF-32 string"),
        (lambda w: w.record("a", (0, 3)), "contents have 8 bytes, Float32 [0, 3] takes 0"),
        (lambda w: w.map_record("a", w.tensor((1,), "int32", b"1234")), "of the same number of rows"),
        (lambda w: w.map_record("a", *[w.tensor((n,), "int8", bytes(n)) for n in (1, 2, 1)]), "same number of rows"),
        (lambda w: w.map_record("a", w.tensor((2,), "int32", b"1234")), "which does not fit int32 [2]"),
        (lambda w: w.map_record("a", w.tensor((1,), "Int32", b"1234")), "'Int32' is unknown in a map parameter"),
    ],
)
def test_malformed_records(wire: Any, put: Put, record: Callable[[Any], bytes], reason: str) -> None:
    header = read_header(put(wire.record("before") + record(wire)))
    assert reason in only_problem(header)
    assert header.parameters[0].name == "before"


def test_pieces_that_disagree(wire: Any, put: Put) -> None:
    for second in (wire.record("a", (3,), content=b""), wire.record("a", (2,), "Int32", b"")):
        problem = only_problem(read_header(put(wire.record("a", (2,)) + second)))
        assert "here and 'Float32' [2] in the record before" in problem


def test_names_in_problems_are_printable_and_short(wire: Any, put: Put) -> None:
    problem = only_problem(read_header(put(wire.record("\x1b[31m" + "n" * 1000, (3,)))))
    assert problem.isprintable()
    assert len(problem) < 400


def test_a_swapped_length_of_a_record(wire: Any, put: Put) -> None:
    whole = bytearray(wire.record("a") + wire.record("b"))
    for change in (-1, 1):
        damaged = bytearray(whole)
        damaged[1] += change
        assert read_header(put(bytes(damaged))).problems != ()


def test_the_number_of_records_is_capped(wire: Any, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 3)
    header = read_header(put(b"".join(wire.record(name) for name in "abcde")))
    assert "more than 3 records" in only_problem(header)
    assert len(header.parameters) == 3
    assert read_header(put(b"".join(wire.record(name) for name in "abc"))).problems == ()


def test_the_number_of_problems_is_capped(wire: Any, put: Put) -> None:
    header = read_header(put(b"".join(wire.record(f"p{i}", (3,)) for i in range(1000))), expected=["x"])
    assert records.MAX_PROBLEMS <= len(header.problems) <= records.MAX_PROBLEMS + 2


def test_another_kind_of_file_is_named(data: Path) -> None:
    folder = data / "fixtures" / "dp2_mp4" / "ckpt_dir0"
    for path, kind in (
        (folder / "group_info.pb", "a group_info.pb"),
        (folder / "strategy.ckpt", "a strategy file"),
        (data / "formats" / "oracle.json", "a JSON file"),
    ):
        assert only_problem(read_header(path)) == f"not a slice: the file is {kind}"


# --- encrypted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_every_cut_of_an_encrypted_slice_is_found(data: Path, put: Put, mode: str) -> None:
    whole = (data / "formats" / f"encrypted_{mode}.ckpt").read_bytes()
    for end in range(4, len(whole)):
        header = read_header(put(whole[:end]))
        assert header.encryption == mode
        # A cut behind the first block leaves one that is shorter than 64 MiB, as a small whole file is.
        assert header.problems or end == 1072, end


def test_a_cut_behind_a_full_block_of_64_mib(put: Put) -> None:
    size = (64 << 20) + 48
    head = bytes.fromhex("d85e3a7f") + bytes(16) + b"\x18\0\0\x04\x10\0\0\0" + bytes(16) + b"\0\0\0\x04"
    path = put(head)
    os.truncate(path, size)
    assert "the file ends with a full block, blocks behind it are missing" in only_problem(read_header(path))
    os.truncate(path, size - 1)
    assert "block 1 should end at offset" in only_problem(read_header(path))


@pytest.mark.parametrize(("offset", "block"), [(20, 1), (24, 1), (44, 1), (1072, 2), (1072 + 44, 2)])
def test_damaged_heads_of_encrypted_blocks(data: Path, put: Put, offset: int, block: int) -> None:
    whole = bytearray((data / "formats" / "encrypted_AES-GCM.ckpt").read_bytes())
    whole[offset] ^= 0x10
    assert f"offset {(block - 1) * 1072}: no AES-GCM block begins here" in only_problem(read_header(put(bytes(whole))))


def test_a_short_block_before_the_last(data: Path, put: Put) -> None:
    whole = (data / "formats" / "encrypted_AES-CBC.ckpt").read_bytes()
    last = whole[5 * 1072 :]
    problem = only_problem(read_header(put(whole[:1072] + last + whole[1072:])))
    assert "block 2 is not full" in problem


def test_a_crc_trailer_behind_encrypted_blocks(data: Path) -> None:
    header = read_header(data / "formats" / "encrypted_crc.ckpt")
    assert "MindSpore cannot load such a file" in only_problem(header)


# --- files that change, systems that refuse -------------------------------------------------------------------------


def test_a_file_that_shrinks_while_it_is_read(wire: Any) -> None:
    whole = b"".join(wire.record(f"parameter.{i}", (256,), content=bytes(1024)) for i in range(40))
    for left in (len(whole) // 2, 100, 0):
        calls = 0

        def read_at(offset: int, length: int, left: int = left) -> bytes:
            nonlocal calls
            calls += 1
            return (whole if calls < 3 else whole[:left])[offset : offset + length]

        header = parse_header(read_at, len(whole))
        assert "the file shrank while it was read" in header.problems[-1], left


def test_an_encrypted_file_that_shrinks_while_it_is_read(data: Path) -> None:
    whole = (data / "formats" / "encrypted_AES-CBC.ckpt").read_bytes()
    for keep in (0, 3, 50, 1072):
        calls = 0

        def read_at(offset: int, length: int, keep: int = keep) -> bytes:
            nonlocal calls
            calls += 1
            return (whole if calls < 4 else whole[:keep])[offset : offset + length]

        assert parse_header(read_at, len(whole)).problems != (), keep


@pytest.mark.parametrize("change", [-1, 1])
def test_a_change_of_size_is_noticed_behind_the_last_read(
    wire: Any, put: Put, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    whole = wire.record("w", (4096,), content=bytes(16384))
    path = put(whole)
    pread = os.pread

    def changing(descriptor: int, length: int, offset: int) -> bytes:
        read = pread(descriptor, length, offset)
        os.truncate(path, len(whole) + change)
        return read

    monkeypatch.setattr(os, "pread", changing)
    header = read_header(path)
    assert f"changed its size from {len(whole)} to {len(whole) + change} bytes" in header.problems[-1]


def test_short_reads_of_network_file_systems(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data / "formats" / "types.ckpt"
    sound = read_header(path)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: pread(descriptor, min(length, 7), offset))
    assert read_header(path) == sound


def test_refusals_of_the_system(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data / "formats" / "crc.ckpt"
    header = read_header(path)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        for read in (lambda: read_header(path), lambda: find_problem(path, header)):
            with pytest.raises(StorageError, match=r"reading a slice .*crc\.ckpt: Input/output error"):
                read()

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"permission denied for user .*uid"):
        read_header(path)


def test_crc_check_survives_a_shrinking_file(data: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put((data / "formats" / "crc.ckpt").read_bytes())
    header = read_header(path)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    assert find_problem(path, header) == "the file shrank while it was read"
    assert zlib.crc32(b"") != header.crc
