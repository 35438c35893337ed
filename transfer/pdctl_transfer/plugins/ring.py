"""A bounded ring of events inside the engine, and counts that outlive it."""

import threading
import time
from collections import Counter, deque
from typing import Any


class Ring:
    """The last `size` events and how many there were of each kind. Thread-safe; a constant amount of memory."""

    def __init__(self, size: int = 256) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=size)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, event: str, **fields: Any) -> None:
        """Record one event; `fields` are JSON values."""
        with self._lock:
            self._events.append({"event": event, "time": round(time.time(), 3), **fields})
            self._counts[event] += 1

    def snapshot(self) -> dict[str, Any]:
        """Counts and events, oldest first, as JSON values."""
        with self._lock:
            return {"counts": dict(self._counts), "events": list(self._events)}
