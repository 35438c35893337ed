"""What vLLM shows of the core's transfers: `KVConnectorStats` in its log line, and Prometheus' metrics.

A worker counts, vLLM carries the figures to its API process, and there adds them up. Where requests came from or went
to is not in there: that is `/pdctl/events`.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdctl_transfer.session.life import Handle

OF_CORE: Final = "core"
OF_ENGINE: Final = "engine"
SECONDS: Final = "seconds"
OUTCOMES: Final = ("confirmed", "withdrawn", "failed")
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Counts:
    """One worker's figures since they were taken last."""

    def __init__(self) -> None:
        self._outcomes: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._seconds: list[float] = []

    def over(self, handle: Handle) -> None:
        """A request has ended."""
        self._outcomes[handle.state] = self._outcomes.get(handle.state, 0) + 1
        reached = handle.life.reached
        if handle.state == "confirmed":
            self._seconds.append(round(reached["confirmed"] - reached.get("waiting", reached["bootstrapping"]), 6))
        if handle.state == "failed" and handle.failure is not None:
            self._codes[handle.failure.code] = self._codes.get(handle.failure.code, 0) + 1

    def take(self) -> dict[str, Any]:
        """The figures as what crosses processes; empty where nothing ended."""
        if not self._outcomes:
            return {}
        taken = {**self._outcomes, "codes": self._codes, SECONDS: self._seconds}
        self.__init__()  # type: ignore[misc]
        return taken


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two workers' figures as one."""
    codes = dict(one.get("codes", {}))
    for code, count in other.get("codes", {}).items():
        codes[code] = codes.get(code, 0) + count
    counts = {name: one.get(name, 0) + other.get(name, 0) for name in OUTCOMES if name in one or name in other}
    return {**counts, "codes": codes, SECONDS: [*one.get(SECONDS, ()), *other.get(SECONDS, ())]}


class Stats:
    """As vLLM's `KVConnectorStats`, which it is in all but name: `data` crosses processes. engine: the class of the
    engine's own connector, whose figures stand beside the core's."""

    def __init__(self, data: dict[str, Any] | None = None, engine: Any = None) -> None:
        self.data: dict[str, Any] = data or {}
        self._engine = engine

    def to_dict(self) -> dict[str, Any]:
        """What travels to the API process."""
        return self.data

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        theirs = self._theirs(self.data)
        return not self.data.get(OF_CORE) and (theirs is None or bool(theirs.is_empty()))

    def aggregate(self, other: "Stats") -> "Stats":
        """Add another's figures to these."""
        self.data = {**self.data, OF_CORE: added(self.data.get(OF_CORE, {}), other.data.get(OF_CORE, {}))}
        mine, theirs = self._theirs(self.data), self._theirs(other.data)
        if mine is not None and theirs is not None:
            mine = mine.aggregate(theirs)
        both = mine or theirs
        if both is not None:
            self.data[OF_ENGINE] = both.data
        return self

    def reduce(self) -> dict[str, int | float]:
        """A line for the log: the core's figures, then the engine's own where it moved anything."""
        core = self.data.get(OF_CORE, {})
        seconds = sorted(core.get(SECONDS, ()))
        line: dict[str, int | float] = {f"core {name}": core[name] for name in OUTCOMES if name in core}
        line |= {f"core {code}": count for code, count in sorted(core.get("codes", {}).items())}
        if seconds:
            line["core median ms"] = round(seconds[len(seconds) // 2] * 1e3, 3)
            line["core longest ms"] = round(seconds[-1] * 1e3, 3)
        theirs = self._theirs(self.data)
        return line | (theirs.reduce() if theirs is not None and not theirs.is_empty() else {})

    def _theirs(self, data: Mapping[str, Any]) -> Any:
        given = data.get(OF_ENGINE)
        return self._engine.build_kv_connector_stats(given) if given and self._engine is not None else None


class Prom:
    """As vLLM's `KVConnectorPromMetrics`. engine: those of the engine's own connector, or None."""

    def __init__(
        self, metric_types: Mapping[Any, Any], labels: list[str], engines: Mapping[int, list[Any]], engine: Any
    ):
        by_name = {kind.__name__: made for kind, made in metric_types.items()}
        counter, histogram = by_name["Counter"], by_name["Histogram"]
        self._engines, self._engine = engines, engine
        self._outcomes = counter(
            name="vllm:pdctl_transfers",
            documentation="Requests that the transfer core moved, by outcome; each worker counts.",
            labelnames=[*labels, "outcome"],
        )
        self._failures = counter(
            name="vllm:pdctl_transfer_failures",
            documentation="Requests that the transfer core failed, by pdctl's code.",
            labelnames=[*labels, "code"],
        )
        self._seconds = histogram(
            name="vllm:pdctl_transfer_seconds",
            documentation="From the moment that both sides knew the request until decode held all of it.",
            labelnames=labels,
            buckets=BUCKETS,
        )

    def observe(self, data: Mapping[str, Any], engine_idx: int = 0) -> None:
        """Count what the stats of a step say."""
        core, labels = data.get(OF_CORE, {}), self._engines[engine_idx]
        for outcome in OUTCOMES:
            if outcome in core:
                self._outcomes.labels(*labels, outcome).inc(core[outcome])
        for code, count in core.get("codes", {}).items():
            self._failures.labels(*labels, code).inc(count)
        for seconds in core.get(SECONDS, ()):
            self._seconds.labels(*labels).observe(seconds)
        if self._engine is not None and data.get(OF_ENGINE):
            self._engine.observe(data[OF_ENGINE], engine_idx)
