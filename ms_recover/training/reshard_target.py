"""How the parameters of the running job are cut: by its compiler, by layouts that the program states, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ms_recover.errors import InputError, UsageError
from ms_recover.formats.strategy import decode_strategy
from ms_recover.model.strategy import Layout
from ms_recover.model.texts import list_some
from ms_recover.planning.claims.layouts import NOT_SHARDED, cells_of
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.reshard.target import Target
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.layouts import with_states
from ms_recover.training.options import is_data_parallel, listed_layouts, optimizer_is_shared_out
from ms_recover.training.snapshot import is_compiled_parallel, saved_parameters


@dataclass(frozen=True, kw_only=True)
class StatedCut:
    """What the program states about how its parameters are cut.

    Parameters
    ----------
    layouts : tuple of Layout or None
        Those of weights.
    group : frozenset of int or None
        The ranks that hold the same slice.
    """

    layouts: tuple[Layout, ...] | None = None
    group: frozenset[int] | None = None

    @classmethod
    def of(cls, layouts: Iterable[Layout] | None, savers: Iterable[Any], job: TrainingJob) -> StatedCut:
        """Return what the arguments state, else what a saver among the callbacks was given.

        Raises
        ------
        UsageError
            When layouts contradict each other or the number of ranks.
        """
        given = listed_layouts(layouts, job.size)
        if given is not None:
            return cls(layouts=given)
        stated = [saver.stated for saver in savers]
        layouts = next((found for found, _ in stated if found is not None), None)
        group = next((ranks for _, ranks in stated if ranks is not None), None)
        return cls(layouts=layouts, group=None if layouts is not None else group)


@dataclass(frozen=True, kw_only=True)
class JobTarget:
    """The target of one pipeline stage of the running job, and this rank's place in it."""

    target: Target
    place: int
    names: frozenset[str] = field(default_factory=frozenset)
    """The parameters that the slice of this rank holds."""


def target_of(
    job: TrainingJob, network: Any, stated: StatedCut, compiled: bytes | None, *, uncut: bool = False
) -> JobTarget:
    """Return how this rank's parameters are cut; `compiled` is the strategy file that its compiler wrote, if it did.

    Where nothing states it, and all ranks of the source hold everything (`uncut`), so do those of this job.

    Raises
    ------
    UsageError
        When nothing states it, or layouts do not fit the network.
    InputError
        When the compiler cut the network and nothing shows how.
    """
    parameters = saved_parameters(network)
    if stated.layouts is not None:
        layouts = with_states(stated.layouts, network)
    elif compiled is not None:
        layouts = list(decode_strategy(compiled, "the strategy that was compiled").layouts)
    elif is_compiled_parallel(network):
        raise InputError(
            f"rank {job.rank}: the network is cut by MindSpore's compiler, and nothing shows how: resume with "
            "recover_train, which compiles it, or give resume() the layouts, such as "
            "layouts=ms_recover.formats.strategy.read_strategy('strategy.ckpt').layouts"
        )
    else:
        _check_whole(job, stated.group, uncut)
        layouts = []
    devices = prod(layouts[0].device_matrix) if layouts else job.size
    named = {layout.parameter: layout for layout in layouts}
    for one in parameters:
        if one.name not in named and prod(one.shape) > 1:
            named[one.name] = Layout(one.name, (devices,), ((),) * len(one.shape))
    names = frozenset(one.name for one in parameters)
    known = {name: layout for name, layout in named.items() if name in names or name.startswith(NOT_SHARDED)}
    return JobTarget(
        target=Target(devices=devices, stages=(known,), source="this job"), place=job.rank % devices, names=names
    )


def _check_whole(job: TrainingJob, group: Collection[int] | None, uncut: bool) -> None:
    if job.size == 1:
        return
    if optimizer_is_shared_out():
        raise UsageError(
            "reshard=True: with enable_parallel_optimizer in data_parallel mode each rank updates only its own "
            "optimizer states, and nothing says which: resume without it, or state the layouts"
        )
    everywhere = uncut if group is None else len(group) == job.size
    if not is_data_parallel() and not everywhere:
        raise UsageError(
            f"reshard=True: nothing states how the parameters are cut over the {job.size} ranks of this job: give "
            "layouts=[ms_recover.training.cut(...), ...], as for SliceCheckpoint, or its group with all ranks where "
            "each holds everything"
        )


def is_cut_like(job: TrainingJob, target: Target, stages: Stages, ranks: int) -> bool:
    """Whether slices of so many ranks are cut in this rank's stage as the target cuts it."""
    if ranks != job.size or (stages.layouts and stages.devices != target.devices):
        return False
    before = stages.layouts.get(job.rank // target.devices, {})
    if stages.layouts and not before:
        return False
    names, devices = target.stages[0].keys() | before.keys(), target.devices
    return _parts(target.stages[0], names, devices) == _parts(before, names, devices)


def why_cut_otherwise(job: TrainingJob, layouts: Iterable[Layout], network: Any, stages: Stages) -> str | None:
    """Return which parameter the layouts of this job cut otherwise than those of its slices do; None where none is."""
    stated = {layout.parameter: layout for layout in with_states(list(layouts), network)}
    devices = max((prod(layout.device_matrix) for layout in stated.values()), default=job.size)
    before = stages.layouts.get(job.rank // devices, {})
    names = stated.keys() & before.keys()
    if stages.devices != devices:
        return None
    now, then = _parts(stated, names, devices), _parts(before, names, devices)
    odd = sorted(name for name in names if now[name] != then[name])
    return f"{list_some(odd, 8)} are cut otherwise than the layouts of this job say" if odd else None


def _parts(layouts: Mapping[str, Layout], names: Iterable[str], ranks: int) -> dict[str, object]:
    """Return for each parameter that is cut the part of each rank, None for one that is whole."""
    found: dict[str, object] = {}
    for name in names:
        layout = layouts.get(name)
        parts = tuple(cell.index for cell in cells_of(layout, range(ranks))) if layout is not None else ()
        found[name] = parts if len(set(parts)) > 1 else None
    return found
