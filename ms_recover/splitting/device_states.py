"""The states of a splitter's devices, which its caller can read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index as whole_number
from typing import overload

import numpy as np

from ms_recover.errors import UsageError
from ms_recover.splitting.progress import Device


class DeviceStates(Sequence[bool]):
    """For each device whether it is at work, now; equal to a list of the same values.

    A device whose process was lost is False until a fresh one is at work, also right after the error about the loss.

    ``states[1] = False`` takes device 1 out: its process ends, and others do its work. ``states[1] = True`` brings it
    back, with the current weights, and waits until it is at work or lost again. Slices can be assigned as well.

    Raises
    ------
    UsageError
        When an assigned value is no bool, there are more or fewer values than devices, or there is no such device.
    """

    def __init__(self, devices: Sequence[Device], change: Callable[[Mapping[int, bool]], None]) -> None:
        self._devices = devices
        self._change = change

    def __len__(self) -> int:
        return len(self._devices)

    @overload
    def __getitem__(self, key: int) -> bool: ...

    @overload
    def __getitem__(self, key: slice) -> list[bool]: ...

    def __getitem__(self, key: int | slice) -> bool | list[bool]:
        return [device.alive for device in self._devices][key]

    def __setitem__(self, key: int | slice, value: bool | Sequence[bool]) -> None:
        numbers = range(len(self))
        if isinstance(key, slice):
            self._assign(numbers[key], value)
            return
        try:
            number = numbers[whole_number(key)]
        except TypeError:
            raise UsageError(f"invalid device {key!r}: expected a whole number or a slice") from None
        except IndexError:
            raise UsageError(f"there is no device {key}: the devices are 0 to {len(self) - 1}") from None
        self._assign(range(number, number + 1), [value])

    def assign(self, values: object) -> None:
        """Set the states of all devices."""
        self._assign(range(len(self)), values)

    def _assign(self, numbers: range, values: object) -> None:
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise UsageError(f"invalid device states {values!r:.60}: expected a list of bool, one for each device")
        if len(values) != len(numbers):
            raise UsageError(f"{len(values)} device states for {len(numbers)} devices: give one bool for each")
        for value in values:
            if not isinstance(value, bool | np.bool_):
                raise UsageError(f"invalid device state {value!r:.60}: expected a bool, not {type(value).__name__}")
        self._change(dict(zip(numbers, map(bool, values), strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | DeviceStates) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))
