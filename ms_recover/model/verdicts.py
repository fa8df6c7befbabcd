"""The closed sets of words in which slices, ranks and actions are judged."""

from __future__ import annotations

from typing import Literal

Evidence = Literal["manifest", "vote", "layout", "operator", "structure"]
"""The ground of a decision: a manifest, equal contents elsewhere, the layouts of a strategy file, the operator's word
about who holds the same, or headers only.
"""

SliceStatus = Literal[
    "sound",
    "damaged",
    "unreadable",
    "suspect",
    "uncommitted",
    "foreign",
    "ambiguous",
    "superseded",
    "replaced",
    "undecided",
    "missing",
]
"""The worth of one slice.

``damaged``: structure or contents are broken. ``unreadable``: the operating system refused to open it. ``suspect``:
it was outvoted, or its bytes belong elsewhere. ``uncommitted``: its manifest is missing although its run writes
manifests. ``foreign``: of another run, prefix, world or layout. ``ambiguous`` and ``superseded``: one of several of its
rank. ``replaced``: a recovered slice of the other format lies beside it. ``undecided``: replicas differ and nothing
settles it. ``missing``: there is none, where there should be one.
"""

RankState = Literal["ok", "missing", "damaged", "unreadable", "lost"]
"""A rank at one step; ``lost`` is declared by the operator."""

Verdict = Literal["keep", "copy", "compose", "unrecoverable"]
"""The plan for one rank."""

Answer = Literal[
    "COMPLETE",
    "RECOVERABLE",
    "BLOCKED",
    "UNCERTAIN",
    "UNDECIDED",
    "UNHEALTHY",
    "PERMISSION DENIED",
    "UNRECOVERABLE",
    "REFUSED",
]
"""The answer of a plan, with which its headline begins.

``COMPLETE``: every rank has its slice. ``BLOCKED``: every rank has its slice or a source, and something keeps a file
from being written where it belongs. ``UNCERTAIN``: so has every rank that is known, but nothing states how many
there are. ``UNDECIDED``: replicas differ and nothing settles it. ``UNHEALTHY``: every step that could be had is passed
over. ``REFUSED``: by ``--require-newest``.
"""

ComposeKind = Literal["compose", "partial", "complete"]
"""A whole slice under its own name, the surviving parameters of one, or all parameters of a stage."""

ActionStatus = Literal["copied", "composed", "already there", "failed", "planned"]
"""The end of one action; ``planned`` of a dry run: it would be written."""
