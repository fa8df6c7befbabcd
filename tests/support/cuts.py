"""Checkpoint trees whose parameters are cut by layouts, so that parts of a slice lie on different ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.image import ckpt_image, default_pieces, safetensors_image
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.provenance import SAVED
from ms_recover.model.slices import Parameter, SliceImage
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import Cell, cells_of, region_of
from ms_recover.testing.trees import SLICE_MODE, crc_trailer
from tests.support.damage import STRUCK, STRUCK_PIECES


def cell_of(layout: Layout, rank: int) -> Cell:
    """Return the part of a parameter that one rank holds."""
    return cells_of(layout, [rank])[0]


@dataclass(frozen=True)
class CutTensor:
    """A global tensor and how it is cut.

    Parameters
    ----------
    dtype : str
        MindSpore's name of the type.
    array : numpy.ndarray
        The whole tensor, of a numpy type of the same item size.
    layout : Layout or None
        None for parameters that every rank has whole.
    """

    dtype: str
    array: Any
    layout: Layout | None = None

    def of(self, rank: int) -> Any:
        """Return the part that a rank holds."""
        if self.layout is None:
            return self.array
        cell = cell_of(self.layout, rank)
        local = tuple(size // count for size, count in zip(self.array.shape, cell.count, strict=True))
        region = region_of(self.layout, cell, local)
        assert region is not None
        return self.array[tuple(slice(start, stop) for start, stop in region)]


def slice_of(
    tensors: Mapping[str, CutTensor],
    rank: int,
    *,
    form: str = "ckpt",
    crc: bool = False,
    pieces: Mapping[str, Sequence[int]] | None = None,
    metadata: Sequence[tuple[str, str]] = (("format", "ms"),),
) -> bytes:
    """Return a rank's slice.

    Parameters
    ----------
    tensors : mapping of str to CutTensor
        Parameters, in the order of the network.
    rank : int
        Whose slice.
    form : str
        ``"ckpt"`` or ``"safetensors"``.
    crc : bool
        End a ``.ckpt`` with MindSpore's trailer.
    pieces : mapping of str to sequence of int, optional
        Lengths of the pieces of parameters that are split in a ``.ckpt``.
    metadata : sequence of (str, str)
        Of a safetensors file.
    """
    contents = {name: tensor.of(rank) for name, tensor in tensors.items()}
    listed = [
        Parameter(name, tensors[name].dtype, () if tensors[name].dtype == "str" else part.shape, part.nbytes)
        for name, part in contents.items()
    ]
    if form == "ckpt":
        lengths = [list((pieces or {}).get(one.name, default_pieces(one.nbytes))) for one in listed]
        image = ckpt_image(listed, lengths, crc=crc)
    else:
        image = safetensors_image(listed, metadata)
    return fill(image, {name: part.tobytes() for name, part in contents.items()})


def fill(image: SliceImage, contents: Mapping[str, bytes]) -> bytes:
    """Return the file of an image and its contents."""
    data = bytearray(image.size)
    for at, literal in image.literals:
        data[at : at + len(literal)] = literal
    for parameter, ranges in zip(image.parameters, image.contents, strict=True):
        taken = 0
        for place in ranges:
            data[place.start : place.end] = contents[parameter.name][taken : taken + place.length]
            taken += place.length
    if image.crc:
        end = image.size - len(crc_trailer(b""))
        data[end:] = crc_trailer(bytes(data[:end]))
    return bytes(data)


def make_cut_tree(
    root: Path,
    tensors: Mapping[str, CutTensor],
    ranks: int,
    *,
    steps: Iterable[Step] = (Step(1, 8),),
    manifests: bool = False,
    form: str = "ckpt",
    groups: Mapping[int, Sequence[int]] | None = None,
    **options: Any,
) -> Path:
    """Write a tree of one pipeline stage, with strategy files and rank lists.

    Parameters
    ----------
    root : Path
        Where; made when it is not there.
    tensors : mapping of str to CutTensor
        Parameters, in the order of the network. All steps hold the same.
    ranks : int
        Number of ranks.
    steps : iterable of Step
        The steps each rank saved.
    manifests : bool
        Write manifests as a training that saves them does.
    form : str
        ``"ckpt"`` or ``"safetensors"``.
    groups : mapping of int to sequence of int, optional
        What each rank's ``group_info.pb`` lists; by default the rank alone.
    **options
        For `slice_of`.
    """
    told = Strategy((0,), 2, tuple(tensor.layout for tensor in tensors.values() if tensor.layout is not None))
    strategy = encode_strategy(told)
    for rank in range(ranks):
        folder = root / f"ckpt_dir{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        group = tuple((groups or {}).get(rank, (rank,)))
        write_group_info(folder / "group_info.pb", list(group))
        (folder / "strategy.ckpt").write_bytes(strategy)
        data = slice_of(tensors, rank, form=form, **options)
        for step in steps:
            path = folder / f"test-{step}.{form}"
            path.write_bytes(data)
            path.chmod(SLICE_MODE)
            if manifests:
                made = make_manifest(str(path), rank, step, ranks, group, "run")
                write_manifest(str(path), replace(made, provenance=SAVED))
    return root


def make_struck_cut_tree(root: Path, steps: Iterable[Step], *, seed: int = 0) -> Path:
    """Write a tree of six ranks whose slices list what `tests.support.damage` strikes, and have no replica.

    Of ``embedding`` and ``moment1.dense.weight`` three ranks each hold the same part, of ``dense.weight`` two; the
    others are whole on every rank.

    Parameters
    ----------
    root : Path
        Where; made when it is not there.
    steps : iterable of Step
        The steps each rank saved; all differ.
    seed : int
        The same seed gives the same contents.
    """
    axes = {"embedding": (0,), "dense.weight": (1,), "moment1.dense.weight": (0,)}
    pieces = {}
    for name, count in STRUCK_PIECES.items():
        edges = [4 * (STRUCK[name] * part // count) for part in range(count + 1)]
        pieces[name] = [end - start for start, end in pairwise(edges)]
    for step in steps:
        source = Random(f"{seed} {step}")
        tensors = {}
        for name, elements in STRUCK.items():
            layout = cut_layout(name, (3, 2), axes[name]) if name in axes else None
            parts = layout.parts if layout is not None else 1
            array = memoryview(source.randbytes(4 * elements * parts)).cast("i")
            tensors[name] = CutTensor("Float32", _Flat(array), layout)
        make_cut_tree(root, tensors, 6, steps=[step], pieces=pieces)
    return root


class _Flat:
    """One dimension of numbers, as much of an array as a slice is made of."""

    def __init__(self, values: memoryview) -> None:
        self.values = values
        self.shape = (len(values),)
        self.nbytes = values.nbytes

    def __getitem__(self, key: tuple[slice]) -> _Flat:
        return _Flat(self.values[key[0]])

    def tobytes(self) -> bytes:
        return self.values.tobytes()


def cut_layout(name: str, matrix: Sequence[int], *tensor_map: Sequence[int], shards: int = 0) -> Layout:
    """Return a layout; each further argument lists the axes one dimension is split over, counted from the right."""
    step = prod(matrix) // max(shards, 1) if shards else 0
    return Layout(name, tuple(matrix), tuple(tuple(axes) for axes in tensor_map), step, shards)
