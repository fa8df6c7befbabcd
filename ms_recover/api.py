"""The verbs: inspect, scan, assess, plan, check, apply.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Collection

from ms_recover.errors import FormatError
from ms_recover.execution.runner import check_plan as check
from ms_recover.execution.runner import run_plan as apply
from ms_recover.formats.ckpt import check_crc, read_header
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.identify import identify
from ms_recover.formats.strategy import read_strategy
from ms_recover.inventory.naming import SliceName, rank_in_path, read_slice_name
from ms_recover.inventory.scan import scan
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import Inventory, RankPath
from ms_recover.model.plan import StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.assess import assess_step
from ms_recover.planning.planner import make_plan as plan
from ms_recover.planning.planner import understand

__all__ = ["apply", "assess", "check", "inspect", "plan", "scan"]


def inspect(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Say what a file is and what it holds.

    Parameters
    ----------
    path : str or path
        The file.
    crc : bool
        Check a slice's CRC trailer, which reads the whole file.

    Returns
    -------
    Inspection
        Damage is told in its ``problems``.

    Raises
    ------
    MissingInputError, StorageError
        When the file is not there or cannot be read.
    """
    name = os.fspath(path)
    kind = identify(name)
    if isinstance(read_slice_name(RankPath(("",)), 0, os.path.basename(name)), SliceName):
        kind = kind if kind in ("group_info", "strategy") else "ckpt"  # by its name; what is wrong is told below
    try:
        if kind in ("ckpt", "encrypted-ckpt"):
            header = read_header(name)
            problems = header.problems
            if not problems and crc and header.crc is not None and (problem := check_crc(name, header)) is not None:
                problems = (problem,)
            return Inspection(name, header.kind, problems, header=header)
        if kind == "group_info":
            owner = rank_in_path(os.path.dirname(os.path.abspath(name)))
            return Inspection(name, kind, group_info=read_group_info(name, owner=owner))
        if kind == "strategy":
            return Inspection(name, kind, strategy=read_strategy(name))
    except FormatError as error:
        return Inspection(name, kind, (str(error),))
    return Inspection(name, kind, (f"not a slice, a group_info.pb or a strategy file but {kind}",))


def assess(
    inventory: Inventory,
    step: Step,
    *,
    world_size: int | None = None,
    lost: Collection[int] = (),
    newest: bool = False,
) -> StepAssessment:
    """Say what every rank has at one step, and who could replace what is gone.

    Where ranks share no file system each sees a part of the tree only; its own verdict is what counts then.

    Parameters
    ----------
    inventory : Inventory
        What `scan` found.
    step : Step
        The step.
    world_size, lost, newest
        As for `plan`.

    Raises
    ------
    UsageError, ContradictionError
        As `plan` does.
    """
    situation, _ = understand(inventory, lost=lost, world_size=world_size, newest=newest)
    return assess_step(situation, step)
