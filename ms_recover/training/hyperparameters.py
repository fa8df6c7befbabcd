"""The settings of a training that are in no parameter, or that a slice overrules: saved, and compared at a resume.

Optimizers of MindSpore remember what their constructors were given: ``init_args`` and ``init_learning_rate``
(``nn/optim/optimizer.py`` of 2.10), and ``defaults`` those of ``experimental`` and ``mint``.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer

from ms_recover.errors import UsageError
from ms_recover.model.texts import list_some
from ms_recover.stores.digest import digest_of
from ms_recover.training.cells import OPTIMIZERS, as_cell
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.mindspore_inside import amp_level_of, loss_of
from ms_recover.training.proof import resume_line
from ms_recover.training.weight_updates import scalers_of

_log = logging.getLogger(__name__)

_LISTED = 4
"""Longer lists are told apart by their digest."""

_UNSET = "not set"

CALLBACKS = "callbacks"
"""The name of the setting that has those of callbacks, see `ms_recover.training.callback_states`."""
OF_NETWORK = "network "
"""How the names of settings begin that are those of cells, see `ms_recover.training.cell_settings`."""


@dataclass(frozen=True)
class Settings:
    """What a program sets, by name, as texts that are equal where the settings are."""

    values: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the same names the parameters that hold a setting, so that a slice overrules it."""


_effective: WeakKeyDictionary[Any, Mapping[str, str]] = WeakKeyDictionary()
"""By optimizer the settings that a resumed training goes on with."""

_first_seen: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()
"""Of optimizers that do not say what they were given, what they had before anything was trained."""


def settings_of(network: Any, amp_level: str | None = None) -> Settings:
    """Return what a program has set: of its optimizers, loss scales and loss functions, and its precision."""
    values: dict[str, str] = {}
    parameters: dict[str, tuple[str, ...]] = {}
    counts: Counter[str] = Counter()
    losses: list[str] = []
    precisions: Counter[str] = Counter()
    for _, cell in network.cells_and_names():
        for part, found in _parts_of(cell):
            kind = type(part).__qualname__
            counts[kind] += 1
            owner = kind if counts[kind] == 1 else f"{kind} {counts[kind]}"
            values |= {f"{owner}.{name}": text for name, text in found.values.items()}
            parameters |= {f"{owner}.{name}": names for name, names in found.parameters.items()}
        losses += _losses_of(cell)
        precision = getattr(cell, "mixed_precision_type", None)
        precisions[getattr(precision, "name", str(precision))] += precision is not None
    values["optimizers"] = ", ".join(name for name, kind in _optimizers(network)) or _UNSET
    values["loss function"] = ", ".join(dict.fromkeys(losses)) or _UNSET
    mixed = {name: count for name, count in precisions.items() if count and name != "NOTSET"}
    values["precision"] = ", ".join(f"{name} in {mixed[name]} cells" for name in sorted(mixed)) or "as declared"
    if amp_level is not None:
        values["amp_level"] = str(amp_level)
    return Settings(values, parameters)


def settings_of_program(program: Any) -> Settings:
    """Return what a program has set, a ``Model`` or a cell."""
    return settings_of(getattr(program, "train_network", program), amp_level_of(program))


def current_settings(network: Any, amp_level: str | None = None) -> dict[str, str]:
    """Return the settings that a training goes by: what it has set, but for what a slice has overruled."""
    overruled = next((_effective[one] for _, one in _optimizers(network) if one in _effective), {})
    return {**settings_of(network, amp_level).values, **overruled}


def compare_settings(
    own: OwnSlice, network: Any, saved: Mapping[str, str], now: Settings, kept: Collection[str] = ()
) -> None:
    """Warn of each setting that differs from that of the interrupted training, and say which one counts.

    Parameters named `kept` have the values of the program.
    """
    overruled: dict[str, str] = {}
    for name in sorted(saved.keys() | now.values) if saved else ():
        if name == CALLBACKS or name.startswith(OF_NETWORK):
            continue
        before, here = saved.get(name, _UNSET), now.values.get(name, _UNSET)
        if before == here or (name == "amp_level" and _UNSET in (before, here)):
            continue
        held = now.parameters.get(name, ())
        loaded = [one for one in held if one not in kept]
        if loaded:
            overruled[name] = before
            outcome = f"the slice's is taken; keep={loaded!r} takes the program's"
        else:
            outcome = "the program's is taken" + (", as keep says" if held else "")
        _log.warning("%s: %s is %s in the program, and was %s when the slice was saved: %s", own, name, here, before,
                     outcome)  # fmt: skip
        resume_line().doubt(f"{name} is {here} and was {before}", "settings")
    for _, optimizer in _optimizers(network):
        _effective[optimizer] = overruled


def check_kept(network: Any, names: Collection[str]) -> None:
    """Raise UsageError when the network has no parameter of a name that was given to `keep`."""
    if not names:
        return
    known = [one.name for one in as_cell(network).get_parameters()]
    wrong = sorted(set(names) - set(known))
    if wrong:
        rates = [name for name in known if name.startswith("learning_rate")]
        raise UsageError(
            f"keep={wrong!r}: the network has no such parameter"
            + (f"; its learning rates are {list_some(rates)}" if rates else f"; it has {list_some(known)}")
        )


def _optimizers(network: Any) -> Iterator[tuple[str, Any]]:
    return ((type(cell).__qualname__, cell) for _, cell in network.cells_and_names() if isinstance(cell, OPTIMIZERS))


def _parts_of(cell: Any) -> Iterator[tuple[Any, Settings]]:
    """Return the parts of a cell that have settings, with them."""
    if isinstance(cell, OPTIMIZERS):
        yield cell, _of_optimizer(cell)
    elif isinstance(cell, nn.DynamicLossScaleUpdateCell):
        yield cell, _of_attributes(cell, ("loss_scale_value", "scale_window", "scale_factor"))
    elif isinstance(cell, nn.FixedLossScaleUpdateCell):
        yield cell, _of_attributes(cell, ("loss_scale_value",))
    elif isinstance(cell, nn.TrainOneStepCell):
        yield cell, _of_attributes(cell, ("sens",))
    for scaler in scalers_of(cell):
        yield scaler, _of_attributes(scaler, ("scale_window", "scale_factor"))


def _of_attributes(part: Any, names: Collection[str]) -> Settings:
    return Settings({name: text_of_setting(getattr(part, name)) for name in names if hasattr(part, name)})


def _of_optimizer(optimizer: Any) -> Settings:
    if isinstance(optimizer, ExperimentalOptimizer):
        return _of_groups(optimizer)
    given = getattr(optimizer, "init_args", None)
    if not isinstance(given, dict):
        if optimizer not in _first_seen:
            _first_seen[optimizer] = _of_constructor(optimizer)
        return _first_seen[optimizer]
    values = {name: text_of_setting(value) for name, value in given.items() if value != {}}
    rate = getattr(optimizer, "init_learning_rate", None)
    values["learning_rate"] = text_of_setting(rate if rate is not None else optimizer.learning_rate)
    values |= _of_given_groups(getattr(optimizer, "init_params", {}).get("params"))
    return Settings(values, _held(optimizer, values))


def _of_constructor(optimizer: Any) -> Settings:
    makers = [made for kind in type(optimizer).__mro__ if isinstance(made := vars(kind).get("__init__"), FunctionType)]
    names = [name for made in makers for name in inspect.signature(made).parameters]
    values = {
        name: text_of_setting(getattr(optimizer, name))
        for name in dict.fromkeys(names)
        if name not in ("self", "params", "parameters") and _is_setting(getattr(optimizer, name, None))
    }
    return Settings(values, _held(optimizer, values))


def _of_given_groups(groups: Any) -> dict[str, str]:
    """Return the options of groups of weights, as a program gave them."""
    found = {}
    for number, group in enumerate(groups if isinstance(groups, (list, tuple)) else ()):
        for name, value in group.items() if isinstance(group, dict) else ():
            if name not in ("params", "order_params"):
                found[f"group {number} {name}"] = text_of_setting(value)
    return found


def _of_groups(optimizer: Any) -> Settings:
    values, parameters = {}, {}
    for number, group in enumerate(optimizer.param_groups):
        prefix = f"group {number} " if len(optimizer.param_groups) > 1 else ""
        for name, value in group.items():
            if isinstance(value, Parameter):
                parameters[f"{prefix}{name}"] = (value.name,)
                value = optimizer.defaults.get(name, value) if not prefix else _first_value(value)  # noqa: PLW2901
            if name != "params" and _is_setting(value):
                values[f"{prefix}{name}"] = text_of_setting(value)
    return Settings(values, parameters)


def _first_value(parameter: Any) -> Any:
    """Return the value that a parameter had when it was seen first."""
    if parameter not in _first_values:
        _first_values[parameter] = float(parameter.asnumpy().reshape(-1)[0])
    return _first_values[parameter]


_first_values: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def _held(optimizer: Any, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return by setting the parameters of an optimizer that hold it."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        own = getattr(optimizer, "learning_rate" if name.endswith(" lr") else name, None)
        held = own if isinstance(own, (list, tuple)) else [getattr(own, "learning_rate", own)]
        listed = tuple(dict.fromkeys(one.name for one in held if isinstance(one, Parameter)))
        if listed:
            found[name] = listed
    return found


def _losses_of(cell: Any) -> list[str]:
    if isinstance(cell, nn.WithLossCell):
        loss = loss_of(cell)
        return [getattr(loss, "__qualname__", type(loss).__qualname__)]
    return [type(cell).__qualname__] if isinstance(cell, nn.LossBase) else []


def _is_setting(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_setting, value))
    return isinstance(value, (bool, int, float, str, Tensor, np.ndarray, np.generic, nn.Cell))


def text_of_setting(value: Any) -> str:
    """Return a setting as a text."""
    if isinstance(value, nn.Cell):
        return _schedule(value)
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = np.asarray(value.asnumpy() if isinstance(value, Tensor) else value, np.float64).tolist()
    if isinstance(value, (list, tuple)):
        texts = [text_of_setting(one) for one in value]
        if len(texts) <= _LISTED:
            return f"[{', '.join(texts)}]"
        digest = digest_of(memoryview(" ".join(texts).encode()))
        return f"{len(texts)} values from {texts[0]} to {texts[-1]} ({digest[-8:]})"
    if isinstance(value, float):
        return f"{value:.7g}"
    return str(value) if isinstance(value, (bool, int, str, type(None))) else type(value).__qualname__


def _schedule(cell: Any) -> str:
    """Return a schedule with the numbers in its attributes."""
    if isinstance(getattr(cell, "learning_rate", None), Parameter):  # a list, which MindSpore keeps so
        return text_of_setting(cell.learning_rate)
    numbers = {
        name: text_of_setting(value)
        for name, value in sorted(vars(cell).items())
        if name not in _of_any_cell and _is_setting(value) and not isinstance(value, nn.Cell)
    }
    return f"{type(cell).__qualname__}({', '.join(f'{name}={text}' for name, text in numbers.items())})"


_of_any_cell = frozenset(vars(nn.Cell()))
