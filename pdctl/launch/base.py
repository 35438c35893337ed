"""What a launcher is: it starts, watches and stops units. A unit is one process tree; a launcher knows no engine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

State = Literal["running", "restarting", "failed", "stopping", "stopped", "lost", "absent"]
"""`restarting`: it ended and the guard waits to start it again. `failed`: it ended too often and was given up.
`lost`: the guard that should watch it is gone."""


@dataclass(frozen=True)
class Unit:
    """One process tree to run. `env` comes on top of the environment of whoever starts it."""

    name: str
    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    grace_s: float = 10.0
    """How long it may take to end after SIGTERM before the whole tree is killed."""
    backoff_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0)
    """Waits before the first, second, … restart in a row; when they are used up the unit is given up."""
    log_bytes: int = 256 << 20
    """Size at which its log is begun anew."""

    @property
    def digest(self) -> str:
        """Equal for units that would run the same: decides whether a running one can be adopted."""
        content = json.dumps([self.argv, sorted(self.env.items()), self.cwd], ensure_ascii=False)
        return "sha256:" + sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class UnitStatus:
    """What is true of a unit now."""

    name: str
    state: State
    pid: int | None = None
    restarts: int = 0
    last_exit: str | None = None
    """How it last ended, in words: `exit status 1`, `killed by SIGKILL`."""
    since: float | None = None
    """Unix time of the last change of state."""
    digest: str | None = None
    contained: bool = False
    """It lives in a cgroup of its own, which nothing that it starts can leave."""
    frozen: int | None = None
    """The pid of its process, or of its guard, that a signal has stopped (SIGSTOP)."""

    @property
    def halt(self) -> str | None:
        """What to say where a signal has stopped it: it neither ends nor answers."""
        return f"{self.name} is stopped by a signal; `kill -CONT {self.frozen}` lets it go on" if self.frozen else None


class Started(Struct, frozen=True):
    """What a unit was started from. `env`: the fingerprint of each variable's value by its name, salted with `salt`."""

    digest: str
    argv: tuple[str, ...]
    env: dict[str, str]
    salt: str
    cwd: str | None = None

    def same(self, name: str, value: str) -> bool:
        """Whether the variable had this value."""
        return self.env.get(name) == fingerprint(self.salt, value)


def fingerprint(salt: str, value: str) -> str:
    """Short enough to fit many values."""
    return sha256(f"{salt}\0{value}".encode()).hexdigest()[:8]


class Launcher(Protocol):
    """Starts, watches and stops units. Every method may be called again after it failed."""

    def start(self, unit: Unit) -> None:
        """Start the unit; it outlives the caller. Raises GateError (PD3018) if it cannot be started at all."""
        ...

    def stop(self, names: Sequence[str]) -> tuple[str, ...]:
        """End the units, their whole trees, and whatever they left; those of which something ran. Unknown ones are no
        error."""
        ...

    def status(self, name: str) -> UnitStatus:
        """What is true of the unit now; `absent` if it never ran. Raises StateError (PD3005) for a damaged record."""
        ...

    def started(self, name: str) -> Started | None:
        """What the unit that runs now was started from, without secrets; None where that is not known."""
        ...

    def log(self, name: str) -> Path:
        """The file that holds the unit's output."""
        ...

    def known(self) -> tuple[str, ...]:
        """Units that were ever started here, running or not."""
        ...
