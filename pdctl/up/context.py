"""What the phases of a bring-up share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pdctl.engines.base import Probe
from pdctl.fleet.loaded import LoadedFleet
from pdctl.launch.base import Launcher, Unit
from pdctl.launch.state import PhaseEntry, UnitEntry
from pdctl.up.diff import Step
from pdctl.up.plan import FleetPlan


class Events(Protocol):
    """Who watches a bring-up. Methods must return at once."""

    def phase_began(self, name: str, says: str) -> None:
        """A phase begins."""
        ...

    def progress(self, text: str) -> None:
        """What the phase is doing now; said again only when it changes."""
        ...

    def phase_ended(self, entry: PhaseEntry) -> None:
        """A phase is done, was skipped, or failed."""
        ...

    def cleaning(self, text: str) -> None:
        """Something is taken down: leftovers before, or all of it after a failure."""
        ...

    def decided(self, steps: Sequence[Step]) -> None:
        """A fleet runs already, and this becomes of its units. Said before anything is touched."""
        ...


class Silent:
    """Nobody watches."""

    def phase_began(self, name: str, says: str) -> None: ...

    def progress(self, text: str) -> None: ...

    def phase_ended(self, entry: PhaseEntry) -> None: ...

    def cleaning(self, text: str) -> None: ...

    def decided(self, steps: Sequence[Step]) -> None: ...


@dataclass(frozen=True)
class Gate:
    """When a unit counts as ready: `url` answers 200 within `deadline_s`."""

    unit: Unit
    url: str
    deadline_s: float
    stage: Callable[[str], str | None] = lambda log: None
    key: str | None = field(default=None, repr=False)


@dataclass
class Bringup:
    """One run of the phases over one fleet."""

    loaded: LoadedFleet
    plan: FleetPlan
    launcher: Launcher
    events: Events
    running: frozenset[str] = frozenset()
    """Units found running just as planned, left by an earlier run: they are adopted, not started."""
    leaving: Mapping[str, UnitEntry] = field(default_factory=dict)
    """Units that serve now, and that are ended in their phase: to be started from something else, or for good."""
    ended: set[str] = field(default_factory=set)
    """Those of `leaving` that were told to end."""
    drained: set[str] = field(default_factory=set)
    """Those that the router was told to give no more requests."""
    begun: set[str] = field(default_factory=set)
    """Units that this run started."""
    verified: bool = False
    """The fleet was up: what is not touched needs no proof again."""
    serving_at: str | None = None
    """Where the router answers that served before; None where none did."""
    opened: dict[str, int] = field(default_factory=dict)
    """Units that were ready in this run, and how often each had been restarted by then."""
    gates: dict[str, Gate] = field(default_factory=dict)
    """The gates that were waited for, by name of the unit."""
    drain_s: float = 30.0
    """How long requests under way are waited for."""
    probes: dict[tuple[str, str], Probe] = field(default_factory=dict)
    """What came back over each pair, by names of prefill and decode."""
