"""What a strategy file says: which stage it belongs to, and how its parameters are cut."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How one parameter is cut over the device matrix.

    Parameters
    ----------
    parameter : str
        Parameter name.
    device_matrix : tuple of int
        Devices of the stage per axis, most significant axis first.
    tensor_map : tuple of tuple of int
        For each tensor dimension the axes it is split over, counted from the right of the device matrix; empty
        when the dimension is not split.
    opt_shard_step : int
        Distance of the ranks that share one optimizer shard group.
    opt_shard_size : int
        Number of optimizer shards; 0 = none, -1 = over all replicas.
    """

    parameter: str
    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    opt_shard_step: int = 0
    opt_shard_size: int = 0


@dataclass(frozen=True, slots=True)
class Strategy:
    """The contents of one strategy file.

    Parameters
    ----------
    stages : tuple of int
        Pipeline stages named by the operators' strategies, ascending; one in every file MindSpore 2.10 writes.
    save_count : int
        The field that MindSpore calls ``current_stage``; it counts saves and is not a stage.
    layouts : tuple of Layout
        One per parameter, sorted by name.
    operators : int
        Number of operators with a strategy.
    """

    stages: tuple[int, ...]
    save_count: int
    layouts: tuple[Layout, ...]
    operators: int = 0

    @property
    def devices_per_stage(self) -> int:
        """Product of the device matrix; 0 when the file has no layout."""
        product = 0
        for layout in self.layouts:
            devices = 1
            for axis in layout.device_matrix:
                devices *= axis
            product = max(product, devices)
        return product
