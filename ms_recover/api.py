"""The verbs of ms_recover: `scan` a tree, `plan` a recovery, `apply` it, `verify` what is there, and the others.

Each loads its room on use.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.verbs.audit import audit, audit_claims, count_ranks_of_claims, read_claims
    from ms_recover.verbs.backup import copy, open_target
    from ms_recover.verbs.complete import complete
    from ms_recover.verbs.history import history
    from ms_recover.verbs.metrics import measure
    from ms_recover.verbs.recover import apply, check, explain, plan
    from ms_recover.verbs.report import describe
    from ms_recover.verbs.reshard import check_output, plan_reshard, reshard
    from ms_recover.verbs.scan import inspect, scan
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
    _ROOMS = {
        "audit": ("audit", "audit_claims", "count_ranks_of_claims", "read_claims"),
        "backup": ("copy", "open_target"),
        "complete": ("complete",),
        "history": ("history",),
        "metrics": ("measure",),
        "recover": ("apply", "check", "explain", "plan"),
        "report": ("describe",),
        "reshard": ("check_output", "plan_reshard", "reshard"),
        "scan": ("inspect", "scan"),
        "several_trees": ("SeveralTrees",),
        "verify": ("seal", "verify"),
    }
    __getattr__, __dir__ = lazy_names(
        __name__, {name: f"ms_recover.verbs.{room}" for room, names in _ROOMS.items() for name in names}
    )
