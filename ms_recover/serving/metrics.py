"""The counts of a server, as text for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(eq=False)
class Metrics(Collector):
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
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are not asked for before the first collection."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the counts by name."""
        requests = CounterMetricFamily(
            "ms_recover_requests", "Requests that were answered.", labels=("method", "status")
        )
        for (method, status), count in sorted(self.requests.items()):
            requests.add_metric((method, str(status)), count)
        yield requests
        for name, text, count in (
            ("sent_bytes", "Bytes of files that were sent.", self.sent_bytes),
            ("digested_bytes", "Bytes that were read for digests.", self.digested_bytes),
            ("digested_files", "Files that were digested.", self.digested_files),
            ("refused_connections", "Connections above the limit.", self.refused_connections),
            ("timed_out_connections", "Connections that were too slow.", self.timed_out_connections),
            ("scans", "Scans of the tree.", self.scans),
        ):
            yield CounterMetricFamily(f"ms_recover_{name}", text, value=count)
        yield GaugeMetricFamily(
            "ms_recover_open_connections", "Connections that are open now.", value=self.open_connections
        )
