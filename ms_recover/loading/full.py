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
from typing import Any, get_args

from ms_recover import api, resharding
from ms_recover.errors import MissingInputError, UsageError, VerificationError
from ms_recover.loading.full_parameters import FullParameters
from ms_recover.loading.kinds import Kind, values_module
from ms_recover.loading.whole_checkpoint import open_whole
from ms_recover.loading.whole_source import source_of_slices
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions, ScanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.resharding.source import EVERY_PARAMETER
from ms_recover.planning.resharding.step_plan import steps_to_try
from ms_recover.scanning.whole_files import has_whole_files
from ms_recover.stores.urls import open_store, shown_url

_log = logging.getLogger(__name__)

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_WHOLE = ReshardOptions(full=True, shard_size=0)
_NOWHERE = os.devnull
"""The output of a plan by which nothing is written."""


def load_full(
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
        names them, as ``recover-ckpt reshard --full`` and Hugging Face's tools write them.
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
        What else decides: the run, the operator's word for groups or axes.
    verify : bool
        Read all slices of the step at once and compare replicas, as ``recover-ckpt plan`` does; whole files are
        compared with their manifests. Otherwise a file counts as its manifest and header say, and what is taken of it
        is compared with its manifest when it is read.

    Raises
    ------
    MissingInputError
        When there is no tree, no slice, or nothing states how parameters are cut.
    UsageError
        When an argument is invalid, the step has none of these parameters, or a package is not installed.
    VerificationError
        When slices differ and nothing settles which is right.
    FormatError, ContradictionError, StorageError
        As `ms_recover.api.scan` and `ms_recover.resharding.plan_reshard`.
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
    shown: ReshardPlan | None = None
    rejected: list[RejectedStep] = []
    for step in [options.step] if options.step is not None else list(steps_to_try(inventory, options)):
        plan = resharding.plan_reshard(inventory, _NOWHERE, _WHOLE, replace(options, step=step))
        if plan.disagreements:
            raise VerificationError(
                f"{inventory.root}, step {step}: {'; '.join(plan.disagreements)}: nothing shows which is right; see "
                f"recover-ckpt plan {inventory.root}"
            )
        known = {one.name for one in plan.parameters} | {one.parameter for one in plan.missing}
        unknown = [name for name in wanted or () if name not in known]
        if unknown and not any(one.parameter.startswith(EVERY_PARAMETER) for one in plan.missing):
            has = f"step {step} of {inventory.root} has no {name_some(unknown)}; it has {name_some(sorted(known))}"
            raise UsageError(f"names: {has}")
        lost = [one for one in plan.missing if wanted is None or one.parameter in wanted]
        if not unknown and not lost:
            shown = replace(plan, rejected_steps=tuple(rejected))
            break
        shown = shown or plan
        gone = list(dict.fromkeys([*(one.parameter for one in lost), *unknown]))
        why = lost[0].reason if lost else plan.missing[0].reason
        rejected.append(RejectedStep(step, f"nobody holds all of {name_some(gone)} ({why})"))
    if shown is None:
        raise MissingInputError(f"{inventory.root} holds no slice of the present run: name a step with step=")
    for one in rejected:
        what = "taken all the same" if one.step == shown.step else f"step {shown.step} is taken"
        _log.warning("%s: step %s: %s; %s", shown.root, one.step, one.reason, what)
    return shown


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
