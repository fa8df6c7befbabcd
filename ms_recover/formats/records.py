"""The walk over a slice's records: where each parameter lies, and whether its contents are complete."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ms_recover.formats.dtypes import MAP_ITEM_SIZES, shape_of
from ms_recover.formats.wire import WireError, WireReader, signed
from ms_recover.model.slices import ByteRange, Parameter

MAX_RECORDS = 1 << 18
MAX_NAME = 1024
MAX_TYPE = 64
MAX_DIMS = 32
MAX_PROBLEMS = 20
"""Where the walk gives up: records, bytes of a name, bytes of a type, dims, problems."""

MAP = "MapTensor"
"""How the dtype of a map parameter begins."""

_NO_END = 1 << 65
_MOST_FIELDS = MAX_DIMS + 4
_RECORD = 0x0A
_NAME, _TENSOR, _MAP = 0x0A, 0x12, 0x1A
_DIM, _PACKED_DIMS, _TYPE, _CONTENT = 0x08, 0x0A, 0x12, 0x1A
_MAP_TENSOR = 0x0A


@dataclass(slots=True)
class _Piece:
    """One record, or several consecutive ones of the same name joined."""

    name: str
    offset: int
    dtype: str
    dims: tuple[int, ...]
    ranges: list[ByteRange]


class RecordWalk:
    """Walk over all records of a file without CRC trailer; the attributes hold the result.

    Attributes
    ----------
    parameters : list of Parameter
        In file order.
    contents : list of tuple of ByteRange
        For each parameter its ranges.
    problems : list of str
        What is wrong, in file order; at most `MAX_PROBLEMS` and one or two more.
    """

    def __init__(self, reader: WireReader) -> None:
        self.parameters: list[Parameter] = []
        self.contents: list[tuple[ByteRange, ...]] = []
        self.problems: list[str] = []
        self._reader = reader
        self._names: set[str] = set()
        self._name: str | None = None

    def run(self) -> None:
        """Read every record until the end, or until the next one cannot be found."""
        size = self._reader.size
        at = count = 0
        joined: _Piece | None = None
        while at < size and len(self.problems) < MAX_PROBLEMS:
            self._name = None
            try:
                if count == MAX_RECORDS:
                    raise WireError(at, f"more than {MAX_RECORDS} records")
                count += 1
                [(_, key, start, end)] = self._reader.fields(at, _NO_END, 1)
                if key != _RECORD:
                    raise WireError(at, "no record begins here")
                piece = self._record(at, start, end)
            except WireError as error:
                if joined is not None:
                    self._close(joined)
                self.problems.append(self._broken(at, count, error))
                return
            if joined is not None and joined.name == piece.name:
                self._join(joined, piece)
            else:
                if joined is not None:
                    self._close(joined)
                joined = piece
            at = end
        if joined is not None:
            self._close(joined)
        elif not size:
            self.problems.append("no record in the file")

    def _record(self, offset: int, at: int, end: int) -> _Piece:
        text = self._reader.text
        name = piece = None
        for field, key, value, after in self._reader.fields(at, end, _MOST_FIELDS):
            if key == _NAME and name is None:
                name = self._name = text(value, after, MAX_NAME)
            elif key == _TENSOR and piece is None:
                dtype, dims, content = self._tensor(value, after)
                piece = _Piece("", offset, dtype, dims, [content])
            elif key == _MAP and piece is None:
                piece = self._map(offset, value, after)
            else:
                raise _strange(field, key, "a record")
        if not name or piece is None:
            raise WireError(offset, f"the record has no {'contents' if name else 'name'}")
        piece.name = name
        return piece

    def _tensor(self, at: int, end: int) -> tuple[str, tuple[int, ...], ByteRange]:
        reader = self._reader
        dims: list[int] = []
        dtype = content = None
        after = at
        for field, key, value, after in reader.fields(at, end, _MOST_FIELDS):
            if key == _DIM:
                dims.append(value)
            elif key == _TYPE and dtype is None:
                dtype = reader.text(value, after, MAX_TYPE)
            elif key == _CONTENT and content is None:
                if after > reader.size:
                    cut = after - reader.size
                    raise WireError(value, f"contents should end at offset {after}, the file ends {cut} bytes before")
                content = ByteRange(value, after - value)
            elif key == _PACKED_DIMS and after - value <= 10 * MAX_DIMS:
                dims.extend(reader.numbers(value, after))
            else:
                raise _strange(field, key, "a tensor")
        if len(dims) > MAX_DIMS or after != end:
            raise WireError(at, f"more than {MAX_DIMS} dims")
        if dtype is None or content is None:
            raise WireError(at, f"the tensor has no {'type' if dtype is None else 'contents'}")
        if dims and max(dims) >> 63:
            dims = [signed(dim) for dim in dims]
        return dtype, tuple(dims), content

    def _map(self, offset: int, at: int, end: int) -> _Piece:
        """Read a map parameter: keys, values, status, each with its own rows."""
        dtypes: list[str] = []
        shapes: list[tuple[int, ...]] = []
        ranges: list[ByteRange] = []
        for field, key, value, after in self._reader.fields(at, end, 4):
            if key != _MAP_TENSOR:
                raise _strange(field, key, "a map parameter")
            dtype, dims, content = self._tensor(value, after)
            if dtype not in MAP_ITEM_SIZES:
                raise WireError(field, f"type {dtype!r} is unknown in a map parameter")
            if not dims or min(dims) < 0 or content.length != prod(dims) * MAP_ITEM_SIZES[dtype]:
                raise WireError(field, f"contents have {content.length} bytes, which does not fit {dtype} {list(dims)}")
            dtypes.append(dtype)
            shapes.append(dims)
            ranges.append(content)
        if len(shapes) != 3 or len({shape[0] for shape in shapes}) != 1:
            raise WireError(offset, "a map parameter has keys, values and status of the same number of rows")
        return _Piece("", offset, f"{MAP}({','.join(dtypes)})", shapes[1], ranges)

    def _join(self, joined: _Piece, piece: _Piece) -> None:
        is_map = joined.dtype.startswith(MAP)
        fixed = slice(1, None) if is_map else slice(None)
        if piece.dtype != joined.dtype or piece.dims[fixed] != joined.dims[fixed]:
            self.problems.append(
                f"offset {piece.offset}: {show(piece.name)} is {piece.dtype!r} {list(piece.dims)} here and "
                f"{joined.dtype!r} {list(joined.dims)} in the record before"
            )
        elif is_map:
            joined.dims = (joined.dims[0] + piece.dims[0], *joined.dims[1:])
        joined.ranges.extend(piece.ranges)

    def _close(self, joined: _Piece) -> None:
        """List a parameter whose records have all been read."""
        ranges = joined.ranges
        nbytes = ranges[0].length if len(ranges) == 1 else sum(piece.length for piece in ranges)
        shape, problem = joined.dims, None
        if not joined.dtype.startswith(MAP):
            shape, problem = shape_of(joined.dtype, shape, nbytes)
        if problem is None and joined.name in self._names:
            problem = "the parameter occurs a second time"
        if problem is not None:
            self.problems.append(f"offset {joined.offset}: {show(joined.name)}: {problem}")
        self._names.add(joined.name)
        self.parameters.append(Parameter(joined.name, joined.dtype, shape, nbytes))
        self.contents.append(tuple(ranges))

    def _broken(self, at: int, count: int, error: WireError) -> str:
        """Describe the damage of the record at ``at``, behind which no other can be found."""
        where = f"offset {error.offset}: record {count}" + (f" ({show(self._name)})" if self._name else "")
        rest = self._reader.size - at
        try:
            begin = self._reader.take(at, at + min(rest, 32))
        except WireError:
            begin = b""
        reason = error.reason
        if begin and not any(begin):
            reason = f"zeros where a record should begin, {rest} bytes before the end: they were never written"
        elif begin and begin[0] != _RECORD:
            reason = f"no record begins here, {rest} bytes before the end: junk, or a damaged length before"
        return f"{where}: {reason}"


def show(name: str) -> str:
    """Quote a name for a message: printable and not endless."""
    return repr(name if len(name) <= 100 else name[:97] + "...")


def _strange(at: int, key: int, where: str) -> WireError:
    return WireError(at, f"field {key >> 3} of wire type {key & 7} in {where} is unknown or occurs twice")
