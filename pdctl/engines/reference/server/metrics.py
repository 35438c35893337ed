"""Prometheus text of the scheduler's counts: collected when asked, so computing pays nothing for it."""

from collections.abc import Iterable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdctl.engines.reference.scheduler import Scheduler
from pdctl_transfer.telemetry import merged

PREFIX = "pdctl_ref_"


class EngineCollector(Collector):
    """Reads one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterable[Metric]:
        """All metrics, now."""
        counts, engine = self._scheduler.counts, self._scheduler.engine
        counters = {
            "prompt_tokens_computed": (counts.prompt_tokens_computed, "Prompt tokens computed by this engine"),
            "prompt_tokens_cached": (counts.prompt_tokens_cached, "Prompt tokens taken from an earlier request"),
            "generated_tokens": (counts.generated_tokens, "Output tokens chosen by this engine"),
            "draft_accepted": (counts.draft_accepted, "Proposals of the draft that proved right"),
            "draft_verified": (counts.draft_verified, "Proposals of the draft that were verified"),
        }
        for name, (value, text) in counters.items():
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        yield _by_label("requests", "Requests ended", "outcome", counts.ended)
        yield _by_label("requests_failed", "Requests that ended without success", "code", counts.failed)
        running, waiting = self._scheduler.loads
        allocators = [group.allocator for group in engine.groups]
        gauges = {
            "requests_running": (running, "Requests with a place"),
            "requests_waiting": (waiting, "Requests without a place yet"),
            "pages_free": (sum(a.free_pages for a in allocators), "KV pages that can be taken"),
            "pages_quarantined": (sum(a.quarantined_pages for a in allocators), "KV pages of unsettled transfers"),
            "slots_free": (sum(a.free_slots for a in allocators), "State slots that can be taken"),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=value)


def exposition(scheduler: Scheduler) -> bytes:
    """The text of GET /metrics: the engine's figures, and its ranks' transfers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(scheduler))
    text: bytes = generate_latest(registry)
    transfers = [one.exposition() for one in scheduler.link.telemetries] if scheduler.link else []
    return text + merged(transfers).encode()


def events(scheduler: Scheduler, after: int) -> list[dict[str, Any]]:
    """The last events of the ranks' transfers, above a serial number of each: GET /pdctl/events."""
    ranks = scheduler.link.telemetries if scheduler.link else []
    return [
        {"rank": rank, **msgspec.to_builtins(event)} for rank, one in enumerate(ranks) for event in one.events(after)
    ]


def _by_label(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for value, count in list(values.items()):
        family.add_metric([value], count)
    return family
