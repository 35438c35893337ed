"""What an engine adapter is: a fleet file in, command lines and judgements out. It knows no launcher, starts nothing.

An adapter lives in `pdctl/engines/<name>/adapter.py` as one object `ADAPTER`, imported when a fleet names it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from msgspec import Struct

from pdctl.engines.answer import Answer, Prompt
from pdctl.engines.names import served_names

if TYPE_CHECKING:
    from pdctl.engines.settled import Settled
    from pdctl.fleet.model import Fleet, Pool


class Node(NamedTuple):
    """One node of an engine that spans several."""

    host: str
    """The address under which its peers reach it."""
    ports: Mapping[str, int]
    devices: tuple[str, ...] = ()
    """Its part of the pool's accelerators, where several nodes of the engine are on one host."""


@dataclass(frozen=True)
class Instance:
    """One engine to run, with all that the fleet file left open settled; of one that spans nodes its first node."""

    name: str
    """`prefill-0`: the pool's name and the replica's index."""
    pool: "Pool"
    fleet: "Fleet"
    model: str
    """The model's path, relative ones resolved beside the fleet file."""
    host: str
    """The address under which its peers reach it."""
    ports: Mapping[str, int]
    """By purpose, all that the adapter's `purposes` named."""
    key: str | None = field(default=None, repr=False)
    """What it asks for as a bearer token."""
    nodes: tuple[Node, ...] = ()
    """All nodes, where it spans several."""
    node: int = 0
    """Which of them this is."""
    meeting: str = ""
    """The address at which the nodes meet; their port is the first node's for `dist_init`."""

    by_core: bool | None = None
    """Whether the transfer core carries its state, where an engine must know that at its start; None: not decided."""

    @property
    def role(self) -> str:
        """prefill, decode, or another role."""
        return self.pool.role

    @property
    def served_name(self) -> str:
        """The name that it answers to; the first, where it has several."""
        return served_names(self.fleet, self.pool)[0]

    @property
    def each_node(self) -> "tuple[Instance, ...]":
        """The engine as each of its nodes is started."""
        if not self.nodes:
            return (self,)
        return tuple(replace(self, host=one.host, ports=one.ports, node=place) for place, one in enumerate(self.nodes))

    @property
    def devices(self) -> tuple[str, ...]:
        """Accelerators of this node; none: all that there are."""
        return self.nodes[self.node].devices if self.nodes else tuple(self.pool.devices)

    @property
    def meeting_port(self) -> int:
        """Where the nodes meet. Only for one that spans nodes."""
        return self.nodes[0].ports["dist_init"]

    @property
    def url(self) -> str:
        """The root of its HTTP endpoints."""
        return f"http://{self.host}:{self.ports['http']}"


class Command(Struct, frozen=True):
    """How to start one process. `env` comes on top of the launcher's own environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    """Why a flag is there that the fleet file does not name; `up --plan` shows them."""


class Need(Struct, frozen=True):
    """Something that must be on the host before an engine can start."""

    kind: Literal["package", "library", "model"]
    name: str
    """Import name of a package, soname of a library, path of a model."""
    remedy: str
    """The command that gets it, or what to write instead."""
    python: str = sys.executable
    """The interpreter that must be able to import the package."""


class Unread(NamedTuple):
    """A field that is given and that nobody reads: its dotted key, who does not, and what to write instead."""

    key: str
    reader: str
    hint: str


class Readiness(Struct, frozen=True):
    """When a starting engine counts as up: `path` answers 200 within `deadline_s` of its start."""

    path: str
    deadline_s: float


class Probe(Struct, frozen=True):
    """What came back when one short request crossed one pair."""

    answer: Answer
    recomputed: int | None
    """Prompt tokens that decode computed although prefill had; None where the engine does not say. 0 is right."""
    seconds: float


class Engine(Protocol):
    """One engine family. All methods are pure but `ship_core` and `probe`."""

    @property
    def name(self) -> str:
        """As the fleet file says it."""
        ...

    @property
    def readiness(self) -> Readiness:
        """The gate of a single engine. A pair is ready only when its probe came back."""
        ...

    @property
    def secret_variable(self) -> str | None:
        """The environment variable in which it takes the secret that a fleet's engines share; None: it knows none."""
        ...

    @property
    def signed(self) -> Sequence[str]:
        """Purposes of ports that serve only who has the fleet's secret."""
        ...

    @property
    def key_variable(self) -> str:
        """The environment variable in which it takes the key that clients must send."""
        ...

    @property
    def exact(self) -> bool:
        """Whether equal greedy requests must give equal tokens whatever the sizes and the batch."""
        ...

    def purposes(self, pool: "Pool") -> Sequence[str]:
        """The ports that one engine of the pool needs: `http`, `bootstrap`, `side_channel`, …"""
        ...

    def needs(self, fleet: "Fleet", pool: "Pool") -> Sequence[Need]:
        """What must be installed, and where the model must be. Raises InputError for a model that cannot be."""
        ...

    def command(self, instance: Instance) -> Command:
        """The exact command line and environment of this node. Raises InputError for what the engine cannot do."""
        ...

    def serves(self, instance: Instance) -> bool:
        """Whether this node answers requests, beside the first, which always does."""
        ...

    def python(self, pool: "Pool") -> str:
        """The interpreter that runs the pool's engines."""
        ...

    def settled(self, fleet: "Fleet", pool: "Pool") -> "Iterable[Settled]":
        """The flags that fields of the fleet file set, and what each would have to say."""
        ...

    def unread(self, fleet: "Fleet", pool: "Pool") -> Iterable[Unread]:
        """Fields that the file gives and this engine does not read: no key does nothing in silence."""
        ...

    def stage(self, log: str) -> str | None:
        """What a starting engine is doing, in a few words, from the end of its log; None: it does not say."""
        ...

    def ship_core(self, pools: Sequence["Pool"]) -> str:
        """See to it that every engine will load one and the same transfer core; say which, in one line."""
        ...

    def probe(self, prefill: Instance, decode: Instance, prompt: Prompt, max_tokens: int, timeout_s: float) -> Probe:
        """Send one greedy request through this very pair, past any router. Raises GateError (PD3008)."""
        ...


def python_of(pool: "Pool") -> str:
    """The interpreter that runs a pool's engines: its environment's, or this one."""
    if pool.environment is None:
        return sys.executable
    return str(Path(pool.environment).expanduser() / "bin" / "python")
