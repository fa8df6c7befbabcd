"""Trees that are spread over the disks of nodes, as ``node://*/data/ckpt`` (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ms_recover.errors import UsageError

SCHEME = "node://"
_EXAMPLE = "write node://*/data/ckpt, node://node3/data/ckpt or node://{node1,node2}/data/ckpt"
_URL = re.compile(r"node://(\{[^{}/]+\}|[^{}/]+)(/.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NodeTree:
    """One path on several nodes, whose trees together are one tree."""

    hosts: tuple[str, ...]
    """Names or shell patterns; ``*`` for all workers."""
    root: str
    """Absolute path, the same on all of them."""

    @classmethod
    def parse(cls, text: str) -> NodeTree:
        """Read ``node://HOSTS/PATH``; HOSTS is a name, a shell pattern, or several with commas in braces.

        Raises
        ------
        UsageError
            When the text is none of these.
        """
        match = _URL.match(text)
        if match is None:
            raise UsageError(f"{text!r} names no tree on nodes: {_EXAMPLE}")
        hosts = tuple(dict.fromkeys(host.strip() for host in match[1].strip("{}").split(",")))
        parts = match[2].split("/")[1:]
        root = "/" + "/".join(part for part in parts if part)
        if not all(hosts) or root == "/" or not {".", ".."}.isdisjoint(parts) or "\0" in root:
            raise UsageError(f"{text!r} names no tree on nodes: {_EXAMPLE}")
        return cls(hosts, root)

    def __str__(self) -> str:
        hosts = self.hosts[0] if len(self.hosts) == 1 else "{" + ",".join(self.hosts) + "}"
        return f"{SCHEME}{hosts}{self.root}"

    def takes(self, names: Collection[str]) -> bool:
        """Whether a worker with any of these names is meant."""
        return any(fnmatchcase(name, host) for host in self.hosts for name in names)

    @property
    def takes_all(self) -> bool:
        """Whether every worker is meant."""
        return "*" in self.hosts

    def missing(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the hosts that none of the names is of."""
        return tuple(host for host in self.hosts if not any(fnmatchcase(name, host) for name in names))


def is_node_url(root: str) -> bool:
    """Whether a root is a tree on nodes."""
    return root.startswith(SCHEME)
