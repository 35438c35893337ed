"""What a fleet file can say: `pdctl.fleet/v1`.

Every field that an operator may leave out has a default here, and only here. A key that is not listed is an error, so
that a typing mistake never becomes a default; engine flags that pdctl does not model go through `args`.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from pdctl.fleet.names import NAME_PATTERN
from pdctl.fleet.urls import host_of

SCHEMA = "pdctl.fleet/v1"
Engine = Literal["reference", "sglang", "vllm", "vllm-ascend"]


def _text(value: Any) -> Any:
    """YAML reads `OMP_NUM_THREADS: 1` as a number; a variable or a flag's value is text all the same."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$")]
Text = Annotated[str, BeforeValidator(_text)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Version = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+[0-9A-Za-z.+-]*$", max_length=64)]
Kind = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=64)]
Port = Annotated[int, Field(ge=1, le=65535)]
Size = Annotated[int, Field(ge=1, le=65536)]
Network = Literal["host", "own"]
PORTS_TAKEN: Final[Mapping[str, int]] = {"dist_init": 8}
"""Ports that one engine takes from the given one on, by purpose, where that is more than one: beside the port where
its nodes meet SGLang opens up to seven more (server_args.py:847 of 0.5.23)."""


class Section(BaseModel):
    """Strict: no unknown key, no silent conversion, immutable."""

    # Built with the fleet, not one by one: seven validators that nobody calls would cost a sixth of a check.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True, defer_build=True)


class Model(Section):
    """The model that every engine serves."""

    path: str = Field(description="A folder with a config.json, a name the engine resolves, or `builtin:NAME`.")
    name: str | None = Field(default=None, description="The served name; the last part of `path` unless given.")
    draft: str | None = Field(
        default=None,
        description="A folder with the draft model's config.json, where `speculative` names one elsewhere.",
    )

    @property
    def served_name(self) -> str:
        """The name that clients ask for."""
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1].rsplit(":", 1)[-1]


class Transfer(Section):
    """How state moves from prefill to decode."""

    backend: Literal["mooncake", "nixl", "mori", "ascend"] = "mooncake"
    protocol: Literal["rdma", "tcp"] = "rdma"
    devices: list[str] = Field(default=[], description="HCAs, such as mlx5_0; none: the engine chooses.")
    options: dict[str, Any] = Field(default={}, description="Connector options, passed through to the engine.")


class Launcher(Section):
    """What starts the engines."""

    kind: Literal["local", "external"] = Field(
        default="local",
        description="local: pdctl, on this machine. external: somebody else; `urls` say where they are.",
    )


class Address(Section):
    """Where one engine of an external fleet answers."""

    url: str = Field(description="The root of its HTTP endpoints: http://10.0.0.1:30000, a path behind it if need be.")
    bootstrap: Port | str | None = Field(
        default=None,
        description="Port, or HOST:PORT, of its bootstrap server; none: `ports.bootstrap` on the URL's host.",
    )
    side_channel: Port | str | None = Field(default=None, description="The same of NIXL's side channel.")
    log: str | None = Field(default=None, description="A file on this machine that holds its output.")


def _address(value: Any) -> Any:
    """A URL alone says all that most engines need."""
    return {"url": value} if isinstance(value, str) else value


Addresses = list[Annotated[Address, BeforeValidator(_address)]]


def _one_or_more(value: Any) -> Any:
    """One text, or a list of them."""
    return [value] if isinstance(value, str) else value


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
    dist_init_address: Annotated[list[str], BeforeValidator(_one_or_more)] = Field(
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
    ports: dict[str, Port] = Field(
        default={}, description="By purpose: http, bootstrap, side_channel; others are chosen free."
    )
    devices: list[Text] = Field(default=[], description="Accelerators of one replica, as the engine counts them.")

    startup_s: Size | None = Field(
        default=None, description="Longest wait for an engine to answer; none: the engine's."
    )

    _role: str = PrivateAttr("")
    _key: str = PrivateAttr("")
    _network: Network = PrivateAttr("host")

    @property
    def role(self) -> str:
        """prefill, decode, or another role's name."""
        return self._role

    @property
    def key(self) -> str:
        """Where the pool stands in the file: `prefill`, `decode.1`, `roles.encode`."""
        return self._key

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
        return self.ports[purpose] + step * PORTS_TAKEN.get(purpose, 1)

    def given_ports(self, step: int) -> dict[str, int]:
        """All ports that the file gives to that node."""
        return {purpose: self.port(purpose, step) for purpose in self.ports}


def _one_or_many(value: Any) -> Any:
    """A role is one pool or a list of named pools; held as a list, so that everything else sees one shape."""
    return [value] if isinstance(value, Mapping) else value


Pools = Annotated[list[Pool], BeforeValidator(_one_or_many), Field(min_length=1)]


class Router(Section):
    """What pairs prefill with decode for each request."""

    kind: Kind = Field(
        default="smg",
        description="By its program's name; none: vllm-router before vLLM, smg before others. `up` starts smg, "
        "sglang-router and vllm-router; `check` judges others that it knows.",
    )
    host: str = Field(default="127.0.0.1", description="The address it listens on; 0.0.0.0 opens it to the network.")
    port: Port | None = Field(default=None, description="None: a free one.")
    url: str | None = Field(default=None, description="External fleets: where it answers; none: there is no router.")
    log: str | None = Field(default=None, description="External fleets: a file on this machine with its output.")
    api_key_env: Variable | None = Field(
        default=None,
        description="The environment variable with the key that clients must send; none: anyone is served.",
    )
    args: list[Text] = Field(default=[], description="Router flags, passed through; one list item a word.")
    env: dict[str, Text] = {}


class Fleet(Section):
    """One fleet: a model, served by pools of engines with prefill and decode apart, behind a router."""

    schema_: Literal["pdctl.fleet/v1"] = Field(alias="schema")
    name: Name
    model: Model
    engine: Engine
    engine_version: Version | None = Field(default=None, description="Release of that engine in every pool.")
    transfer: Transfer = Field(default={}, validate_default=True)
    launcher: Launcher = Field(default={}, validate_default=True)
    network: Network = Field(
        default="host", description="host: engines on one host share its ports; own: each has its own, as pods do."
    )
    prefill: Pools
    decode: Pools
    roles: dict[Name, Pools] = Field(default={}, description="Further roles by name: aggregate, encode, …")
    router: Router = Field(default={}, validate_default=True)

    @model_validator(mode="after")
    def _choose_router(self) -> "Fleet":
        """Where none is named it is one that speaks as the engine's connectors expect."""
        if "kind" not in self.router.model_fields_set and self.engine in ("vllm", "vllm-ascend"):
            object.__setattr__(self.router, "kind", "vllm-router")
        return self

    @model_validator(mode="after")
    def _place_pools(self) -> "Fleet":
        """Tell each pool its role; name the unnamed after it; what URLs say need not be said twice."""
        for role, pools in self._groups():
            for pool in pools:
                pool._role = role
                pool._network = self.network
                if not pool.name:
                    object.__setattr__(pool, "name", role)
                if self.external:
                    object.__setattr__(pool, "replicas", len(pool.urls))
                    # a URL is the first node's; where the others are the file may leave out
                    known = [host for one in pool.urls for host in [host_of(one.url)] * pool.nodes]
                    object.__setattr__(pool, "hosts", pool.hosts or known)
        if self.external and self.router.url:
            object.__setattr__(self.router, "host", host_of(self.router.url))
        return self

    @property
    def external(self) -> bool:
        """Whether somebody else starts and ends it: pdctl only looks."""
        return self.launcher.kind == "external"

    def _groups(self) -> list[tuple[str, list[Pool]]]:
        return [("prefill", self.prefill), ("decode", self.decode), *self.roles.items()]

    def pools(self, role: str | None = None) -> tuple[Pool, ...]:
        """The pools of a role in the file's order; of all roles for None."""
        return tuple(pool for name, pools in self._groups() if role in (None, name) for pool in pools)
