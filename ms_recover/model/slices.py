"""What a slice file holds: parameters, byte ranges, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ms_recover.model.units import Count, Size


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
    """One entry of a slice by its header."""

    RECORD = "name dtype shape bytes=nbytes"

    name: str
    """MindSpore's tag."""
    dtype: str
    """MindSpore's type name (``Float32``, ``BFloat16``, ``str``, ...)."""
    shape: tuple[Count, ...]
    """Local shape; empty for scalars."""
    nbytes: Size
    """Length of the contents over all pieces, in bytes."""

    @property
    def is_counter(self) -> bool:
        """Whether it is a single number, as steps, rates and scales are: all ranks have it alike, unless it is cut."""
        return self.shape in ((), (1,))

    @property
    def item_size(self) -> int:
        """Bytes of one element; 0 where there are none."""
        return self.nbytes // max(prod(self.shape), 1)


class ParameterList(tuple[Parameter, ...]):
    """The parameters of a slice in file order, a tuple that remembers its hash, its names and the place of each.

    Hashing hundreds of parameters takes as long as reading a header, and most slices of a tree list the same. Readers
    share one list among equal slices, so that looking a list up costs no comparison; lists that are equal and not
    shared are found equal all the same.
    """

    _hash: int
    _index: dict[str, int]
    _names: frozenset[str]

    def __hash__(self) -> int:
        """Return the hash, computed once."""
        try:
            return self._hash
        except AttributeError:
            self._hash = super().__hash__()
            return self._hash

    def __reduce__(self) -> tuple[type[ParameterList], tuple[tuple[Parameter, ...]]]:
        """Leave the hash behind: that of a text differs between processes."""
        return type(self), (tuple(self),)

    @property
    def index(self) -> dict[str, int]:  # type: ignore[override]
        """The place of each name; of the last one where a name stands twice."""
        try:
            return self._index
        except AttributeError:
            self._index = {parameter.name: place for place, parameter in enumerate(self)}
            return self._index

    @property
    def names(self) -> frozenset[str]:
        """The names, in no order."""
        try:
            return self._names
        except AttributeError:
            self._names = frozenset(self.index)
            return self._names


@dataclass(frozen=True, slots=True)
class ListedParameter:
    """A parameter of a slice, and in how many pieces its contents are."""

    RECORD = "*parameter pieces"

    parameter: Parameter
    pieces: Count


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """The structure of a slice file, read without its contents."""

    RECORD = "bytes=size crc=has_crc encryption metadata=metadata_by_name parameters=listed"

    kind: str
    """``"ckpt"``, ``"encrypted-ckpt"`` or ``"safetensors"``."""
    size: Size
    """File size in bytes."""
    parameters: tuple[Parameter, ...] = ()
    """In the order of their contents in the file."""
    contents: tuple[tuple[ByteRange, ...], ...] = ()
    """For each parameter the ranges of its contents, one per piece (MindSpore splits tensors of a ``.ckpt`` above
    512 MiB).
    """
    crc: int | None = None
    """The CRC-32 that the trailer of a ``.ckpt``, or the metadata of a safetensors file, claims; None without one."""
    encryption: str | None = None
    """``"AES-GCM"``, ``"AES-CBC"`` or ``"SM4-CBC"`` when the file is encrypted."""
    problems: tuple[str, ...] = ()
    """Why the file is damaged; empty for a sound file."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Of a safetensors file, in file order: ``"format"``, ``"remove_redundancy"``, ``"crc_num"``, and ``"Int4"``
    under the names of parameters of that type.
    """

    @property
    def has_crc(self) -> bool:
        """Whether a CRC is claimed."""
        return self.crc is not None

    @property
    def metadata_by_name(self) -> dict[str, str]:
        """The metadata as a mapping."""
        return dict(self.metadata)

    @property
    def listed(self) -> tuple[ListedParameter, ...]:
        """The parameters with the number of their pieces."""
        return tuple(
            ListedParameter(one, len(pieces)) for one, pieces in zip(self.parameters, self.contents, strict=True)
        )


@dataclass(frozen=True, slots=True)
class SliceImage:
    """A slice file that is to be written: the bytes around the contents, and where the contents go."""

    size: int
    """Bytes of the file, a CRC trailer included."""
    literals: tuple[tuple[int, bytes], ...]
    """Offset and bytes of everything that is no contents, but for the trailer; ascending."""
    contents: tuple[tuple[ByteRange, ...], ...]
    """For each parameter, in the order of `SliceHeader.parameters` of the finished file, where its pieces go."""
    crc: bool = False
    """The file ends in the CRC trailer of a ``.ckpt``, which is computed when the rest is there: over all bytes before
    its 17. A safetensors image never has one, its ``crc_num`` is in the literals.
    """
    parameters: tuple[Parameter, ...] = ()
    """What `contents` belong to, in the same order. A safetensors file has its parameters in another order than a
    ``.ckpt``.
    """
