"""The verb load_full: whole parameters out of the slices of all ranks, or of whole files, when they are asked for.

>>> from ms_recover import load_full
>>> with load_full("output/checkpoint") as parameters:                              # doctest: +SKIP
...     weight = parameters["decoder.layers.0.attention.weight"]
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from ms_recover import api
from ms_recover.errors import MissingInputError, UsageError, VerificationError
from ms_recover.loading.full_parameters import FullParameters
from ms_recover.loading.kinds import Kind, values_module
from ms_recover.loading.path_arguments import Paths
from ms_recover.loading.whole_checkpoint import open_whole
from ms_recover.loading.whole_source import source_of_slices
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions, ScanOptions
from ms_recover.model.plan import texts_of_passed_over
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.supply.whole import EVERY_PARAMETER
from ms_recover.scanning.whole_files import has_whole_files
from ms_recover.stores.urls import open_store, shown_url

_log = logging.getLogger(__name__)


_WHOLE = ReshardOptions(full=True, shard_size=0)
_NOWHERE = os.devnull
"""The output of a plan by which nothing is written."""


def load_full(  # noqa: PLR0913 (the keywords of programs)
    root: str | os.PathLike[str],
    names: str | Iterable[str] | None = None,
    *,
    as_: Kind = "numpy",
    step: Step | str | None = None,
    pattern: str | None = None,
    group_info: Paths = (),
    strategy: Paths = (),
    options: PlanOptions = DEFAULT_PLAN,
    verify: bool = False,
) -> FullParameters:
    """Open a checkpoint tree as a mapping of whole parameters; contents are read when a parameter is asked for.

    Parameters
    ----------
    root : str or path
        Any tree that ``recover-ckpt plan`` reads, or its URL; slices may be lost or damaged. Or a folder without ranks
        that holds ``model.ckpt`` or ``model.safetensors``, or pieces and the ``model.safetensors.index.json`` that
        names them, as ``recover-ckpt reshard --full`` and Hugging Face's tools write them; or ``part*.safetensors`` and
        the ``param_name_map.json`` that MindSpore's ``unified_safetensors`` writes.
    names : str or iterable of str, optional
        The parameters that are wanted; all by default. Only these decide which step is whole.
    as_ : {"numpy", "mindspore"}
        Give arrays, or ``mindspore.Parameter``; MindSpore is imported only for these.
    step : Step or str, optional
        ``"2_77"``, or of an iteration ``"200"``; by default the newest step of which every region of these parameters
        has a sound holder, and without one the newest step.
    pattern, group_info, strategy
        Where slices, rank lists and strategy files lie, as for ``recover-ckpt``.
    options : PlanOptions
        What else decides: the run, the operator's word for groups or axes. Where a tree has several experiments, by
        the prefixes that their programs gave, ``PlanOptions(run=PREFIX)`` must name one.
    verify : bool
        Read all slices of the step at once and compare replicas, as ``recover-ckpt plan`` does; whole files are
        compared with their manifests. Otherwise a file counts as its manifest and header say, and what is taken of it
        is compared with its manifest when it is read.

    Raises
    ------
    MissingInputError
        When there is no tree, no slice, or nothing states how parameters are cut.
    UsageError
        When an argument is invalid, the tree has several experiments and none is named, the step has none of these
        parameters, or a package is not installed.
    VerificationError
        When slices differ and nothing settles which is right.
    FormatError, ContradictionError, StorageError
        As `ms_recover.api.scan` and `ms_recover.verbs.reshard.plan_reshard`.
    """
    if as_ not in get_args(Kind):
        raise UsageError(f"as_={as_!r}: it must be 'numpy' or 'mindspore'")
    values_module(as_)
    wanted = _names(names)
    scanning = ScanOptions(pattern=pattern, group_info=_paths(group_info), strategy=_paths(strategy), crc=verify)
    options = replace(options, step=_step(step) or options.step)
    try:
        inventory = api.scan(root, scanning)
    except MissingInputError as error:
        if scanning != ScanOptions(crc=verify) or options != replace(DEFAULT_PLAN, step=options.step):
            if _has_whole_files(root):
                chosen = "pattern, group_info, strategy and options choose among slices of ranks: leave them out"
                raise UsageError(f"{shown_url(os.fspath(root))} holds whole parameters, and {chosen}") from error
            raise
        source = open_whole(root, wanted, options.step, verify=verify)
        if source is None:
            raise
        return FullParameters(source, as_)
    if _has_whole_files(root):
        _log.warning("%s: the whole parameters in it are passed over: it has slices of ranks as well", inventory.root)
    plan = _plan(inventory, replace(options, quick=not verify), wanted)
    bare = sum(not one.digests for one in plan.sources)
    if bare:
        _log.warning(
            "%s, step %s: %d of %d slices have no manifest, so what is taken of them rests on their structure only; "
            "verify=True reads all slices and compares replicas",
            *(plan.root, plan.step, bare, len(plan.sources)),
        )
    return FullParameters(source_of_slices(plan, wanted), as_)


def _has_whole_files(root: str | os.PathLike[str]) -> bool:
    with open_store(root) as store:
        return has_whole_files(store)


def _plan(inventory: Inventory, options: PlanOptions, wanted: tuple[str, ...] | None) -> ReshardPlan:
    """Plan the newest step of which the wanted parameters are whole, or the newest where none is."""
    why_not = partial(_why_lacking, wanted=wanted)
    plan = api.plan_reshard(inventory, _NOWHERE, _WHOLE, options, why_not=why_not, refuse_several=True)
    if plan.disagreements:
        raise VerificationError(
            f"{inventory.root}, step {plan.step}: {'; '.join(plan.disagreements)}: nothing shows which is right; see "
            f"recover-ckpt plan {inventory.root}"
        )
    for text in texts_of_passed_over(plan.rejected_steps):
        _log.warning("%s: %s; step %s is taken", plan.root, text, plan.step)
    if (why := why_not(plan)) is not None:
        _log.warning("%s: step %s: %s; taken all the same", plan.root, plan.step, why)
    return plan


def _why_lacking(plan: ReshardPlan, wanted: tuple[str, ...] | None) -> str | None:
    """Return why the wanted parameters of a step are not whole; None where they are."""
    if plan.disagreements:
        return plan.disagreements[0]
    known = {one.name for one in plan.parameters} | {one.parameter for one in plan.missing}
    unknown = [name for name in wanted or () if name not in known]
    if unknown and not any(one.parameter.startswith(EVERY_PARAMETER) for one in plan.missing):
        has = f"step {plan.step} of {plan.root} has no {name_some(unknown)}; it has {name_some(sorted(known))}"
        raise UsageError(f"names: {has}")
    lost = [one for one in plan.missing if wanted is None or one.parameter in wanted]
    if not unknown and not lost:
        return None
    gone = list(dict.fromkeys([*(one.parameter for one in lost), *unknown]))
    return f"nobody holds all of {name_some(gone)} ({(lost or plan.missing)[0].reason})"


def _names(names: Any) -> tuple[str, ...] | None:
    if names is None or isinstance(names, str):
        return names if names is None else (names,)
    found = tuple(dict.fromkeys(names)) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in found):
        raise UsageError(f"names={names!r}: it must be a name of a parameter, or several")
    return found


def _step(step: Any) -> Step | None:
    if step is None or isinstance(step, Step):
        return step
    try:
        return Step.parse(str(step))
    except ValueError as error:
        raise UsageError(f"step={step!r}: {error}") from error


def _paths(paths: Paths) -> tuple[str, ...]:
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return tuple(str(os.fspath(path)) for path in listed)
