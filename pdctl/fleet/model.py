"""What a fleet file can say: `pdctl.fleet/v1`.

Every field that an operator may leave out has a default here, and only here. A key that is not listed is an error, so
that a typing mistake never becomes a default; engine flags that pdctl does not model go through `args`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pdctl.fleet.pool import Pool
from pdctl.fleet.sections import (
    Core,
    Engine,
    Kind,
    Launcher,
    Model,
    Name,
    Network,
    Port,
    Section,
    Text,
    Transfer,
    Variable,
    Version,
)
from pdctl.fleet.urls import host_of

__all__ = ["SCHEMA", "Core", "Engine", "Fleet", "Launcher", "Model", "Pool", "Router", "Transfer"]

SCHEMA = "pdctl.fleet/v1"


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
    env: dict[str, Text] = Field(default={})


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
                pool._core = self.transfer.core
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
