"""Buffers: the persistent tensors of cells that are no parameters, and so in no slice.

``Cell.register_buffer`` (``mindspore/nn/cell.py`` of 2.10) makes them. The state file of a slice holds them, and its
manifest their digests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ms_recover.errors import InputError
from ms_recover.formats.state import STATE_DTYPES
from ms_recover.model.manifest import Manifest
from ms_recover.model.texts import list_some
from ms_recover.stores.digest import digest_of
from ms_recover.training.cell_values import Cells
from ms_recover.training.constants import Kept, keep
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.mindspore_inside import (
    buffers_of_cell,
    parameters_of_cell,
    transient_buffers,
    without_gradient,
)
from ms_recover.training.proof import resume_line
from ms_recover.training.run_state import RunState
from ms_recover.training.snapshot import values_of

_log = logging.getLogger(__name__)

_MOST_NAMED = 8


def persistent_buffers(network: Any, cells: Cells | None = None) -> dict[str, Any]:
    """Return the persistent buffers of a network, by the names that they have in the program's own cell.

    `cells` are those of the network where they are known.

    A train network wraps the program's cell, as parameters show: their names say nothing of the wrappers. Where the
    names of two buffers would be one, both have their whole paths.
    """
    cells = list(network.cells_and_names()) if cells is None else cells
    paths = {
        _path(path, name): tensor
        for path, cell in cells
        for name, tensor in buffers_of_cell(cell).items()
        if tensor is not None and name not in transient_buffers(cell)
    }
    if not paths:
        return {}
    wrappers = sorted(set(_wrappers(cells)), key=len, reverse=True)
    short = {path: next((path[len(one) :] for one in wrappers if path.startswith(one)), path) for path in paths}
    names = list(short.values())
    return {short[path] if names.count(short[path]) == 1 else path: tensor for path, tensor in paths.items()}


def _wrappers(cells: Iterable[tuple[str, Any]]) -> Iterable[str]:
    """Yield what lies in front of the names of parameters in their paths."""
    for path, cell in cells:
        for key, parameter in parameters_of_cell(cell).items():
            whole = _path(path, key)
            if parameter is not None and whole.endswith(parameter.name):
                yield whole.removesuffix(parameter.name)


def _path(cell: str, name: str) -> str:
    return f"{cell}.{name}" if cell else name


def digests_of(buffers: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each buffer, by name."""
    return {name: digest_of(values_of(tensor)) for name, tensor in sorted(buffers.items())}


def savable(buffers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the buffers of types that a state file can hold; of the others the manifest has the digest alone."""
    return {name: tensor for name, tensor in buffers.items() if str(tensor.dtype) in STATE_DTYPES}


@dataclass(frozen=True)
class SavedBuffers:
    """The values that a rank loads into its buffers."""

    values: Mapping[str, Any] = field(default_factory=dict)
    listed: Mapping[str, str] = field(default_factory=dict)
    """The digests of all that was saved, by name; empty where no manifest states them."""
    borrowed: tuple[str, ...] = ()
    """This rank's own ones, which differed from those of the others and are lost."""

    def load(self, network: Any, own: OwnSlice) -> tuple[dict[str, str], list[Kept]]:
        """Write the values into the memory of the network's buffers; return their digests by name, and those before.

        What stays as the network begins with it is named, unless its digest shows that it is right. InputError when a
        buffer has another shape or type; nothing is written then.
        """
        present = persistent_buffers(network)
        loaded = {name: present[name] for name in sorted(present.keys() & self.values.keys())}
        for name, mine in loaded.items():
            theirs = self.values[name]
            if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                raise InputError(
                    f"{own}: the network has the buffer {name} as {mine.dtype} {list(mine.shape)}, and it was saved as "
                    f"{theirs.dtype} {list(theirs.shape)}: resume with the network that the slice was saved from"
                )
        before = [keep(mine) for mine in loaded.values()]
        with without_gradient():
            for name, mine in loaded.items():
                mine.copy_(self.values[name])
        self._name(present, own)
        return digests_of(loaded), before

    def _name(self, present: Mapping[str, Any], own: OwnSlice) -> None:
        left = digests_of({name: tensor for name, tensor in present.items() if name not in self.values})
        as_begun = "left as the network begins with them"
        texts = {
            f"lost, and no rank has equal ones; {as_begun}": [
                name for name in left if name in self.listed and left[name] != self.listed[name]
            ],
            f"not saved with the slice; {as_begun}": [name for name in left if name not in self.listed],
            "saved, but not in the network": sorted((self.values.keys() | self.listed.keys()) - present.keys()),
            "this rank's own and lost; the values are another rank's": [
                name for name in self.borrowed if name in present and name in self.values
            ],
        }
        for text, names in texts.items():
            if names:
                _log.warning("%s: these buffers are %s: %s", own, text, list_some(names, _MOST_NAMED))
                resume_line().doubt(f"buffers {list_some(names, _MOST_NAMED)} {text.partition(';')[0]}", "weights")


def saved_buffers(
    manifest: Manifest | None,
    state: RunState | None,
    others: Callable[[], Iterable[tuple[Manifest, Callable[[], RunState | None]]]],
    *,
    initial: bool = False,
) -> SavedBuffers:
    """Return the buffers of a slice: out of its state, else out of that of a slice whose manifest has their digests.

    Parameters
    ----------
    manifest : Manifest, optional
        That of the slice.
    state : RunState, optional
        What was saved with it, or with the slice that it was recovered from.
    others : callable
        Returns the manifests of the other slices of the step, each with a function that reads its state.
    initial : bool
        Leave what was this rank's own, and is lost, as the network begins with it.
    """
    record = manifest.training if manifest is not None else None
    saved = dict(state.buffers) if state is not None else {}
    if manifest is None or record is None or not record.buffers:
        return SavedBuffers(saved)
    listed = dict(record.buffers)
    found = _of_digests(saved, listed)
    for other, read in others() if len(found) < len(listed) else ():
        theirs = dict(other.training.buffers) if other.training is not None else {}
        if any(theirs.get(name) == digest for name, digest in listed.items() if name not in found):
            held = read()
            found |= _of_digests(dict(held.buffers) if held is not None else {}, listed)
    own = record.own_buffers if manifest.recovered else ()
    kept = {name: value for name, value in found.items() if not initial or name not in own}
    return SavedBuffers(kept, listed, own)


def _of_digests(saved: Mapping[str, Any], listed: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in saved.items() if digest_of(values_of(value)) == listed.get(name)}
