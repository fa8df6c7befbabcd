"""MindSpore's LossMonitor in a resumed training: it prints the steps that it would have printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindspore.train import LossMonitor

from ms_recover.training.mindspore_inside import print_interval, printed_last


def continue_loss_monitors(callbacks: Iterable[Any], done: int, stride: int) -> None:
    """Have LossMonitors count from the step that they would have printed last in an uninterrupted training.

    They print a step that is at least ``per_print_times`` steps behind the last printed one, and see every
    `stride`-th: of sinks the last step.
    """
    for one in callbacks:
        every = print_interval(one)
        if isinstance(one, LossMonitor) and every > 0:
            printed_last(one, last_printed(done, every, stride))


def last_printed(done: int, every: int, stride: int) -> int:
    """Return the last step up to `done` that is printed, 0 before the first."""
    return done - done % (-(-every // stride) * stride)
