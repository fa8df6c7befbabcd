"""The order in which the callbacks of a training act.

``mindspore.train.Model`` calls the callbacks in the order of the list, through a manager that no callback is given
(``mindspore/train/callback/_callback.py`` of 2.10). It is found here among the callers of a callback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from mindspore.train import Model
from mindspore.train.callback import _CallbackManager


def calling_manager() -> Any | None:
    """Return the manager by which a callback is called just now; None when something else calls it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, _CallbackManager):
            return caller
        frame = frame.f_back
    return None


def calling_model() -> Any | None:
    """Return the ``Model`` that trains just now; None when something else does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Model):
            return caller
        frame = frame.f_back
    return None


def act_last(manager: Any, kind: type) -> None:
    """Have the callbacks of a class act behind all others from the next call on."""
    manager._callbacks = sorted(manager._callbacks, key=lambda one: isinstance(one, kind))


def around_first(manager: Any, event: str, action: Callable[[Any, Callable[[], None]], None]) -> None:
    """Have the first call of an event, such as ``on_train_epoch_begin``, go through an action, once.

    The action is given the context of the run, and a function that lets the callbacks act.
    """
    inner = getattr(manager, event)

    def first(run_context: Any) -> None:
        setattr(manager, event, inner)
        action(run_context, lambda: inner(run_context))

    setattr(manager, event, first)
