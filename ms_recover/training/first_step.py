"""The values that a resumed training begins with, compared when all callbacks have begun and nothing else has acted.

A callback that writes parameters in ``on_train_begin`` (pretrained weights, a learning rate) writes over what was
resumed. What callbacks write when an epoch or a step begins belongs to the training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mindspore.train import Callback

from ms_recover.errors import InputError, UsageError
from ms_recover.model.texts import list_some
from ms_recover.stores.digest import digest_of
from ms_recover.training.buffers import SavedBuffers, digests_of, persistent_buffers, saved_buffers
from ms_recover.training.constants import Kept, compile_with
from ms_recover.training.deciding.resume_text import Subject
from ms_recover.training.mindspore_inside import without_gradient
from ms_recover.training.network import load_into_network
from ms_recover.training.network_state import is_graph, name_constants, restore
from ms_recover.training.obtained import Obtained
from ms_recover.training.proof import resume_line
from ms_recover.training.run_state import RunState
from ms_recover.training.snapshot import saved_parameters, values_of
from ms_recover.training.this_process import device_target

_log = logging.getLogger(__name__)

_MOST_NAMED = 8

_FIRST_EVENTS = ("on_train_epoch_begin", "on_train_step_begin", "epoch_begin", "step_begin")


def _is_stock(callback: Any) -> bool:
    return type(callback).__module__.startswith("mindspore.")


def checked_allow(allow: Any) -> frozenset[str]:
    """Return the names that callbacks may write; UsageError when they are none."""
    names = [allow] if isinstance(allow, str) else list(allow) if isinstance(allow, Iterable) else [None]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"allow={allow!r}: give the names of parameters, such as ['learning_rate']")
    return frozenset(names)


class Settling:
    """What is open between the comparison of what a training begins with and its first step; one of each training."""

    def __init__(self) -> None:
        self._unsettled: list[LoadedValues] = []
        self._waiting: list[Callable[[], None]] = []

    def add(self, values: LoadedValues) -> None:
        """Take up values that were put back, until the first step shows who else writes them."""
        self._unsettled.append(values)

    @property
    def is_settled(self) -> bool:
        """Whether what the training began with is proven, so that files may be renamed."""
        return not self._unsettled

    def settle(self) -> None:
        """Refuse values that a callback has written over what was resumed, and that nothing has written since.

        All ranks call it together when all callbacks have begun the first step.
        """
        while self._unsettled:
            self._unsettled.pop().settle()
        while self._waiting:
            self._waiting.pop(0)()

    def when_settled(self, action: Callable[[], None]) -> None:
        """Do what must not be done before everything is proven: at once, or when it is settled."""
        self._waiting.append(action)
        if self.is_settled:
            self.settle()


def settling_of(callbacks: Iterable[Any]) -> Settling:
    """Return what is open in the training that callbacks belong to; of one that was not resumed nothing is."""
    found = (getattr(one, "settling", None) for one in callbacks)
    return next((one for one in found if isinstance(one, Settling)), None) or Settling()


class LoadedValues:
    """What one rank has loaded: parameters and buffers, with their digests.

    Parameters
    ----------
    found : Obtained
        The slice.
    network : callable
        Returns the cell that it is loaded into.
    model : Model, optional
        The model whose train network that is; what MindSpore compiles of it, it places itself.
    allow : collection of str
        Parameters and buffers that callbacks may write in ``on_train_begin``.
    """

    def __init__(
        self, found: Obtained, network: Callable[[], Any], model: Any = None, allow: Collection[str] = ()
    ) -> None:
        self._found, self._network, self._model = found, network, model
        self._in_place = model is None or device_target() == "CPU" or not is_graph()
        self._allow = frozenset(allow)
        self._buffers = SavedBuffers()
        self.begun: list[Kept] = []
        """The buffers that were loaded, with their values before."""
        self._expected: dict[str, str] = {}
        self._pending: tuple[str, ...] = ()
        self._who, self._writes_again = "", False

    def load(self, state: RunState | None, compile_it: Callable[[], None] = lambda: None) -> None:
        """Load parameters and buffers, and note what they have to be; errors of `Obtained.load` and of buffers."""
        found = self._found
        found.load(self._network, compile_it, in_place=self._in_place, model=self._model)
        cell = self._network()
        initial = found.rank_local == "initial"
        self._buffers = saved_buffers(found.manifest, state, found.others, initial=initial)
        stated = {name: one for name, one in found.digests().items() if name not in found.initial}
        names = [one.name for one in saved_parameters(cell) if one.name not in found.initial]
        odd = [name for name in names if name not in stated]
        self._expected = {name: stated[name] for name in names if name in stated}
        self._expected |= _parameter_digests(cell, odd)
        digests, self.begun = self._buffers.load(cell, found.own)
        self._expected |= digests

    def compare(self, callbacks: Iterable[Any], state: RunState | None, settling: Settling) -> None:
        """Compare everything that was loaded, then restore what cells keep; all ranks call it together.

        What a callback has written is put back, so that callbacks which write it at the first step find what they would
        have found in the interrupted training. Where none does, `settling` refuses it.
        """
        job, own = self._found.job, self._found.own
        differing = job.run_together("comparing what was loaded", self._differing)
        writers = [one for one in callbacks if _acts(one, "on_train_begin", "begin")]
        self._who = list_some([type(one).__qualname__ for one in writers], _MOST_NAMED)
        self._writes_again = any(_acts(one, *_FIRST_EVENTS) for one in writers if not _is_stock(one))
        allowed = [name for name in differing if name in self._allow]
        if allowed:
            _log.warning(
                "%s: %s: written by a callback in on_train_begin (%s) behind the resume; training goes on with that, "
                "as allow= says",
                own,
                list_some(allowed, _MOST_NAMED),
                self._who,
            )
            resume_line().doubt(f"{list_some(allowed, _MOST_NAMED)} as allow= says", *self._subjects(allowed))
        self._pending = tuple(name for name in differing if name not in self._allow)
        if not job.holds_everywhere(not self._pending, "comparing what was loaded"):
            job.run_together("loading once more what a callback wrote", self._put_back)
            settling.add(self)
        begun = job.run_together("restoring what cells keep", lambda: restore(self._network(), state, own))
        if self._model is not None and is_graph():
            compile_with(self._model.train_network, [*self.begun, *begun])
        else:
            name_constants([*self.begun, *begun], state, own)

    def settle(self) -> None:
        """Raise InputError where nothing has written what was put back."""
        self._found.job.run_together("comparing what was loaded", self._refuse)

    def _refuse(self) -> None:
        differing, own = self._differing(), self._found.own
        left = [name for name in self._pending if name not in differing]
        if not left:
            _log.info("%s: %s: written once more at the first step", own, list_some(self._pending, _MOST_NAMED))
        elif self._writes_again:  # the same values, maybe, which nothing shows: they are the right ones in any case
            _log.warning(
                "%s: %s: written by a callback in on_train_begin (%s) behind the resume, and put back: training goes "
                "on with what was resumed; allow=%r goes on with what it writes",
                own,
                list_some(left, _MOST_NAMED),
                self._who,
                left,
            )
        else:
            raise InputError(
                f"{own}: {list_some(left, _MOST_NAMED)} would not be what was resumed: a callback writes it in "
                f"on_train_begin ({self._who or 'none of the program acts there'}), behind the resume. Nothing is "
                "trained: have it write only where a training begins anew (cur_step_num is 0), or go on with what "
                f"it writes by allow={left!r}"
            )

    def _subjects(self, names: Collection[str]) -> set[Subject]:
        """Return what parameters and buffers are for the line of the resume."""
        trained = {one.name for one in self._network().trainable_params()}
        weights = {*trained, *persistent_buffers(self._network())}
        return {"weights" if name in weights else "optimizer" for name in names}

    def _differing(self) -> list[str]:
        cell = self._network()
        names = {one.name for one in saved_parameters(cell)}
        now = _parameter_digests(cell, names & self._expected.keys())
        buffers = persistent_buffers(cell)
        now |= digests_of({name: one for name, one in buffers.items() if name in self._expected and name not in names})
        return [name for name, digest in self._expected.items() if now.get(name, digest) != digest]

    def _put_back(self) -> None:
        cell = self._network()
        names = {one.name for one in saved_parameters(cell)}
        wrong = names.intersection(self._pending)
        if wrong:
            values = self._found.values(cell)
            chosen = {name: values[name] for name in wrong}
            load_into_network(cell, chosen, self._found.own, names - wrong, in_place=self._in_place)
        for name, buffer in persistent_buffers(cell).items():
            if name in self._pending and name in self._buffers.values:
                with without_gradient():
                    buffer.copy_(self._buffers.values[name])


def _parameter_digests(cell: Any, names: Collection[str]) -> dict[str, str]:
    return {one.name: digest_of(values_of(one.data)) for one in saved_parameters(cell) if one.name in names}


def _acts(callback: Any, *events: str) -> bool:
    """Whether a callback of the program, or of MindSpore's, does something at one of some events."""
    kind = type(callback)
    if kind.__module__.startswith("ms_recover."):
        return False
    return any(getattr(kind, event, None) is not getattr(Callback, event) for event in events)
