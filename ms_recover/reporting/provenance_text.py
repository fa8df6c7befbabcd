"""The origin of a slice as text."""

from __future__ import annotations

from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.texts import list_some

_EVIDENCE = {
    "manifest": "confirmed by manifest",
    "vote": "confirmed by vote",
    "layout": "by the layouts of a strategy file",
    "structure": "by structure only: contents were not compared",
}


def provenance_text(provenance: Provenance) -> str:
    """Return the origin of a slice as one clause, such as ``copied from rank 3 (a/b.ckpt), confirmed by vote``."""
    ground = f", {_EVIDENCE[provenance.evidence]}" if provenance.evidence is not None else ""
    if provenance.kind == "saved":
        return "saved by training"
    if provenance.kind == "sealed":
        return f"saved without a manifest and sealed later{ground}"
    sources = list_some([_source_text(source) for source in provenance.sources]) or "a source that is not named"
    text = f"{provenance.kind} from {sources}{ground}"
    if provenance.borrowed:
        text += f"; values of another rank in {list_some(provenance.borrowed)}"
    return text


def _source_text(source: ProvenanceSource) -> str:
    place = f"{source.path} at {source.host}" if source.host is not None else source.path
    return f"rank {source.rank} ({place})" if source.rank is not None else place
