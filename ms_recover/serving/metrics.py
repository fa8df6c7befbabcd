"""What a server counts, as text for Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Metrics:
    """Counts since the start."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Method and status."""
    sent_bytes: int = 0
    digested_bytes: int = 0
    digested_files: int = 0
    refused_connections: int = 0
    timed_out_connections: int = 0
    open_connections: int = 0
    scans: int = 0

    def text(self) -> str:
        """Return the counts in the text format of Prometheus, version 0.0.4."""
        requests = [
            f'ms_recover_requests_total{{method="{method}",status="{status}"}} {count}'
            for (method, status), count in sorted(self.requests.items())
        ]
        rows = (
            ("requests_total", "counter", "Requests that were answered.", None),
            ("sent_bytes_total", "counter", "Bytes of files that were sent.", self.sent_bytes),
            ("digested_bytes_total", "counter", "Bytes that were read for digests.", self.digested_bytes),
            ("digested_files_total", "counter", "Files that were digested.", self.digested_files),
            ("refused_connections_total", "counter", "Connections above the limit.", self.refused_connections),
            ("timed_out_connections_total", "counter", "Connections that were too slow.", self.timed_out_connections),
            ("scans_total", "counter", "Scans of the tree.", self.scans),
            ("open_connections", "gauge", "Connections that are open now.", self.open_connections),
        )
        lines: list[str] = []
        for name, kind, text, value in rows:
            lines += [f"# HELP ms_recover_{name} {text}", f"# TYPE ms_recover_{name} {kind}"]
            lines += requests if value is None else [f"ms_recover_{name} {value}"]
        return "\n".join(lines) + "\n"
