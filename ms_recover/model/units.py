"""Names of the plain types in nouns that become JSON; `ms_recover.formats.codec` has the bounds of each."""

from __future__ import annotations

from typing import TypeAlias

Rank: TypeAlias = int
"""A rank, or a number of ranks."""
Size: TypeAlias = int
"""A number of bytes, or an offset."""
Count: TypeAlias = int
"""A number of anything else, from 0."""
BigCount: TypeAlias = int
"""A number that may be too large for most readers of JSON: it is then written as text."""
Epoch: TypeAlias = int
"""An epoch, from 1; -1 where the step is an iteration of MindFormers."""
Moment: TypeAlias = int
"""Milliseconds since 1970 in UTC."""
Digest: TypeAlias = str
"""``xxh3_128:`` and 32 hexadecimal digits."""
Port: TypeAlias = int
"""A port of TCP."""
Extent: TypeAlias = tuple[Count, Count]
"""First index and the one behind the last, in one dimension."""
