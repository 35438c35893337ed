"""What a peer did: counters as Prometheus text, and the last events as a bounded ring that a monitor can read.

Counters are by peer and component, so that one slow pair or one kind of state that goes the slow way can be seen.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field, json

#: Counters and gauges, with their help.
METRICS: Final[Mapping[str, str]] = {
    "bytes_total": "Bytes written, by peer, component and way (direct, packed, staged)",
    "blocks_total": "Blocks written",
    "items_total": "Items moved: pages, slots, rows",
    "seconds_total": "Seconds spent, by phase: queue, handshake, wire, scatter",
    "requests_total": "Requests ended, by outcome",
    "failures_total": "Requests failed, by code and the side that is to blame",
    "events_dropped_total": "Events that left the ring before anybody read them",
}
PREFIX: Final = "pdctl_transfer_"
_Labels = tuple[tuple[str, str], ...]


class Tally:
    """What was moved of one component, one way."""

    __slots__ = ("blocks", "bytes", "calls", "seconds")

    def __init__(self, blocks: int = 0, nbytes: int = 0) -> None:
        self.blocks, self.bytes = blocks, nbytes
        self.calls = 0
        self.seconds = 0.0

    def add(self, other: "Tally") -> None:
        """Add another's figures."""
        self.blocks += other.blocks
        self.bytes += other.bytes
        self.calls += other.calls
        self.seconds += other.seconds


class Event(Struct, frozen=True, omit_defaults=True):
    """`what` happened: linked, written, scattered, confirmed or failed. `at` is seconds since 1970.

    `room` is the core's and SGLang's name of a request; `request` is vLLM's.
    """

    serial: int
    at: float
    what: str
    room: int = -1
    peer: str = ""
    kind: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    request: str = ""


class Telemetry:
    """Counters and events of one rank. Any thread may write and read."""

    def __init__(self, side: str, rank: str, events: int) -> None:
        self._fixed = {"side": side, "rank": rank}
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, _Labels], float] = defaultdict(float)
        self._gauges: dict[str, tuple[str, Callable[[], float], dict[str, str]]] = {}
        self._ring: deque[Event] = deque(maxlen=events)
        self._serial = 0

    def gauge(self, name: str, about: str, read: Callable[[], float], **labels: str) -> None:
        """A value that is read when somebody asks."""
        self._gauges[name] = (about, read, labels)

    def linked(self, peer: str, seconds: float) -> None:
        """A link became ready."""
        with self._lock:
            self._add("seconds_total", seconds, peer=peer, phase="handshake")
            self._note("linked", -1, peer, "", {"seconds": round(seconds, 6)})

    def written(self, room: int, peer: str, kind: str, way: str, tally: Tally, items: int, request: str = "") -> None:
        """A rank was sent all of a component."""
        with self._lock:
            where = (("peer", peer), ("kind", kind), ("way", way))
            self._counts["bytes_total", where] += tally.bytes
            self._counts["blocks_total", where] += tally.blocks
            self._counts["items_total", where] += items
            self._add("seconds_total", tally.seconds, peer=peer, kind=kind, phase="wire")
            seen = {"way": way, "bytes": tally.bytes, "blocks": tally.blocks, "seconds": round(tally.seconds, 6)}
            self._note("written", room, peer, kind, seen, request)

    def queued(self, peer: str, seconds: float) -> None:
        """How long a write waited for a thread."""
        with self._lock:
            self._add("seconds_total", seconds, peer=peer, phase="queue")

    def scattered(self, room: int, peer: str, kind: str, seconds: float) -> None:
        """Staged chunks of a component were put into place."""
        with self._lock:
            self._add("seconds_total", seconds, peer=peer, kind=kind, phase="scatter")
            self._note("scattered", room, peer, kind, {"seconds": round(seconds, 6)})

    def ended(
        self, room: int, code: str, side: str, cause: str, reached: Mapping[str, float], request: str = ""
    ) -> None:
        """A request ended: confirmed where `code` is empty. `reached`: monotonic times of its states, its end's too."""
        started = reached.get("bootstrapping", 0.0)
        states = {state: round(at - started, 6) for state, at in reached.items()}
        outcome = "withdrawn" if "withdrawn" in reached else "failed" if code else "confirmed"
        why = {"code": code, "side": side, "cause": cause} if code else {}
        with self._lock:
            self._add("requests_total", 1, outcome=outcome)
            if outcome == "failed":
                self._add("failures_total", 1, code=code, blames=side)
            self._note(outcome, room, "", "", {**why, "states": states}, request)

    def events(self, after: int = 0) -> list[Event]:
        """Events with a serial above `after`, oldest first."""
        with self._lock:
            return [event for event in self._ring if event.serial > after]

    def events_json(self, after: int = 0) -> bytes:
        """The same as a JSON list."""
        return json.encode(self.events(after))

    def exposition(self) -> str:
        """Everything in Prometheus' text format."""
        with self._lock:
            counts = dict(self._counts)
            dropped = self._serial - len(self._ring)
        counts["events_dropped_total", ()] = dropped
        lines: list[str] = []
        for name, about in METRICS.items():
            samples = sorted((sorted(labels), value) for (metric, labels), value in counts.items() if metric == name)
            if samples:
                lines += [f"# HELP {PREFIX}{name} {about}", f"# TYPE {PREFIX}{name} counter"]
                lines += [self._sample(name, dict(labels), value) for labels, value in samples]
        for name, (about, read, labels) in self._gauges.items():
            lines += [f"# HELP {PREFIX}{name} {about}", f"# TYPE {PREFIX}{name} gauge"]
            lines.append(self._sample(name, labels, read()))
        return "\n".join(lines) + "\n"

    def count(self, name: str, **labels: str) -> float:
        """The sum of a counter over all samples that have these labels."""
        wanted = set(labels.items())
        with self._lock:
            return sum(value for (metric, has), value in self._counts.items() if metric == name and wanted <= set(has))

    def _add(self, name: str, value: float, **labels: str) -> None:
        self._counts[name, tuple(labels.items())] += value

    def _note(self, what: str, room: int, peer: str, kind: str, data: dict[str, Any], request: str = "") -> None:
        self._serial += 1
        self._ring.append(Event(self._serial, time.time(), what, room, peer, kind, data, request))

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> str:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**self._fixed, **labels}.items())
        return f"{PREFIX}{name}{{{shown}}} {value:.17g}"


def merged(expositions: list[str]) -> str:
    """Several peers' expositions as one: each metric's HELP and TYPE once, its samples together."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for line in (line for text in expositions for line in text.splitlines()):
        if line.startswith("#"):
            name = line.split()[2]
            if line not in heads.setdefault(name, []):
                heads[name].append(line)
        elif line:
            samples.setdefault(line.partition("{")[0], []).append(line)
    return "".join(f"{line}\n" for name, head in heads.items() for line in [*head, *samples.get(name, [])])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
