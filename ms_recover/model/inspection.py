"""What `inspect` says about one file."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.groups import GroupInfo
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.slices import SliceHeader
from ms_recover.model.strategy import Strategy
from ms_recover.model.units import Count


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of one file: members that its kind does not have are left out."""

    RECORD = "kind path problems *header? *group_info? *strategy? *metadata? *common? iteration?"

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
    metadata: ShardMetadata | None = None
    common: CommonInfo | None = None
    iteration: Count | None = None
    """The iteration that the tracker names."""
