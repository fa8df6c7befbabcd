"""The verbs of ms_recover: `scan` a tree, `plan` a recovery, `apply` it, `verify` what is there, and the others.

Each loads its module on use; one that needs no reading of slices is the function of its room.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.execution.apply import check
    from ms_recover.execution.backup_target import open_target
    from ms_recover.scanning.claims import read_claims
    from ms_recover.scanning.inspect import inspect
    from ms_recover.scanning.scan import scan
    from ms_recover.verbs.audit import audit, audit_claims, count_ranks_of_claims
    from ms_recover.verbs.backup import copy
    from ms_recover.verbs.complete import complete, complete_iteration
    from ms_recover.verbs.history import history
    from ms_recover.verbs.metrics import measure
    from ms_recover.verbs.recover import apply, explain, plan
    from ms_recover.verbs.report import describe
    from ms_recover.verbs.reshard import check_output, plan_reshard, reshard
    from ms_recover.verbs.several_trees import SeveralTrees
    from ms_recover.verbs.verify import seal, verify

__all__ = [
    "SeveralTrees",
    "apply",
    "audit",
    "audit_claims",
    "check",
    "check_output",
    "complete",
    "complete_iteration",
    "copy",
    "count_ranks_of_claims",
    "describe",
    "explain",
    "history",
    "inspect",
    "measure",
    "open_target",
    "plan",
    "plan_reshard",
    "read_claims",
    "reshard",
    "scan",
    "seal",
    "verify",
]

if not TYPE_CHECKING:
    _HOMES = {
        "execution.apply": ("check",),
        "execution.backup_target": ("open_target",),
        "scanning.claims": ("read_claims",),
        "scanning.inspect": ("inspect",),
        "scanning.scan": ("scan",),
        "verbs.audit": ("audit", "audit_claims", "count_ranks_of_claims"),
        "verbs.backup": ("copy",),
        "verbs.complete": ("complete", "complete_iteration"),
        "verbs.history": ("history",),
        "verbs.metrics": ("measure",),
        "verbs.recover": ("apply", "explain", "plan"),
        "verbs.report": ("describe",),
        "verbs.reshard": ("check_output", "plan_reshard", "reshard"),
        "verbs.several_trees": ("SeveralTrees",),
        "verbs.verify": ("seal", "verify"),
    }
    __getattr__, __dir__ = lazy_names(
        __name__, {name: f"ms_recover.{home}" for home, names in _HOMES.items() for name in names}
    )
