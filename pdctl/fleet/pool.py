"""Pools: equal engines of one role, their sizes, places and ports."""

from collections import Counter
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from pdctl.fleet.sections import (
    PORTS_TAKEN,
    Addresses,
    Core,
    Engine,
    Name,
    Network,
    PoolTransfer,
    Port,
    Section,
    Size,
    Text,
    Variable,
    Version,
    one_or_more,
)


class Pool(Section):
    """Equal engines of one role. Sizes are those of one engine, over all its nodes."""

    name: Name = Field(default="", description="Told apart by it; the role's name unless given.")
    replicas: Annotated[int, Field(ge=0, le=4096)] = 1
    urls: Addresses = Field(default=[], description="External fleets: where each engine answers; replicas follow.")
    nodes: Size = Field(default=1, description="Nodes that one engine spans.")
    hosts: list[str] = Field(
        default=[],
        description="Where the replicas run, in turn, `nodes` of them for each; none: this host, or the URLs'.",
    )
    network: Network | None = Field(default=None, description="Another network than the fleet's.")
    dist_init_address: Annotated[list[str], BeforeValidator(one_or_more)] = Field(
        default=[],
        description="Where the nodes of an engine meet, one address a replica; none: its first host. "
        "The port is `ports.dist_init`.",
    )
    engine: Engine | None = Field(default=None, description="Another engine than the fleet's.")
    served_name: str | None = Field(default=None, description="The name that its engines answer to; none: the model's.")
    engine_version: Version | None = Field(
        default=None, description="The engine's release; none: by image, environment."
    )
    image: str | None = Field(default=None, description="Container image, for launchers that take one.")
    environment: str | None = Field(default=None, description="Virtual environment whose Python runs the engine.")

    attn_tp: Size = Field(default=1, description="Attention tensor parallelism: tp / dp / cp.")
    pp: Size = 1
    dp: Size = Field(default=1, description="Attention data parallelism.")
    cp: Size = Field(default=1, description="Attention context parallelism.")
    ep: Size | None = Field(default=None, description="Expert parallelism; none: the engine's default.")
    dp_local: list[Size] = Field(
        default=[], description="Data-parallel ranks of each node of a vLLM engine, in order; none: equally many."
    )
    load_balancing: Literal["internal", "hybrid", "external"] = Field(
        default="internal",
        description="Who spreads requests over vLLM's data-parallel ranks: the first node, each node for its own, "
        "or the router.",
    )
    page_size: Size | None = Field(default=None, description="Tokens a page; none: the engine's default.")
    kv_cache_dtype: str = "auto"
    speculative: dict[str, Any] | None = Field(
        default=None, description="Speculative decoding, in the engine's own words."
    )

    args: list[Text] = Field(default=[], description="Engine flags, passed through; one list item a word.")
    env: dict[str, Text] = Field(default={}, description="Environment variables of the engine.")
    api_key_env: Variable | None = Field(
        default=None, description="The environment variable with the key that its engines ask for; none: they ask none."
    )
    transfer: PoolTransfer | None = Field(default=None, description="How these engines move state, if another way.")
    ports: dict[str, Port] = Field(
        default={}, description="By purpose: http, bootstrap, side_channel, registry; others are chosen free."
    )
    devices: list[Text] = Field(default=[], description="Accelerators of one replica, as the engine counts them.")

    startup_s: Size | None = Field(
        default=None, description="Longest wait for an engine to answer; none: the engine's."
    )

    _role: str = PrivateAttr("")
    _key: str = PrivateAttr("")
    _network: Network = PrivateAttr("host")
    _core: Core = PrivateAttr("engine")

    @property
    def role(self) -> str:
        """prefill, decode, or another role's name."""
        return self._role

    @property
    def key(self) -> str:
        """Where the pool stands in the file: `prefill`, `decode.1`, `roles.encode`."""
        return self._key

    @property
    def core(self) -> Core:
        """Who carries the state of its engines: its own word, else the fleet's. One that is no side moves none."""
        if self.role not in ("prefill", "decode"):
            return "engine"
        return (self.transfer.core if self.transfer is not None else None) or self._core

    @property
    def tp(self) -> int:
        """Ranks of one pipeline stage: the engine's own --tp-size under attention DP and CP."""
        return self.attn_tp * self.dp * self.cp

    @property
    def members(self) -> list[str]:
        """Names of the replicas: `prefill-0`, `prefill-1`, …"""
        return [f"{self.name}-{index}" for index in range(self.replicas)]

    @property
    def ranks(self) -> int:
        """Processes with an accelerator each, over all nodes of one engine."""
        return self.tp * self.pp

    @property
    def shares_ports(self) -> bool:
        """Whether what runs on one host listens on one set of ports; pods of their own do not."""
        return (self.network or self._network) == "host"

    @cached_property
    def _places(self) -> list[tuple[str, int]]:
        """Of each node of each replica its host, and how many nodes of the pool that holds before it."""
        hosts, held = self.hosts or ["localhost"], Counter[str]()
        found = []
        for node in range(self.replicas * self.nodes):
            host = hosts[node % len(hosts)]
            found.append((host, held[host] if self.shares_ports else 0))
            held[host] += 1
        return found

    def places(self, index: int) -> list[tuple[str, int]]:
        """Where the nodes of a replica are: the host, and how many nodes of the pool that holds before."""
        return self._places[index * self.nodes : (index + 1) * self.nodes]

    def place(self, index: int) -> tuple[str, int]:
        """The host of a replica's first node, which is the one to ask, and how many nodes it already holds."""
        return self.places(index)[0]

    def port(self, purpose: str, step: int) -> int:
        """The port of the node that is number `step` on its host, for a purpose that `ports` gives."""
        return self.ports[purpose] + step * self.taken(purpose)

    def taken(self, purpose: str) -> int:
        """Ports that one engine takes for a purpose, from the first on: the registry has one a data-parallel rank."""
        return self.dp if purpose == "registry" else PORTS_TAKEN.get(purpose, 1)

    def given_ports(self, step: int) -> dict[str, int]:
        """All ports that the file gives to that node."""
        return {purpose: self.port(purpose, step) for purpose in self.ports}
