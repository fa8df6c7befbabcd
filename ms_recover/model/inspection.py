"""What `inspect` says about one file."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.groups import GroupInfo
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.slices import SliceHeader
from ms_recover.model.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Inspection:
    """One file, whatever it turned out to be."""

    path: str
    """As it was named."""
    kind: str
    """``"ckpt"``, ``"encrypted-ckpt"``, ``"safetensors"``, ``"group_info"``, ``"strategy"``, of MindFormers' documents
    ``"metadata"``, ``"common"`` and ``"tracker"``, or what else it is.
    """
    problems: tuple[str, ...] = ()
    header: SliceHeader | None = None
    group_info: GroupInfo | None = None
    strategy: Strategy | None = None
    document: ShardMetadata | CommonInfo | int | None = None
    """Of MindFormers; of the tracker the iteration that it names."""
