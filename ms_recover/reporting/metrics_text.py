"""Figures about a tree in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ms_recover.model.metrics import TreeMetrics


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a tree: its figures, None where it failed; when it ended and how long it took, both in seconds.

    `errors` is how many looks of this process failed.
    """

    found: TreeMetrics | None
    ended: float
    seconds: float
    errors: int = 0


def metrics_text(look: Look, labels: Mapping[str, str] | None = None) -> str:
    """Return a look at a tree as the exposition text of Prometheus, version 0.0.4; all series get the `labels`.

    What is not known has no series; the figures of a tree are left out where the look failed.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneLook(look, dict(labels or {})))
    return generate_latest(registry).decode()


class _OneLook(Collector):
    """Gives a registry the figures of one look."""

    def __init__(self, look: Look, labels: dict[str, str]) -> None:
        self._look, self._names, self._values = look, list(labels), list(labels.values())

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        look = self._look
        yield self._gauge("scan_success", "Whether the last look at the tree succeeded.", int(look.found is not None))
        yield self._gauge("scan_timestamp_seconds", "When the last look at the tree ended.", look.ended)
        yield self._gauge("scan_duration_seconds", "Seconds that the last look at the tree took.", look.seconds)
        yield self._counter("scan_errors", "Looks at the tree that failed since this process began.", look.errors)
        if look.found is not None:
            yield from self._of_tree(look.found)

    def _of_tree(self, found: TreeMetrics) -> Iterator[Metric]:
        for name, text, value in (
            ("newest_step", "Number of the newest step of the run.", found.newest_step),
            (
                "newest_recoverable_step",
                "Number of the newest step that can be recovered; -1 when none can.",
                found.recoverable_step,
            ),
            (
                "last_verified_timestamp_seconds",
                "When the newest step was last read whole and found sound.",
                found.log.verified,
            ),
            (
                "max_host_losses_survived",
                "How many hosts may be lost at once, whichever they are, with a step still recoverable.",
                found.host_losses,
            ),
            ("single_copy_bytes", "Bytes that one rank alone has a copy of.", found.single_copy_bytes),
        ):
            if value is not None:
                yield self._gauge(name, text, value)
        slices = self._labelled_gauge("slices", "Slices of the newest step by state.", "state")
        for state, count in found.slices:
            slices.add_metric([*self._values, state], count)
        yield slices
        recoveries = CounterMetricFamily(
            "ms_recover_recoveries", "Recoveries of this tree by their end.", labels=[*self._names, "result"]
        )
        for result, count in found.log.recoveries:
            recoveries.add_metric([*self._values, result], count)
        yield recoveries
        if found.log.durations:
            spent = self._labelled_gauge(
                "recovery_duration_seconds", "Seconds of each phase of the last recovery.", "phase"
            )
            for phase, seconds in found.log.durations:
                spent.add_metric([*self._values, phase], seconds)
            yield spent

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"ms_recover_{name}", text, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _labelled_gauge(self, name: str, text: str, label: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"ms_recover_{name}", text, labels=[*self._names, label])

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"ms_recover_{name}", text, labels=self._names)
        family.add_metric(self._values, value)
        return family
