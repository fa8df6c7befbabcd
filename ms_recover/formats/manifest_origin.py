"""The provenance that manifests of version 1 state in a sentence."""

from __future__ import annotations

import re
from typing import get_args

from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.verdicts import Evidence

_COPIED = re.compile(r"rank (\d{1,9}) \((.*)\)\Z", re.ASCII | re.DOTALL)
_EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)


def parse_origin(text: str) -> Provenance:
    """Return the provenance that a manifest of version 1 states in a sentence.

    Version 1 wrote ``saved``, ``sealed by EVIDENCE``, ``recovered from rank R (PATH), by EVIDENCE`` and
    ``recovered from PATH, PATH, by EVIDENCE``, the last two with borrowed parameters behind a semicolon.
    """
    if text.startswith("sealed"):
        return Provenance(kind="sealed", evidence=_evidence(text.removeprefix("sealed by ")))
    if not text.startswith("recovered"):
        return Provenance(kind="saved")
    main, _, rest = text.partition("; of ")
    borrowed = tuple(name for name in rest.partition(" are the values of ")[2].split(", ") if name)
    main, _, evidence = main.removeprefix("recovered from ").rpartition(", by ")
    copied = _COPIED.match(main)
    if copied is None:
        sources = tuple(ProvenanceSource(None, path) for path in main.split(", ") if path)
        return Provenance(kind="composed", evidence=_evidence(evidence), sources=sources, borrowed=borrowed)
    source = ProvenanceSource(int(copied[1]), copied[2])
    return Provenance(kind="copied", evidence=_evidence(evidence), sources=(source,), borrowed=borrowed)


def _evidence(text: str) -> Evidence:
    return next((one for one in _EVIDENCE if one == text), "structure")
