"""What a slice file holds: parameters, byte ranges, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByteRange:
    """``length`` bytes from ``start`` in a file."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """First offset behind the range."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of a slice as its header tells it.

    Parameters
    ----------
    name : str
        MindSpore's tag.
    dtype : str
        MindSpore's type name (``Float32``, ``BFloat16``, ``str``, ...).
    shape : tuple of int
        Local shape; empty for scalars.
    nbytes : int
        Length of the contents over all pieces, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """The structure of a slice file, read without its contents.

    Parameters
    ----------
    kind : str
        ``"ckpt"`` or ``"encrypted-ckpt"``.
    size : int
        File size in bytes.
    parameters : tuple of Parameter
        In file order.
    contents : tuple of tuple of ByteRange
        For each parameter the ranges of its contents, one per piece (MindSpore splits tensors above 512 MiB).
    crc : int or None
        The CRC-32 that the file's trailer claims; None when it has no trailer.
    encryption : str or None
        ``"AES-GCM"``, ``"AES-CBC"`` or ``"SM4-CBC"`` when the file is encrypted.
    problems : tuple of str
        Why the file is damaged; empty for a sound file.
    """

    kind: str
    size: int
    parameters: tuple[Parameter, ...] = ()
    contents: tuple[tuple[ByteRange, ...], ...] = ()
    crc: int | None = None
    encryption: str | None = None
    problems: tuple[str, ...] = ()
