"""Encrypted slices: blocks that can be found and counted, but not read.

::

    AES-GCM  d8 5e 3a 7f | tag[16] | body | iv_len | iv[iv_len] | cipher_len | cipher[cipher_len]
    AES-CBC  d9 5e 3a 7f           | body | iv_len | iv[iv_len] | cipher_len | cipher[cipher_len]
    SM4-CBC  da 5e 3a 7f           |       (as AES-CBC)

Numbers are little-endian uint32; ``body`` counts the bytes behind itself, ``iv_len`` is 16. Each block encrypts up to
64 MiB of the plain slice; all blocks but the last are full, so that a file which ends with a full block has most
probably been cut (a whole one ends so once in 64 Mi cases). CBC pads to whole blocks of 16 bytes.
Source: files that ``save_checkpoint(enc_key=...)`` of MindSpore 2.10 wrote.
"""

from __future__ import annotations

from ms_recover.formats.reading import ReadAt

MODES = {
    b"\xd8\x5e\x3a\x7f": "AES-GCM",
    b"\xd9\x5e\x3a\x7f": "AES-CBC",
    b"\xda\x5e\x3a\x7f": "SM4-CBC",
}
"""First four bytes of every block, and the mode they stand for."""

FULL_BLOCK = 64 << 20
"""Plain bytes in a full block."""

MAX_BLOCKS = 1 << 16

TRAILER_MARK = b"crc_num"
"""How the 17 bytes of a CRC trailer begin; ten bytes with the CRC follow, big-endian."""

_IV = 16
_CIPHER_BLOCK = 16


def walk(read_at: ReadAt, size: int, mode: str) -> tuple[str, ...]:
    """Follow the blocks of an encrypted slice of `size` bytes to its end; return at most one problem of them."""
    magic = next(key for key, name in MODES.items() if name == mode)
    tag, pad = (16, 0) if mode == "AES-GCM" else (0, _CIPHER_BLOCK)
    head = 4 + tag + 4 + 4 + _IV + 4
    full = FULL_BLOCK + pad
    at = count = cipher = 0
    while at < size:
        data = read_at(at, head)
        if len(data) == len(TRAILER_MARK) + 10 and data.startswith(TRAILER_MARK):
            return (f"offset {at}: a CRC trailer behind encrypted blocks, MindSpore cannot load such a file",)
        if count and cipher != full:
            return (f"offset {at}: block {count} is not full, and {size - at} bytes follow it",)
        count += 1
        if count > MAX_BLOCKS:
            return (f"offset {at}: more than {MAX_BLOCKS} blocks",)
        if len(data) < head:
            return (f"offset {at}: the file ends inside the head of block {count}",)
        body, iv, cipher = (int.from_bytes(data[i : i + 4], "little") for i in (4 + tag, 8 + tag, head - 4))
        if data[:4] != magic or iv != _IV or body != 4 + _IV + 4 + cipher or not 0 < cipher <= full:
            return (f"offset {at}: no {mode} block begins here",)
        if pad and cipher % pad:
            return (f"offset {at}: {cipher} encrypted bytes in block {count} are no multiple of {pad}",)
        at += head + cipher
        if at > size:
            return (f"offset {at - cipher}: block {count} should end at offset {at}, the file ends at {size}",)
        if count == 1 and at < size:
            full = cipher
    if cipher == full:
        return (f"offset {at}: the file ends with a full block, blocks behind it are missing",)
    return ()
