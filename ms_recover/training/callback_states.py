"""The states of callbacks: what they have counted and remembered so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore.train import Callback, EarlyStopping, History, LearningRateScheduler, ReduceLROnPlateau

from ms_recover.errors import InputError, MsRecoverError

_ATTRIBUTES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (EarlyStopping, ("wait", "stopped_epoch", "best", "best_weights_param_dict")),
    (ReduceLROnPlateau, ("cooldown_counter", "wait", "best")),
    (History, ("history", "epoch")),
)
"""MindSpore's callbacks with a state, and where it is (``mindspore/train/callback`` of 2.10)."""

_ACTING = (EarlyStopping, ReduceLROnPlateau, LearningRateScheduler)
"""MindSpore's callbacks that change a training."""


def callback_states(callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the class and the state of each callback that has one, in their order.

    MsRecoverError when ``state_dict()`` of a callback fails.
    """
    return [{"class": type(one).__qualname__, "state": _state_of(one)} for one in callbacks if _keeps_state(one)]


def keeps_its_state(callback: Any) -> bool:
    """Whether all of a callback's state is saved; what a class made from one of MindSpore's adds is not."""
    return _has_methods(callback) or any(type(callback) is kind for kind, _ in _ATTRIBUTES)


def restore_callbacks(callbacks: Iterable[Any], states: Sequence[Mapping[str, Any]]) -> list[str]:
    """Restore the callbacks' states, the n-th state of a class into the n-th callback of it.

    Returns the classes of which there are states but too few callbacks, or callbacks but too few states. InputError
    when ``load_state_dict()`` of a callback fails.
    """
    by_class: dict[str, list[Any]] = {}
    for one in callbacks:
        if _keeps_state(one):
            by_class.setdefault(type(one).__qualname__, []).append(one)
    saved = Counter(str(state["class"]) for state in states)
    present = {name: len(found) for name, found in by_class.items()}
    for state in states:
        waiting = by_class.get(state["class"])
        if waiting:
            _restore(waiting.pop(0), state["state"])
    return sorted(name for name in saved.keys() | present if saved[name] != present.get(name, 0))


def why_ended(callbacks: Iterable[Any], states: Sequence[Mapping[str, Any]], epoch: int) -> str | None:
    """Return why the training was over behind an epoch by the states saved then; None when it was not.

    It goes on where the callback that ended it is gone now, or has more patience.
    """
    for state in states:
        for one in callbacks:
            if isinstance(one, EarlyStopping) and state["class"] == type(one).__qualname__ and not _has_methods(one):
                ended, wait = (state["state"].get(name) for name in ("stopped_epoch", "wait"))
                if ended == epoch and wait >= one.patience:
                    return f"{state['class']} has ended the training behind epoch {epoch}"
    return None


def settings_of_callbacks(callbacks: Iterable[Any]) -> dict[str, str]:
    """Return how many callbacks of each class a program gives, and the numbers of those of MindSpore that act by some.

    MindSpore's others, which show or save something, change no training.
    """
    counts: Counter[str] = Counter()
    numbers: dict[str, str] = {}
    for one in callbacks:
        kind, module = type(one).__qualname__, type(one).__module__
        if module.startswith("ms_recover.") or (module.startswith("mindspore.") and not isinstance(one, _ACTING)):
            continue
        counts[kind] += 1
        if not module.startswith("mindspore."):
            continue
        for name, value in sorted(vars(one).items()):
            if isinstance(value, (bool, int, float, str)) and not name.startswith("_") and name not in _attributes(one):
                numbers[f"{kind} {counts[kind]} {name}"] = str(value)
    return {**{kind: str(count) for kind, count in counts.items()}, **numbers}


def differing_callbacks(before: Mapping[str, str], now: Mapping[str, str], known: Collection[str] = ()) -> list[str]:
    """Return how the callbacks of a program differ from those that it gave before, as clauses.

    Those of classes that are `known` to differ are left out.
    """
    return [
        f"{name} is new"
        if name not in before
        else f"{name} is not given any more"
        if name not in now
        else f"{name}: {now[name]}, and was {before[name]}"
        for name in sorted(before.keys() | now)
        if before.get(name) != now.get(name) and name not in known and (" " not in name or name in before.keys() & now)
    ]


def ending_callbacks(callbacks: Iterable[Any]) -> list[str]:
    """Return the classes of the program's callbacks that act when a training ends, each once."""
    acting = (one for one in callbacks if not type(one).__module__.startswith(("mindspore.", "ms_recover.")))
    names = (type(one).__qualname__ for one in acting if any(_overrides(one, name) for name in ("on_train_end", "end")))
    return list(dict.fromkeys(names))


def _overrides(callback: Any, name: str) -> bool:
    return getattr(type(callback), name, None) is not getattr(Callback, name)


def _keeps_state(callback: Any) -> bool:
    return _has_methods(callback) or bool(_attributes(callback))


def _has_methods(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("state_dict", "load_state_dict"))


def _attributes(callback: Any) -> tuple[str, ...]:
    return next((names for kind, names in _ATTRIBUTES if isinstance(callback, kind)), ())


def _state_of(callback: Any) -> Any:
    if not _has_methods(callback):
        return {name: getattr(callback, name) for name in _attributes(callback)}
    try:
        return callback.state_dict()
    except Exception as error:
        raise MsRecoverError(_failed(callback, "state_dict", error)) from error


def _restore(callback: Any, state: Any) -> None:
    if _has_methods(callback):
        load: Callable[[Any], Any] = callback.load_state_dict
        try:
            load(state)
        except Exception as error:
            raise InputError(
                f"{_failed(callback, 'load_state_dict', error)}; give the callbacks the training was saved with"
            ) from error
        return
    for name in _attributes(callback):
        value = state[name]
        if name == "best_weights_param_dict" and value is not None:
            value = {key: ms.Parameter(tensor, name=key) for key, tensor in value.items()}
        setattr(callback, name, value)


def _failed(callback: Any, method: str, error: Exception) -> str:
    return f"{method}() of the callback {type(callback).__qualname__} failed: {error!r}"
