"""What a strategy file says: which stage it belongs to, and how its parameters are cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from ms_recover.model.units import Count


@dataclass(frozen=True, slots=True)
class Layout:
    """How one parameter is cut over the device matrix."""

    RECORD = (
        "parameter device_matrix tensor_map tensor_shape=known_shape opt_shard_step opt_shard_size split_shape "
        "indices_offset field parts copies"
    )

    parameter: str
    device_matrix: tuple[Count, ...]
    """Devices of the stage per axis, most significant axis first."""
    tensor_map: tuple[tuple[Count, ...], ...]
    """For each tensor dimension the axes it is split over, counted from the right of the device matrix; empty
    when the dimension is not split.
    """
    opt_shard_step: int = 0
    """Distance of the ranks that share one optimizer shard group."""
    opt_shard_size: int = 0
    """Number of optimizer shards; 0 = none, -1 = over all replicas."""
    split_shape: tuple[Count, ...] = ()
    """For an embedding that is cut by hand: rows of each part of dimension 0, which need not be equal. Empty
    otherwise.
    """
    indices_offset: tuple[int, ...] = ()
    """For each such part what is subtracted from the indices into it."""
    field: Count = 0
    """Above 0 for embeddings that are cut by field."""
    tensor_shape: tuple[int, ...] = ()
    """Only from the JSON form: the whole tensor's shape, with a dimension that is split over several axes taken
    apart into one per axis. `tensor_map` then counts these dimensions, which may be more than the slice has:
    ``w`` of 32 x 64, dimension 0 split over nothing and dimension 1 over axes 1 and 0 of size 2, has the map
    ``[[], [1], [0]]`` and the shape ``[32, 2, 32]``. Empty from the protobuf form, which names no shapes.
    """

    @property
    def known_shape(self) -> tuple[Count, ...] | None:
        """`tensor_shape`, None where it is not stated."""
        return self.tensor_shape or None

    @property
    def counts(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut, optimizer shards aside."""
        sizes = self.device_matrix[::-1]
        return tuple(prod(sizes[axis] for axis in axes) for axes in self.tensor_map)

    @property
    def parts(self) -> Count:
        """Into how many different parts the parameter is cut, optimizer shards included."""
        cut, devices = prod(self.counts), prod(self.device_matrix)
        shards = devices // cut if self.opt_shard_size < 0 else self.opt_shard_size or 1
        return cut * shards

    @property
    def copies(self) -> Count:
        """How many ranks of the stage hold each part."""
        return max(prod(self.device_matrix) // self.parts, 1)


@dataclass(frozen=True)
class Strategy:
    """The contents of one strategy file."""

    RECORD = "stages save_count operators devices_per_stage layouts"

    stages: tuple[Count, ...]
    """Pipeline stages named by the operators' strategies, ascending; one in every file MindSpore 2.10 writes."""
    save_count: int
    """The field that MindSpore calls ``current_stage``; it counts saves and is not a stage."""
    layouts: tuple[Layout, ...]
    """One per parameter, sorted by name."""
    operators: Count = 0
    """Number of operators with a strategy."""

    @cached_property
    def names_shapes(self) -> bool:
        """Whether it is of the JSON form, which states the shapes of whole tensors."""
        return any(layout.tensor_shape for layout in self.layouts)

    @cached_property
    def trains_at_once(self) -> bool:
        """Whether an optimizer takes each gradient as it is: there are its states, and no gradients to be added up.

        The clones of a parameter are named by a word and a dot before its name; gradients by ``accu_grads``, in every
        pipeline and where several steps are one (``PipelineCell``, ``GradAccumulationCell``).
        """
        names = {layout.parameter for layout in self.layouts}
        clones = {word for word, _, name in (one.partition(".") for one in names) if name in names}
        return bool(clones) and "accu_grads" not in clones

    @cached_property
    def devices_per_stage(self) -> Count:
        """Product of the device matrix; 0 when the file has no layout."""
        return max((prod(layout.device_matrix) for layout in self.layouts), default=0)
